//===- ConstantFolding.h - computing with constants -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Splats are folded at any size, other constants up to kMaxFoldedElements: a
// fold must never make a program big. All functions give null where they do
// not fold, also for a null operand.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_IR_CONSTANTFOLDING_H
#define SEGUE_LIB_DIALECT_SEGUE_IR_CONSTANTFOLDING_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include <optional>

namespace segue::folding {

inline constexpr int64_t kMaxFoldedElements = 1024;

/// Returns true if every element of `constant` is the number `value`; -0 is 0.
bool isSplatOf(mlir::Attribute constant, double value);

/// The element that a splat repeats, or null.
mlir::Attribute splatElement(mlir::Attribute constant);

/// Returns `constant`, a splat, in the shape of `type`.
mlir::Attribute resizeSplat(mlir::Attribute constant, mlir::Type type);

/// Folds element by element; `apply` gets one element per operand.
mlir::Attribute elementwise(llvm::ArrayRef<mlir::Attribute> operands, mlir::Type type,
                            llvm::function_ref<mlir::Attribute(llvm::ArrayRef<mlir::Attribute>)> apply);

/// Folds arithmetic on numbers: floats in double, rounded once (that is exact for one
/// operation on f32 and narrower); integers modulo their width.
mlir::Attribute arithmetic(llvm::ArrayRef<mlir::Attribute> operands, mlir::Type type,
                           llvm::function_ref<double(double, double)> onFloats,
                           llvm::function_ref<llvm::APInt(const llvm::APInt &, const llvm::APInt &)> onInts);

/// Returns `result[i...] = constant[from(i...)]`.
mlir::Attribute moved(mlir::Attribute constant, mlir::Type type,
                      llvm::function_ref<llvm::SmallVector<int64_t>(llvm::ArrayRef<int64_t>)> from);

} // namespace segue::folding

#endif // SEGUE_LIB_DIALECT_SEGUE_IR_CONSTANTFOLDING_H
