//===- KernelMemory.h - buffers of kernels to pointers ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_KERNELS_KERNELMEMORY_H
#define SEGUE_LIB_TARGET_KERNELS_KERNELMEMORY_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace segue {

/// The attribute of a loop with what LLVM may do to it, until `lowerToLLVM`.
inline constexpr llvm::StringLiteral kLoopAnnotation = "llvm.loop_annotation";

/// Replaces memrefs by pointers. Memory that a block shares becomes a variable of the module around `function`.
mlir::LogicalResult lowerMemory(mlir::func::FuncOp function);

/// Takes functions without memrefs to the LLVM dialect.
mlir::LogicalResult lowerToLLVM(mlir::ModuleOp module);

} // namespace segue

#endif // SEGUE_LIB_TARGET_KERNELS_KERNELMEMORY_H
