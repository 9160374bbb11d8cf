//===- KernelSegments.h - compiled kernels in a module ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_COMPILER_KERNELSEGMENTS_H
#define SEGUE_LIB_COMPILER_KERNELSEGMENTS_H

#include "segue/Target/CPU/CPUTarget.h"

namespace segue {

/// Compiles the kernels of `module`, whose programs are there, to a segment for processors and one of PTX for GPUs of
/// `gpuCapability` (0 for none), tells each kernel its variants, and drops the modules of kernels. Twins go to the folder
/// `twins`, if it is not empty, as CompileOptions::gpuTwins says.
mlir::LogicalResult attachKernels(mlir::ModuleOp module, const CPUTargetOptions &target, unsigned gpuCapability,
                                  llvm::StringRef twins);

} // namespace segue

#endif // SEGUE_LIB_COMPILER_KERNELSEGMENTS_H
