//===- Checks.h - what several verifiers check ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each check emits its own error at the op. Names of operands go into messages
// as they stand in SegueOps.td.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_IR_CHECKS_H
#define SEGUE_LIB_DIALECT_SEGUE_IR_CHECKS_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue::checks {

/// An operand or result and its name.
struct Named {
  llvm::StringRef name;
  mlir::Value value;

  mlir::RankedTensorType type() const { return llvm::cast<mlir::RankedTensorType>(value.getType()); }
  mlir::Type element() const { return type().getElementType(); }
};

/// Returns a text such as `[2, 3]`.
std::string listed(llvm::ArrayRef<int64_t> values);

/// Checks that `value` has the shape `expected`, which is `why`: for example "`input`
/// permuted".
mlir::LogicalResult shape(mlir::Operation *op, Named value, llvm::ArrayRef<int64_t> expected, llvm::StringRef why);

/// Checks that both have one element type.
mlir::LogicalResult sameElement(mlir::Operation *op, Named value, Named like);

/// Checks that `dim` is a dimension of `value`.
mlir::LogicalResult dimension(mlir::Operation *op, int64_t dim, Named value);

/// Every entry of `dims`, the attribute called `attribute`, is a dimension of
/// `value`.
mlir::LogicalResult dimensions(mlir::Operation *op, llvm::StringRef attribute, llvm::ArrayRef<int64_t> dims,
                               Named value);

/// Checks that `dims` is strictly increasing.
mlir::LogicalResult increasing(mlir::Operation *op, llvm::StringRef attribute, llvm::ArrayRef<int64_t> dims);

/// Checks that `values` has one entry per dimension of `value`.
mlir::LogicalResult onePerDimension(mlir::Operation *op, llvm::StringRef attribute, llvm::ArrayRef<int64_t> values,
                                    Named value);

} // namespace segue::checks

#endif // SEGUE_LIB_DIALECT_SEGUE_IR_CHECKS_H
