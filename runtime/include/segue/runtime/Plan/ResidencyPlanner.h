//===- ResidencyPlanner.h - what leaves when, for a budget ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Chooses, before a step, which tensors are away in which of their gaps, and for each
// whether it is moved over the link, and fetched when, or dropped and computed again
// where it is needed, so that the step keeps to a budget and takes as little time as
// can be.
//
//   ResidencyPlanner planner(profile);
//   const ResidencyPlan &plan = planner.plan(512 << 20);     // BudgetInfeasible
//   plan.peakBytes <= 512 << 20                              // always
//
// The planner makes a pool of plans that does not depend on the budget asked
// for: some for each of evenly spaced targets between the least possible peak
// and that of a step in which nothing leaves. Of these one keeps to the target exactly,
// and others leave more or less room in it for what is on the link. plan(B) is the fastest of those
// whose peak is at most B; of some as fast, the one that uses the link least,
// then the smallest. Hence a smaller budget never uses more: were the peak of
// plan(B') above that of plan(B) for B' < B, plan(B) would keep to B' and be the
// choice there too.
//
// A tensor that is made from others wants them on the device at that moment: those that
// are away come back, or are made, that much earlier. It is chosen only where there is
// room for that and for the run, and where the link is what the step waits for.
//
// Where a disk lies below the host's memory, what leaves goes on to it when the host has no
// room: parameters and states where their homes are, saved tensors and gradients as they come.
// Such a tensor uses both edges at once, the link and the disk, and the busier one decides.
//
// Pure: no device, no clock. The times are those of a model in which the
// compute queue and the two directions of the link, and of the disk, each work in order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H
#define SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H

#include "segue/runtime/Plan/StepProfile.h"
#include <optional>

namespace segue::inline runtime {

/// A tensor that is away in one of its gaps.
struct Departure {
  /// Index into StepProfile::gaps.
  uint32_t gap = 0;
  /// The event at which its way back is submitted, or at which it is made again: later than
  /// the gap's `leaves`, and its `needed` at the latest.
  uint32_t returns = 0;
  /// True if it is dropped, and made by the gap's `remake`, for itself or for another that
  /// is made from it.
  bool isRemade = false;
};

struct ResidencyPlan {
  /// Departures in the order of the event of return, then of that of need.
  std::vector<Departure> away;
  /// The most bytes of device_dram that are live at once.
  uint64_t peakBytes = 0;
  /// The most bytes that are live from each event until the next.
  std::vector<uint64_t> curve;
  /// Estimates of the seconds of the whole step, and of those in it that the compute queue waits.
  double seconds = 0, stallSeconds = 0;
  /// The seconds of the whole step with a link of a quarter of the speed.
  double slowLinkSeconds = 0;
  /// The bytes over the link, in each direction.
  uint64_t outBytes = 0, inBytes = 0;
  /// The part of these bytes that goes on to a disk below the host's memory, or comes from there.
  uint64_t diskOutBytes = 0, diskInBytes = 0;
  /// Whether something is computed again, and what that takes of the step.
  bool isRemaking = false;
  double remakeSeconds = 0;
  /// The most bytes that the host holds at once for saved tensors that left, until they are
  /// needed again. Residents have memory there in any case.
  uint64_t hostPeakBytes = 0;
};

class ResidencyPlanner {
public:
  /// Throws InvalidArgument for a profile that contradicts itself: a gap that
  /// ends before it begins, or holds more than is live.
  explicit ResidencyPlanner(StepProfile profile);

  const StepProfile &profile() const { return profile_; }
  /// Returns the plan in which nothing leaves.
  const ResidencyPlan &unconstrained() const { return pool_.back(); }
  /// Returns the peak of the plan in which everything is away in all of its gaps and comes back when it is needed.
  uint64_t smallestBudget() const { return pool_.front().peakBytes; }
  /// Returns the event after which the smallest budget is needed.
  uint32_t tightestEvent() const { return tightest_; }

  /// Returns the fastest plan that keeps to a budget. Throws BudgetInfeasible with the
  /// smallest budget and the event that sets it.
  const ResidencyPlan &plan(uint64_t budgetBytes) const { return fastest(budgetBytes, /*mayRemake=*/true); }
  /// Returns the fastest plan in which nothing is computed again. Throws as plan() does.
  const ResidencyPlan &movedPlan(uint64_t budgetBytes) const { return fastest(budgetBytes, /*mayRemake=*/false); }

private:
  /// The gaps that are away, and what follows from how each comes back.
  struct Absence {
    std::vector<uint32_t> gaps;
    /// Two flags per gap: it is away, and it is made again; and the event by which its tensor must be there at the
    /// latest.
    std::vector<bool> isAway, isRemade;
    std::vector<uint32_t> needed;
    /// The most bytes that are live from each event until the next if each tensor comes
    /// back at the last moment, and the seconds that runs then take.
    std::vector<uint64_t> curve;
    std::vector<double> runSeconds;
    /// Says of each gap that is away whether its tensor is on the disk below the host.
    std::vector<bool> isOnDisk;
  };
  /// The times at which the compute queue, and all queues, have done the step.
  struct Times {
    double compute = 0, all = 0;
  };

  const ResidencyPlan &fastest(uint64_t budgetBytes, bool mayRemake) const;
  void followLink();
  /// Adds to the pool a plan that keeps to `target` by moving what is `moved` alone, if it `maySuffice`,
  /// and one that computes again what waits for the link.
  void planFor(uint64_t target, const Absence &moved, bool maySuffice);
  std::vector<uint32_t> choose(uint64_t target, const std::vector<uint32_t> &preferred) const;
  std::optional<Absence> absence(const std::vector<uint32_t> &gaps, const std::vector<bool> &isRemade) const;
  void remakeWhatGains(const Absence &moved, double movedSeconds, uint64_t target);
  ResidencyPlan schedule(const Absence &absence, uint64_t target) const;
  std::vector<bool> findOnDisk(const std::vector<uint32_t> &gaps, const std::vector<bool> &isRemade) const;
  /// On edges that are slower by a factor.
  Times estimate(const ResidencyPlan &plan, const Absence &absence, uint64_t target, double slower) const;

  StepProfile profile_;
  /// The time of each event if nothing leaves, and that of the end.
  std::vector<double> begins_;
  /// The seconds that the way to the device has been free until each event, if nothing leaves.
  std::vector<double> free_;
  /// The bytes of StepEvent::h2dBytes, summed over all events, that must have come before
  /// the work of an event begins; 0 where nothing was waited for.
  std::vector<double> awaited_;
  uint32_t tightest_ = 0;
  std::vector<std::vector<uint32_t>> gapsOfResident_, gapsOfRemake_;
  /// The plans for ascending targets, several by different preferences for each; the last
  /// plan has no departure.
  std::vector<ResidencyPlan> pool_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_RESIDENCYPLANNER_H
