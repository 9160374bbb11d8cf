//===- SavedValues.h - what backward knows of forward -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `@forward` and `@backward` are joined while a pass works on them: ops of
// `@backward` use values of `@forward` directly, which is not valid IR but says
// plainly what backward needs. `separate` ends that state: it makes a chosen
// set of values results of one and arguments of the other and clones what is
// to be recomputed. `join` goes back. `segue-autodiff` separates what it built;
// `segue-plan-saved` joins, chooses, and separates again.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_SAVEDVALUES_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_SAVEDVALUES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

namespace segue {

using ValueSet = llvm::SetVector<mlir::Value>;

/// The values of `forward` that ops of the joined `backward` use, in the order
/// of their uses.
ValueSet neededValues(mlir::func::FuncOp forward, mlir::func::FuncOp backward);

/// The ops that must be run to have `values` where `available` values and the arguments
/// of the function are there.
struct Recomputation {
  /// These follow the order of the function.
  llvm::SmallVector<mlir::Operation *> ops;
  /// Available values and arguments, which they and `values` start from.
  ValueSet leaves;
};
Recomputation recomputationOf(const ValueSet &values, llvm::function_ref<bool(mlir::Value)> isAvailable);

/// The outcome of `separate`.
struct Separation {
  /// The saved values, in the order of forward's results.
  llvm::SmallVector<mlir::Value> saved;
  /// Index of the first saved result of forward.
  unsigned firstSaved;
  /// The ops cloned into backward.
  llvm::SmallVector<mlir::Operation *> cloned;
};

/// Ends the joined state. Those of the values in `saved` that backward depends
/// on become results `saved.<k>` of `forward` and the first arguments of
/// `backward`, then come the arguments of `forward` that it uses. All else is
/// cloned in front of its first use.
Separation separate(mlir::func::FuncOp forward, mlir::func::FuncOp backward, const ValueSet &saved);

/// Starts the joined state; returns the values that were saved. Fails if a
/// saved argument of `backward` has no result of `forward`.
mlir::FailureOr<ValueSet> join(mlir::func::FuncOp forward, mlir::func::FuncOp backward);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_SAVEDVALUES_H
