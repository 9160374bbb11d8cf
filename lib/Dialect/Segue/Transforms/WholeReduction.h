//===- WholeReduction.h - a tensor to one number ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_WHOLEREDUCTION_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_WHOLEREDUCTION_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

/// Returns `x` in f32, where reductions over many elements are exact enough.
mlir::Value toF32(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x);

/// All elements of `x` as a scalar. Rows first: they are reduced in parallel,
/// and sums have a smaller error.
mlir::Value reduceWhole(mlir::OpBuilder &b, mlir::Location loc, ReduceKind kind, mlir::Value x);

/// The sum of the squares of all elements, in f32.
mlir::Value sumOfSquares(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_WHOLEREDUCTION_H
