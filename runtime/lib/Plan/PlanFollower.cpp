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
  size_t leaving = 0, returning = 0;
  for (uint32_t event = 0; event < profile.events.size(); ++event) {
    events_.push_back(
        {profile.events[event].kind, profile.events[event].label, uint32_t(leaving), uint32_t(returning)});
    for (; leaving < byLeave.size() && profile.gaps[byLeave[leaving].gap].leaves == event; ++leaving)
      leaving_.push_back(byLeave[leaving].gap);
    for (; returning < plan.away.size() && plan.away[returning].returns == event; ++returning)
      returning_.push_back(plan.away[returning].gap);
  }
  events_.push_back({StepEvent::Kind::Phase, "", uint32_t(leaving), uint32_t(returning)});
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
  return {std::span(leaving_).subspan(planned.firstLeaving, after.firstLeaving - planned.firstLeaving),
          std::span(returning_).subspan(planned.firstReturning, after.firstReturning - planned.firstReturning)};
}

} // namespace segue::inline runtime
