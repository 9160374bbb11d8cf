//===- LoopPlans.h - plans for the steps of a loop --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nobody announces the steps of a loop, but the next is as a rule like one before. Once a
// step is over the order of its calls is known by its first program. Before the next that
// begins so, a twin makes the same calls, a plan is made for what the budget leaves, and
// the step goes by it: what stays, what leaves and comes back when, what is computed again,
// and whether weights come ahead of their blocks.
//
// A step that departs from its order is the caller's from there on, and what it did is
// what is expected next. An order that departs from its plan more often than it keeps
// to it is planned no more, as one that found no memory.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_LOOPPLANS_H
#define SEGUE_LIB_SESSION_LOOPPLANS_H

#include "LoopOrder.h"
#include "segue/runtime/Plan/PlannedResidency.h"
#include "segue/runtime/Services/MemoryServices.h"

namespace segue::inline runtime {

class LoopPlans {
public:
  /// `services` go by plans, and outlive this.
  LoopPlans(DeviceRef device, uint64_t budgetBytes, MemoryServices &services)
      : device_(std::move(device)), budgetBytes_(budgetBytes), services_(services) {}

  /// The calls of the step under way, which the caller adds.
  LoopOrder &order() { return order_; }

  /// Before a step whose first program is `first`: true if it goes by a plan, which the services follow then.
  bool beginStep(LoopProgram first);
  /// Before a step that begins otherwise than with a forward.
  void beginUnplanned();
  /// True if weights come ahead of their blocks in the step under way; if something is computed again in it.
  bool comesAhead() const { return now_ && now_->comesAhead; }
  bool isRemaking() const { return now_ && now_->plan.isRemaking; }

  /// The step is over: its order is known from now on. Of a planned one, the services have been told.
  void endStep();
  void abortStep(bool isOutOfMemory);

  struct Figures {
    /// Plans made, and steps that kept to theirs or departed from it.
    uint64_t plans = 0, kept = 0, departed = 0;
    /// Of the plan made last: the most bytes of device_dram that a step was seen to take on the twin, with what others
    /// hold; how long it took there, in seconds; and how long the twin was at work.
    uint64_t certifiedBytes = 0;
    double stepSeconds = 0, planningSeconds = 0;
    /// Why the last order that came has no plan; empty where it has one.
    std::string whyNot;
  };
  const Figures &figures() const { return figures_; }

private:
  struct Plan {
    StepProfile profile;
    ResidencyPlan plan;
    bool comesAhead = false;
    /// The twin has so many bytes between two steps, and the device had so many more when this was made.
    uint64_t restBytes = 0, othersBytes = 0;
    uint64_t certifiedBytes = 0;
    double seconds = 0;
  };
  struct Known {
    LoopOrder order;
    std::unique_ptr<Plan> plan;
    /// Why there is none, and the bytes of others with which it was tried.
    std::string whyNot;
    uint64_t triedOthers = 0;
    uint64_t kept = 0, departed = 0;
    bool isGivenUp = false;
    /// Plans made with times that were measured.
    int measured = 0;
  };
  uint64_t othersBytes(uint64_t restBytes) const;
  std::unique_ptr<Plan> make(const LoopOrder &order, bool ahead, const MeasuredStep *measured = nullptr) const;
  std::unique_ptr<Plan> faster(const LoopOrder &order) const;
  /// Makes a plan, or says why there is none; with `measured`, the plan in force may stay.
  void plan(Known &known, const MeasuredStep *measured = nullptr);
  std::string whyNone(Known &known);

  DeviceRef device_;
  uint64_t budgetBytes_;
  MemoryServices &services_;
  LoopOrder order_;
  /// By the first program.
  std::map<LoopProgram, Known> known_;
  /// The plan of the step under way, and the one that the services follow; null: none.
  const Plan *now_ = nullptr, *inForce_ = nullptr;
  Figures figures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_LOOPPLANS_H
