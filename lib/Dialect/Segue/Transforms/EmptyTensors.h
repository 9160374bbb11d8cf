//===- EmptyTensors.h - ops that have no answer for nothing -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_EMPTYTENSORS_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_EMPTYTENSORS_H

#include "mlir/IR/Operation.h"

namespace segue {

/// Fails at the first op under `root` that reads or gives a tensor without elements, and
/// is no constant: no kernel has a range of nothing. Canonicalization has folded what
/// has an answer (IR/EmptyFolds.cpp).
mlir::LogicalResult refuseEmptyTensors(mlir::Operation *root);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_EMPTYTENSORS_H
