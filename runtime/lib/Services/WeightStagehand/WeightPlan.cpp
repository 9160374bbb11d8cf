//===- WeightPlan.cpp - window and resident blocks from times -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightPlan.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

/// No window helps that is longer than what the slowest load needs; this bounds
/// the search.
static constexpr int64_t greatestWindow = 8;
static constexpr double driftShare = 0.10;

double exposedLoadMs(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
                     const std::vector<bool> &resident) {
  // Two steps: the first fills the slots, the second is what repeats.
  size_t uses = order.size();
  std::vector<double> begin(2 * uses), end(2 * uses);
  std::vector<uint32_t> slots; // the blocks that lie there, the oldest first
  double linkFree = 0, computeFree = 0, stepBegin = 0, computeMs = 0;
  for (size_t i = 0; i < 2 * uses; ++i) {
    uint32_t block = order[i % uses];
    if (i == uses)
      stepBegin = computeFree;
    double ready = 0;
    if (!resident[block]) {
      auto there = std::ranges::find(slots, block);
      if (there != slots.end()) {
        slots.erase(there);
      } else {
        double asked = int64_t(i) >= window ? (window ? begin[i - size_t(window)] : computeFree) : 0;
        linkFree = std::max(linkFree, asked) + weights[block].loadMs;
        ready = linkFree;
        if (int64_t(slots.size()) > window)
          slots.erase(slots.begin());
      }
      slots.push_back(block);
    }
    begin[i] = std::max(computeFree, ready);
    computeFree = end[i] = begin[i] + weights[block].computeMs;
    if (i >= uses)
      computeMs += weights[block].computeMs;
  }
  return std::max(0.0, computeFree - stepBegin - computeMs);
}

WeightPlan planWeights(std::span<const uint32_t> order, std::vector<PlannedWeight> weights, int64_t capBytes,
                       int64_t leastWindow) {
  WeightPlan best{.window = leastWindow, .exposedMs = INFINITY};
  int64_t slot = 0;
  for (const PlannedWeight &each : weights)
    slot = std::max(slot, each.bytes);
  // Longest load for its bytes first; what is equal stays in the order of the
  // blocks, whose first are farthest from their next use at the turn.
  std::vector<uint32_t> candidates(weights.size());
  for (uint32_t i = 0; i < candidates.size(); ++i)
    candidates[i] = i;
  auto exposedPerByte = [&](uint32_t i) {
    return std::max(0.0, weights[i].loadMs - weights[i].computeMs) / double(std::max<int64_t>(weights[i].bytes, 1));
  };
  std::ranges::stable_sort(candidates, [&](uint32_t a, uint32_t b) { return exposedPerByte(a) > exposedPerByte(b); });
  int64_t mostWindow = std::min<int64_t>(greatestWindow, int64_t(weights.size()));
  for (int64_t window = 0; window <= mostWindow; ++window) {
    int64_t room = capBytes - (window + 1) * slot;
    if (room < 0)
      break;
    std::vector<bool> resident(weights.size());
    std::vector<uint32_t> chosen;
    auto consider = [&] {
      double exposed = exposedLoadMs(order, weights, window, resident);
      // A microsecond is no reason to hold more.
      if (exposed < best.exposedMs - 1e-3)
        best = {.window = window, .resident = chosen, .exposedMs = exposed};
    };
    consider();
    for (uint32_t block : candidates) {
      if (weights[block].bytes > room)
        continue;
      room -= weights[block].bytes;
      resident[block] = true;
      chosen.push_back(block);
      consider();
    }
  }
  if (std::isinf(best.exposedMs))
    best.exposedMs = exposedLoadMs(order, weights, best.window, std::vector<bool>(weights.size()));
  std::ranges::sort(best.resident);
  best.weights = std::move(weights);
  return best;
}

bool hasDrifted(const WeightPlan &plan, std::span<const PlannedWeight> now) {
  if (plan.weights.size() != now.size())
    return true;
  auto differs = [](double planned, double measured) {
    return std::abs(measured - planned) > driftShare * std::max(planned, 1e-9);
  };
  for (size_t i = 0; i < now.size(); ++i)
    if (differs(plan.weights[i].computeMs, now[i].computeMs) || differs(plan.weights[i].loadMs, now[i].loadMs))
      return true;
  return false;
}

} // namespace segue::inline runtime
