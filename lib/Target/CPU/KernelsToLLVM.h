//===- KernelsToLLVM.h - loops to the LLVM dialect --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_CPU_KERNELSTOLLVM_H
#define SEGUE_LIB_TARGET_CPU_KERNELSTOLLVM_H

#include "mlir/IR/BuiltinOps.h"

namespace segue {

/// The suffix of the function that does a kernel's work.
inline constexpr llvm::StringLiteral kBodySuffix = ".body";

/// Lowers all kernels of `module` in place. Each becomes `<name>.body`, with one
/// pointer per buffer that aliases no other, and `<name>`, the entry, which takes
/// the pointers from an array.
mlir::LogicalResult lowerKernels(mlir::ModuleOp module);

} // namespace segue

#endif // SEGUE_LIB_TARGET_CPU_KERNELSTOLLVM_H
