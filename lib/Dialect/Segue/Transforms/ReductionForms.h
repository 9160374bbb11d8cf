//===- ReductionForms.h - reductions that kernels can do --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_REDUCTIONFORMS_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_REDUCTIONFORMS_H

#include "mlir/IR/Operation.h"

namespace segue {

/// Rewrites reductions under `root` over adjacent dimensions each, and large
/// ones in two steps of a number of chunks that depends on the shape alone: the
/// sum is the same on any number of threads. Scatters accumulate in f32.
/// Returns the number of reductions that were split.
int64_t normalizeReductions(mlir::Operation *root);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_REDUCTIONFORMS_H
