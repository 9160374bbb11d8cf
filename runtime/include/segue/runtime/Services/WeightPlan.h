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
  /// Its share of the cap: bytes, or, in a ring, one slot.
  int64_t size = 0;
  double computeMs = 0, loadMs = 0;
  /// Its bytes are read anew in every step, wherever it lies.
  bool isReadAnew = false;
  bool operator==(const PlannedWeight &) const = default;
};

struct WeightPlan {
  int64_t window = 0;
  /// Indices of blocks, ascending.
  std::vector<uint32_t> resident;
  /// Compute waiting for loads, per step.
  double exposedMs = 0;
  /// The weights and the cap that it was made from.
  std::vector<PlannedWeight> weights;
  int64_t cap = 0;
};

/// How much the memory for weights holds, in the unit of PlannedWeight::size.
struct WeightRoom {
  int64_t cap = 0;
  /// The part of the cap for blocks that programs have open beside the one that runs.
  int64_t openBeside = 0;
};

/// Compute waiting for loads in one step that repeats: one link, loads in order
/// and no earlier than `window` uses ahead, into what residents leave of the
/// room. Where it is full the block leaves whose next use is farthest for its
/// size, and for a load ahead only one that is needed later.
double exposedLoadMs(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
                     const std::vector<bool> &resident, const WeightRoom &room);

/// The best plan whose resident blocks leave room for what runs and for the
/// window; among equals the one that is best if loads take a tenth longer and
/// blocks run a tenth shorter than measured, which is as far as times may drift;
/// then the smallest window, then the fewest resident blocks. `leastWindow` is
/// used where not even that fits. What the plan `before` keeps stays unless
/// others would save a tenth: to change them costs their loads.
WeightPlan planWeights(std::span<const uint32_t> order, std::vector<PlannedWeight> weights, const WeightRoom &room,
                       int64_t leastWindow, const WeightPlan *before = nullptr);

/// True if a time differs from the plan's by more than 10 %, or what it was made
/// for is not so any more.
bool hasDrifted(const WeightPlan &plan, std::span<const PlannedWeight> now);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTPLAN_H
