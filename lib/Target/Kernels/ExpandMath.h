//===- ExpandMath.h - transcendental functions as arithmetic ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_KERNELS_EXPANDMATH_H
#define SEGUE_LIB_TARGET_KERNELS_EXPANDMATH_H

#include "mlir/IR/Operation.h"

namespace segue {

/// Replaces `math` ops that would become calls of libm by arithmetic that vectorises. Fails, with an error on the op,
/// where there is no form of a function: no library is linked with kernels.
llvm::LogicalResult expandMath(mlir::Operation *root);

} // namespace segue

#endif // SEGUE_LIB_TARGET_KERNELS_EXPANDMATH_H
