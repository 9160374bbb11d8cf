//===- RingSlots.cpp - how large a ring a step goes fastest with ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/RingSlots.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include <algorithm>
#include <limits>
#include <map>

namespace segue::inline runtime {

/// The number of sizes that are tried, both ends among them.
static constexpr size_t mostTries = 5;

/// A ring is made smaller for no less than this part of the time.
static constexpr double leastGain = 1e-3;

static constexpr double noStepFits = std::numeric_limits<double>::infinity();

int64_t fastestSlots(int64_t least, int64_t most, const std::function<double(int64_t slots)> &seconds) {
  std::map<int64_t, double> tried;
  auto best = tried.end();
  auto attempt = [&](int64_t slots) {
    auto now = tried.emplace(slots, seconds(slots)).first;
    bool isMore = best != tried.end() && now->first > best->first;
    double least = best == tried.end() ? noStepFits : best->second * (isMore ? 1 + leastGain : 1 - leastGain);
    if (best == tried.end() || now->second < least)
      best = now;
  };
  attempt(most);
  if (least < most)
    attempt(least);
  while (tried.size() < mostTries) {
    int64_t below = best == tried.begin() ? 0 : best->first - std::prev(best)->first;
    int64_t above = std::next(best) == tried.end() ? 0 : std::next(best)->first - best->first;
    if (std::max(below, above) < 2)
      break;
    attempt(below > above ? best->first - below / 2 : best->first + above / 2);
  }
  return best->first;
}

namespace {
class RingTrials {
public:
  explicit RingTrials(const StepWithRing &step) : step_(step) {}

  /// Returns the seconds of the step with so many slots; infinity if no step keeps to the
  /// budget. The ring as it is comes first.
  double seconds(int64_t slots);

  /// Returns the number of slots with which nothing has to leave, by the first trial.
  int64_t alone() const { return alone_; }

private:
  const StepWithRing &step_;
  /// The bytes that the device holds and the twin does not.
  std::optional<uint64_t> others_;
  int64_t alone_ = 0;
};
} // namespace

double RingTrials::seconds(int64_t slots) {
  StepTwin twin = step_.twin(slots);
  StepProfile profile = twin.record();
  std::optional<StepProfile> timed = step_.measured ? withMeasured(profile, *step_.measured) : std::nullopt;
  double computeSeconds = 0;
  for (const StepEvent &event : profile.events)
    computeSeconds += event.seconds - event.linkWaitSeconds;
  ResidencyPlanner planner(timed ? std::move(*timed) : std::move(profile));
  double found = noStepFits;
  bool leavesNothing = false;
  const WeightStreamer &ring = *twin.weights();
  uint64_t slotBytes = ring.ringBytes() / uint64_t(std::max<int64_t>(ring.slots(), 1));
  for (uint64_t target = step_.budgetBytes; target >= planner.smallestBudget();) {
    const ResidencyPlan &plan = planner.plan(target);
    StepTwin::Played played = twin.play(planner.profile(), plan, /*moreSteps=*/0);
    if (!others_) {
      uint64_t before = played.allocations.bytesBefore + uint64_t(step_.slots - slots) * slotBytes;
      others_ = step_.liveBytes ? *step_.liveBytes - std::min(*step_.liveBytes, before) : 0;
    }
    uint64_t bytes = played.peakBytes + *others_;
    if (bytes <= step_.budgetBytes) {
      found = timed ? plan.seconds : played.seconds;
      leavesNothing = plan.away.empty();
      break;
    }
    target = plan.peakBytes - std::min(plan.peakBytes, bytes - step_.budgetBytes);
  }
  if (slots < step_.slots)
    return found;
  // If nothing leaves, or compute never waits, fewer slots gain nothing.
  alone_ = slots;
  uint64_t free = planner.unconstrained().peakBytes + others_.value_or(0);
  if (leavesNothing || (!timed && found <= computeSeconds * (1 + leastGain)) || free <= step_.budgetBytes)
    return found;
  int64_t tooMany = int64_t((free - step_.budgetBytes + slotBytes - 1) / slotBytes);
  alone_ = std::max(ring.leastSlots(), slots - tooMany - 1); // addresses may waste a part of one
  return found;
}

int64_t fastestSlots(const StepWithRing &step) {
  RingTrials trials(step);
  double first = trials.seconds(step.slots);
  return fastestSlots(std::min(trials.alone(), step.slots), step.slots,
                      [&](int64_t slots) { return slots == step.slots ? first : trials.seconds(slots); });
}

} // namespace segue::inline runtime
