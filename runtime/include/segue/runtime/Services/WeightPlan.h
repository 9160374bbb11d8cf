//===- WeightPlan.h - window and resident blocks from times -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The policy `planned` of Weight Stagehand: from the time that each block
// computes and the time that its load takes, the window and the blocks that
// never leave such that the least load time is exposed. Pure functions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTPLAN_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTPLAN_H

#include <cstdint>
#include <span>
#include <vector>

namespace segue::inline runtime {

struct PlannedWeight {
  int64_t bytes = 0;
  double computeMs = 0, loadMs = 0;
  bool operator==(const PlannedWeight &) const = default;
};

struct WeightPlan {
  int64_t window = 0;
  /// Indices of blocks, ascending.
  std::vector<uint32_t> resident;
  /// Compute waiting for loads, per step.
  double exposedMs = 0;
  /// What it was made from.
  std::vector<PlannedWeight> weights;
};

/// Compute waiting for loads in one step that repeats: one link, loads in order
/// and no earlier than `window` uses ahead, into window + 1 slots whose last
/// contents are reused. `order`: indices of blocks as the step uses them.
double exposedLoadMs(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
                     const std::vector<bool> &resident);

/// The best plan whose window and resident blocks fit in `capBytes`; among
/// equals the smallest window, then the fewest resident blocks. `leastWindow`
/// is used where not even that fits.
WeightPlan planWeights(std::span<const uint32_t> order, std::vector<PlannedWeight> weights, int64_t capBytes,
                       int64_t leastWindow);

/// True if a time differs from the plan's by more than 10 %.
bool hasDrifted(const WeightPlan &plan, std::span<const PlannedWeight> now);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTPLAN_H
