//===- ExpandDoubleMath.h - transcendental functions of f64 -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_KERNELS_EXPANDDOUBLEMATH_H
#define SEGUE_LIB_TARGET_KERNELS_EXPANDDOUBLEMATH_H

#include "mlir/IR/Builders.h"

namespace segue {

/// Writes the result of an op of `math` on f64 as arithmetic. Returns null for a function that has no form here.
mlir::Value buildDoubleMath(mlir::OpBuilder &builder, mlir::Operation *op);

} // namespace segue

#endif // SEGUE_LIB_TARGET_KERNELS_EXPANDDOUBLEMATH_H
