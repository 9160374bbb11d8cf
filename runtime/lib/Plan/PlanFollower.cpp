//===- PlanFollower.cpp - a step by its plan ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/PlanFollower.h"
#include <algorithm>

namespace segue::inline runtime {

PlanFollower::PlanFollower(const StepProfile &profile, const ResidencyPlan &plan) {
  std::vector<Departure> byLeave = plan.away;
  std::ranges::stable_sort(byLeave, {}, [&](const Departure &departure) { return profile.gaps[departure.gap].leaves; });
  auto open = [&](StepEvent::Kind kind, std::string label) {
    events_.push_back(
        {kind, std::move(label), uint32_t(leaving_.size()), uint32_t(dropped_.size()), uint32_t(returning_.size())});
  };
  size_t leaves = 0, returns = 0;
  for (uint32_t event = 0; event < profile.events.size(); ++event) {
    open(profile.events[event].kind, profile.events[event].label);
    for (; leaves < byLeave.size() && profile.gaps[byLeave[leaves].gap].leaves == event; ++leaves)
      (byLeave[leaves].isRemade ? dropped_ : leaving_).push_back(byLeave[leaves].gap);
    for (; returns < plan.away.size() && plan.away[returns].returns == event; ++returns)
      if (!plan.away[returns].isRemade)
        returning_.push_back(plan.away[returns].gap);
  }
  open(StepEvent::Kind::Phase, "");
}

void PlanFollower::beginStep() {
  position_ = 0;
  diverged_ = false;
}

PlanFollower::Decisions PlanFollower::next(StepEvent::Kind kind, std::string_view label) {
  if (diverged_)
    return {};
  const Event &planned = events_[position_];
  bool isLast = position_ + 1 == events_.size();
  if (isLast || planned.kind != kind || planned.label != label) {
    diverged_ = true;
    ++divergences_;
    divergence_ = "event " + std::to_string(position_) + ": planned " +
                  (isLast ? "the end of the step" : std::string(name(planned.kind)) + " \"" + planned.label + "\"") +
                  ", came " + std::string(name(kind)) + " \"" + std::string(label) + "\"";
    return {};
  }
  const Event &after = events_[++position_];
  auto now = [](const std::vector<uint32_t> &gaps, uint32_t first, uint32_t last) {
    return std::span(gaps).subspan(first, last - first);
  };
  return {now(leaving_, planned.firstLeaving, after.firstLeaving),
          now(dropped_, planned.firstDropped, after.firstDropped),
          now(returning_, planned.firstReturning, after.firstReturning)};
}

} // namespace segue::inline runtime
