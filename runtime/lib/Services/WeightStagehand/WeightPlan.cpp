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

/// The greatest window that is tried: one beyond what the slowest load needs does not help.
static constexpr int64_t greatestWindow = 8;
static constexpr double driftShare = 0.10;

namespace {
/// Two steps, of which the second is what repeats.
class StepOfLoads {
public:
  StepOfLoads(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
              const std::vector<bool> &resident, int64_t room)
      : order_(order), weights_(weights), resident_(resident), window_(window), room_(room), isThere_(weights.size()),
        readyAt_(weights.size()), gap_(order.size()), nextUse_(weights.size()) {
    for (size_t i = 2 * order.size(); i-- > 0;) { // the second time round each block has a use that follows
      uint64_t &next = nextUse_[order[i % order.size()]];
      gap_[i % order.size()] = next - i;
      next = i;
    }
  }

  double exposedMs(double loadScale, double computeScale) {
    loadScale_ = loadScale;
    double computeFree = 0, begin = 0, computeMs = 0;
    uint64_t uses = order_.size();
    for (uint64_t i = 0; i < 2 * uses; ++i) {
      if (i % uses == 0)
        dropWhatIsReadAnew();
      if (i == uses)
        begin = computeFree;
      for (int64_t ahead = 0; ahead <= window_; ++ahead)
        if (!bring(i, uint64_t(ahead), computeFree))
          break;
      uint32_t block = order_[i % uses];
      double compute = computeScale * weights_[block].computeMs;
      computeFree = std::max(computeFree, readyAt_[block]) + compute;
      computeMs += i >= uses ? compute : 0;
      nextUse_[block] = i + gap_[i % uses];
    }
    return std::max(0.0, computeFree - begin - computeMs);
  }

private:
  void dropWhatIsReadAnew() {
    for (uint32_t block = 0; block < weights_.size(); ++block)
      if (weights_[block].isReadAnew && isThere_[block]) {
        isThere_[block] = false;
        held_ -= resident_[block] ? 0 : weights_[block].size;
      }
  }

  /// Loads what use `i + ahead` needs, as use `i` begins; false: no room for it.
  bool bring(uint64_t i, uint64_t ahead, double now) {
    uint32_t block = order_[(i + ahead) % order_.size()];
    if (isThere_[block])
      return true;
    while (!resident_[block] && held_ > 0 && held_ + weights_[block].size > room_) {
      int64_t leaving = farthest(i, ahead);
      if (leaving < 0 && ahead)
        return false;
      if (leaving < 0)
        break; // what runs has its place all the same
      isThere_[size_t(leaving)] = false;
      held_ -= weights_[size_t(leaving)].size;
    }
    isThere_[block] = true;
    held_ += resident_[block] ? 0 : weights_[block].size;
    linkFree_ = std::max(linkFree_, now) + loadScale_ * weights_[block].loadMs;
    readyAt_[block] = linkFree_;
    return true;
  }

  /// Returns the block that is there and needed last, later than use `i + ahead`; -1: none.
  int64_t farthest(uint64_t i, uint64_t ahead) {
    int64_t best = -1;
    double bestScore = 0;
    for (uint32_t block = 0; block < weights_.size(); ++block) {
      if (!isThere_[block] || resident_[block])
        continue;
      uint64_t distance = nextUse_[block] - i;
      double score = double(distance) * double(weights_[block].size);
      if (distance > ahead && score > bestScore) {
        best = block;
        bestScore = score;
      }
    }
    return best;
  }

  std::span<const uint32_t> order_;
  std::span<const PlannedWeight> weights_;
  const std::vector<bool> &resident_;
  int64_t window_, room_, held_ = 0;
  std::vector<bool> isThere_;
  std::vector<double> readyAt_;
  /// The number of uses between each use of the step and the next one of its block; and the
  /// use of each block that comes next, counted over both steps.
  std::vector<uint64_t> gap_, nextUse_;
  double linkFree_ = 0, loadScale_ = 1;
};

/// The seconds by which one of two plans is chosen.
struct Exposure {
  double measured, drifted;
  /// A microsecond is no reason to hold more.
  bool isBetterThan(const Exposure &other) const {
    static constexpr double least = 1e-3;
    if (std::isinf(other.measured))
      return true;
    return measured < other.measured - least || (measured < other.measured + least && drifted < other.drifted - least);
  }
};
} // namespace

