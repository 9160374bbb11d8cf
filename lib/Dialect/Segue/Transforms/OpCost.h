//===- OpCost.h - what an op costs ------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Rough costs of ops, for choices between saving and recomputing. Counts of
// flops, with a transcendental function as what its polynomial takes; what
// only moves or looks at elements is free, and so is a draw of random numbers,
// which is there to be repeated.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPCOST_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPCOST_H

#include "mlir/IR/Operation.h"

namespace segue {

int64_t estimateFlops(mlir::Operation *op);

/// True for ops that fuse into kernels over rows: everything but contractions,
/// attention, scatters and ops that are not of this dialect.
bool isCheapToRecompute(mlir::Operation *op);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPCOST_H
