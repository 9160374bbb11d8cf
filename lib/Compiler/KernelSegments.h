//===- KernelSegments.h - compiled kernels in a module ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_COMPILER_KERNELSEGMENTS_H
#define SEGUE_LIB_COMPILER_KERNELSEGMENTS_H

#include "segue/Compiler/Compiler.h"
#include "segue/Target/CPU/CPUTarget.h"

namespace segue {

/// Compiles the kernels of `module`, whose programs are there, to a segment for processors, one of PTX for GPUs and
/// cubins beside that, as `options` say of GPUs, tells each kernel its variants, and drops the modules of kernels.
mlir::LogicalResult attachKernels(mlir::ModuleOp module, const CPUTargetOptions &target, const CompileOptions &options);

} // namespace segue

#endif // SEGUE_LIB_COMPILER_KERNELSEGMENTS_H
