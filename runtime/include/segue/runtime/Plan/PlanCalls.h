//===- PlanCalls.h - what logs of plans hold --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of PlanFollower as events of a log, whose head has the plan;
// docs/specs/replay.md has them as a table.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_PLANCALLS_H
#define SEGUE_RUNTIME_PLAN_PLANCALLS_H

#include "segue/runtime/Plan/PlanFollower.h"
#include "segue/runtime/Replay/PolicyCall.h"

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<StepEvent::Kind>();

/// A plan, and that part of its profile which a follower needs.
struct PlanOfStep {
  StepProfile profile;
  ResidencyPlan plan;
};
/// Visits the fields of a plan. A reader refuses a plan that names events or gaps which it
/// does not have, or whose returns are not in the order of their events.
void visitFields(CallFields &fields, PlanOfStep &plan);

/// PlanFollower as logs know it: a later plan may take the place of the first.
class LoggedPlan {
public:
  LoggedPlan(const StepProfile &profile, const ResidencyPlan &plan) : follower_(profile, plan) {}

  void follow(const PlanOfStep &plan) { follower_ = PlanFollower(plan.profile, plan.plan); }
  operator PlanFollower &() { return follower_; }
  operator const PlanFollower &() const { return follower_; }

private:
  PlanFollower follower_;
};

Json answerOf(const PlanFollower &follower, const PlanFollower::Decisions &decisions);

namespace plan_calls {

inline constexpr PolicyCall plan("plan", &LoggedPlan::follow, NoAnswer(), "");
inline constexpr PolicyCall beginStep("begin_step", &PlanFollower::beginStep, NoAnswer());
inline constexpr PolicyCall event("event", &PlanFollower::next, AnswerOf(), "kind", "label");

inline constexpr std::tuple all{plan, beginStep, event};

} // namespace plan_calls

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_PLANCALLS_H
