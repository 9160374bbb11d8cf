//===- LowRank.h - the best product of two thin matrices --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Finds the leading singular vectors of a matrix by subspace iteration (Halko,
// Martinsson, Tropp 2011, algorithm 4.4) from a fixed start, rounded to bf16.
// Only building slabs needs it. The result does not depend on the number of
// threads: products are the engine's, everything else is serial.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_LOWRANK_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_LOWRANK_H

#include "segue/runtime/Services/SquareQ/LayerQuantizer.h"

namespace segue::inline runtime {

/// Returns the pair whose product is nearest to `matrix` [out, in] in the sum of squares,
/// except for rounding; rank <= min(out, in).
LowRankPair fitLowRank(std::span<const float> matrix, int64_t out, int64_t in, int64_t rank, const Threads &threads);

/// Does matrix += factor * a b.
void addLowRank(const LowRankPair &pair, int64_t out, int64_t in, int64_t rank, float factor, const Threads &threads,
                std::span<float> matrix);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_LOWRANK_H
