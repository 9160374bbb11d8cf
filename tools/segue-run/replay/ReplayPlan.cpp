//===- ReplayPlan.cpp - logs of plans -------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The head of the log has the plan; it has no config.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Plan/PlanCalls.h"

namespace segue::tool {

static std::unique_ptr<Replayer> createPlanReplayer(const ReplayLog &log) {
  if (!log.plan.is_object())
    throw MalformedEvent("\"plan\" must be an object with \"events\", \"gaps\" and \"away\"");
  PlanOfStep plan;
  EventReader head = EventReader::ofHead(log.plan);
  try {
    visitFields(head, plan);
  } catch (const MalformedEvent &error) {
    throw MalformedEvent(std::string("\"plan\": ") + error.what());
  }
  return replay(log, LoggedPlan(plan.profile, plan.plan), plan_calls::all);
}

ReplayService replayOfPlan() { return {"plan", createPlanReplayer}; }

} // namespace segue::tool
