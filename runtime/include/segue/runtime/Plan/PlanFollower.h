//===- PlanFollower.h - a step by its plan ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Says at each event of a step what the plan has for it: whether the tensor that
// is saved leaves or is dropped, and which tensors are to come back now. A policy of `mode:
// planned`: events in, decisions out, no clock and no device.
//
//   PlanFollower follower(planner.profile(), planner.plan(budget));
//   follower.beginStep();
//   auto now = follower.next(StepEvent::Kind::Save, "h.0.saved.1");
//   if (now.leaves) ...
//   for (uint32_t gap : now.returns) ...
//
// A step that is not the one planned (other shapes, an evaluation in between) is
// seen at the first event that differs: from there on nothing leaves, and what
// is away comes back when it is needed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_PLANFOLLOWER_H
#define SEGUE_RUNTIME_PLAN_PLANFOLLOWER_H

#include "segue/runtime/Plan/ResidencyPlanner.h"
#include <span>

namespace segue::inline runtime {

class PlanFollower {
public:
  PlanFollower(const StepProfile &profile, const ResidencyPlan &plan);

  struct Decisions {
    /// The gaps that begin at this event: those whose tensor moves away over the link, and
    /// those whose tensor is dropped and made again when it is needed.
    std::span<const uint32_t> leaves, drops;
    /// The gaps whose tensor is to come back now; those needed first are in front.
    std::span<const uint32_t> returns;
  };

  void beginStep();
  /// Tells the follower of the next event of the step, and returns what the plan has for it.
  Decisions next(StepEvent::Kind kind, std::string_view label);

  /// Returns the index of the event that happened last.
  uint32_t lastEvent() const { return uint32_t(position_ - 1); }

  /// Returns true if an event of this step was not the planned one.
  bool hasDiverged() const { return diverged_; }
  /// Returns the number of steps that diverged.
  uint64_t divergences() const { return divergences_; }
  /// Returns a text with the planned event at which the last such step diverged, and the event that came instead.
  const std::string &divergence() const { return divergence_; }

private:
  struct Event {
    StepEvent::Kind kind;
    std::string label;
    uint32_t firstLeaving = 0, firstDropped = 0, firstReturning = 0;
  };

  /// The planned events, and one more for the end.
  std::vector<Event> events_;
  std::vector<uint32_t> leaving_, dropped_, returning_;
  size_t position_ = 0;
  bool diverged_ = false;
  uint64_t divergences_ = 0;
  std::string divergence_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_PLANFOLLOWER_H
