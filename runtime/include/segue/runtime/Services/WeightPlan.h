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
  /// Its share of the cap: its bytes, or, in a ring, one slot.
  int64_t size = 0;
  double computeMs = 0, loadMs = 0;
  /// True if its bytes are read anew in every step, wherever it lies.
  bool isReadAnew = false;
  bool operator==(const PlannedWeight &) const = default;
};

struct WeightPlan {
  int64_t window = 0;
  /// Indices of blocks, ascending.
  std::vector<uint32_t> resident;
  /// The milliseconds per step in which compute waits for loads.
  double exposedMs = 0;
  /// The weights and the cap that it was made from.
  std::vector<PlannedWeight> weights;
  int64_t cap = 0;
};

/// The size of the memory for weights, in the unit of PlannedWeight::size.
struct WeightRoom {
  int64_t cap = 0;
  /// The part of the cap for blocks that programs have open beside the one that runs.
  int64_t openBeside = 0;
};

/// Returns the milliseconds that compute waits for loads in one step that repeats. The
/// model has one link, with loads in order and no earlier than `window` uses ahead, into
/// what residents leave of the room. If the room is full, the block leaves whose next use
/// is farthest for its size; for a load ahead, only one that is needed later than the
/// loaded block.
double exposedLoadMs(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
                     const std::vector<bool> &resident, const WeightRoom &room);

/// Returns the best plan whose resident blocks leave room for what runs and for the window.
/// Among equal plans it is the one that is best if loads take a tenth longer and blocks run
/// a tenth shorter than measured, which is as far as times may drift; then the one with the
/// smallest window, then with the fewest resident blocks. `leastWindow` is used where not
/// even that fits. The blocks that the plan `before` keeps stay unless others would save a
/// tenth: to change them costs their loads.
WeightPlan planWeights(std::span<const uint32_t> order, std::vector<PlannedWeight> weights, const WeightRoom &room,
                       int64_t leastWindow, const WeightPlan *before = nullptr);

/// Returns true if a time differs from the plan's by more than 10 %, or if the plan was
/// made for other weights.
bool hasDrifted(const WeightPlan &plan, std::span<const PlannedWeight> now);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTPLAN_H