static int64_t roomBeside(std::span<const PlannedWeight> weights, const std::vector<bool> &resident,
                          const WeightRoom &room) {
  int64_t left = room.cap - room.openBeside;
  for (size_t i = 0; i < weights.size(); ++i)
    left -= resident[i] ? weights[i].size : 0;
  return left;
}

double exposedLoadMs(std::span<const uint32_t> order, std::span<const PlannedWeight> weights, int64_t window,
                     const std::vector<bool> &resident, const WeightRoom &room) {
  return StepOfLoads(order, weights, window, resident, roomBeside(weights, resident, room)).exposedMs(1, 1);
}

WeightPlan planWeights(std::span<const uint32_t> order, std::vector<PlannedWeight> weights, const WeightRoom &room,
                       int64_t leastWindow, const WeightPlan *before) {
  WeightPlan best{.window = leastWindow, .resident = {}, .exposedMs = INFINITY, .weights = {}, .cap = room.cap};
  Exposure least{INFINITY, INFINITY};
  int64_t largest = 0;
  for (const PlannedWeight &each : weights)
    largest = std::max(largest, each.size);
  // Longest load for its room first; what is equal stays in the order of the
  // blocks, whose first are farthest from their next use at the turn.
  std::vector<uint32_t> candidates(weights.size());
  for (uint32_t i = 0; i < candidates.size(); ++i)
    candidates[i] = i;
  auto exposedPerSize = [&](uint32_t i) {
    return std::max(0.0, weights[i].loadMs - weights[i].computeMs) / double(std::max<int64_t>(weights[i].size, 1));
  };
  std::ranges::stable_sort(candidates, [&](uint32_t a, uint32_t b) { return exposedPerSize(a) > exposedPerSize(b); });
  auto exposureOf = [&](int64_t window, const std::vector<bool> &resident, int64_t left) {
    auto exposed = [&](double loadScale, double computeScale) {
      return StepOfLoads(order, weights, window, resident, left).exposedMs(loadScale, computeScale);
    };
    return Exposure{exposed(1, 1), exposed(1 + driftShare, 1 - driftShare)};
  };
  int64_t mostWindow = std::min<int64_t>(greatestWindow, int64_t(weights.size()));
  for (int64_t window = 0; window <= mostWindow; ++window) {
    std::vector<bool> resident(weights.size());
    std::vector<uint32_t> chosen;
    int64_t left = roomBeside(weights, resident, room), passing = (window + 1) * largest;
    if (left < passing)
      break;
    auto consider = [&] {
      Exposure now = exposureOf(window, resident, left);
      if (!now.isBetterThan(least))
        return;
      least = now;
      best.window = window;
      best.resident = chosen;
      best.exposedMs = now.measured;
    };
    consider();
    for (uint32_t block : candidates) {
      if (left - weights[block].size < passing)
        continue;
      left -= weights[block].size;
      resident[block] = true;
      chosen.push_back(block);
      consider();
    }
  }
  if (before && before->weights.size() == weights.size() && !std::isinf(best.exposedMs)) {
    std::vector<bool> resident(weights.size());
    for (uint32_t index : before->resident)
      resident[index] = true;
    int64_t left = roomBeside(weights, resident, room);
    Exposure leastBefore{INFINITY, INFINITY};
    int64_t windowBefore = 0;
    for (int64_t window = 0; window <= mostWindow && left >= (window + 1) * largest; ++window)
      if (Exposure now = exposureOf(window, resident, left); now.isBetterThan(leastBefore)) {
        leastBefore = now;
        windowBefore = window;
      }
    if (leastBefore.measured <= best.exposedMs * (1 + driftShare) + 1e-3) {
      best.window = windowBefore;
      best.resident = before->resident;
      best.exposedMs = leastBefore.measured;
    }
  }
  if (std::isinf(best.exposedMs))
    best.exposedMs = exposedLoadMs(order, weights, best.window, std::vector<bool>(weights.size()), room);
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
    if (differs(plan.weights[i].computeMs, now[i].computeMs) || differs(plan.weights[i].loadMs, now[i].loadMs) ||
        plan.weights[i].isReadAnew != now[i].isReadAnew || plan.weights[i].size != now[i].size)
      return true;
  return false;
}

} // namespace segue::inline runtime
