//===- ResidencyPlanner.h - what leaves when, for a budget ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Chooses, before a step, which tensors are away in which of their gaps and
// when each is fetched, so that the step keeps to a budget and waits as little
// as can be for the link.
//
//   ResidencyPlanner planner(profile);
//   const ResidencyPlan &plan = planner.plan(512 << 20);     // BudgetInfeasible
//   plan.peakBytes <= 512 << 20                              // always
//
// The planner makes a pool of plans that does not depend on the budget asked
// for: one for each of evenly spaced targets between the least possible peak
// and that of a step in which nothing leaves. plan(B) is the fastest of those
// whose peak is at most B; of some as fast, the one that uses the link least,
// then the smallest. Hence a smaller budget never uses more: were the peak of
// plan(B') above that of plan(B) for B' < B, plan(B) would keep to B' and be the
// choice there too.
//
// Pure: no device, no clock. The times are those of a model in which the
// compute queue and the two directions of the link each work in order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H
#define SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H

#include "segue/runtime/Plan/StepProfile.h"

namespace segue::inline runtime {

/// A tensor that is away in one of its gaps.
struct Departure {
  /// Index into StepProfile::gaps.
  uint32_t gap = 0;
  /// The event at which its way back is submitted: after the gap's `leaves`, at
  /// the latest its `needed`.
  uint32_t returns = 0;
};

struct ResidencyPlan {
  /// By the event of return, then by that of need.
  std::vector<Departure> away;
  /// The most bytes of device_dram live at once.
  uint64_t peakBytes = 0;
  /// Per event: the most bytes live until the next.
  std::vector<uint64_t> curve;
  /// Estimates: the whole step, and what of it the compute queue waits.
  double seconds = 0, stallSeconds = 0;
  /// The whole step with a link of a quarter of the speed.
  double slowLinkSeconds = 0;
  /// Over the link, in each direction.
  uint64_t outBytes = 0, inBytes = 0;
  /// The most bytes that the host holds at once for saved tensors that left:
  /// until they are needed again. Residents have memory there in any case.
  uint64_t hostPeakBytes = 0;
};

class ResidencyPlanner {
public:
  /// Throws InvalidArgument for a profile that contradicts itself: a gap that
  /// ends before it begins, or holds more than is live.
  explicit ResidencyPlanner(StepProfile profile);

  const StepProfile &profile() const { return profile_; }
  /// Nothing leaves.
  const ResidencyPlan &unconstrained() const { return pool_.back(); }
  /// Everything is away in all of its gaps and comes back when it is needed.
  uint64_t smallestBudget() const { return pool_.front().peakBytes; }
  /// The event after which the smallest budget is needed.
  uint32_t tightestEvent() const { return tightest_; }

  /// Throws BudgetInfeasible with the smallest budget and the event that sets
  /// it.
  const ResidencyPlan &plan(uint64_t budgetBytes) const;

private:
  void followLink();
  ResidencyPlan planFor(uint64_t target, const std::vector<uint32_t> &preferred) const;
  /// When the compute queue, and all queues, have done the step.
  struct Times {
    double compute = 0, all = 0;
  };
  Times estimate(const ResidencyPlan &plan, uint64_t target, const LinkSpeed &link) const;

  StepProfile profile_;
  /// When each event happens if nothing leaves; one more for the end.
  std::vector<double> begins_;
  /// How long the way to the device has been free until then, where nothing leaves.
  std::vector<double> free_;
  /// What must have come of StepEvent::h2dBytes, all events together, before the
  /// work of an event begins; 0 where nothing was waited for.
  std::vector<double> awaited_;
  uint32_t tightest_ = 0;
  /// Ascending targets, each by several preferences; the last is without any
  /// departure.
  std::vector<ResidencyPlan> pool_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H
