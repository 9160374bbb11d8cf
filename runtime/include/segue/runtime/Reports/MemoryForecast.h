//===- MemoryForecast.h - will it fit? --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Forecasts what a training step will hold, do and take under a budget, before anything
// runs: `segue-run fit`, `segue.fit` and `model.memory()`. Every figure is that of a step
// played in virtual time by the code that will train. Nothing has values: neither the
// device nor the weights need to be there.
//
//   MemoryForecast forecast("cpu:dram=2GiB,disk=/mnt/ssd", modules, options);
//   forecast.unconstrained().played.peakBytes
//   forecast.ask(512 << 20).fits
//   std::puts(forecast.text().c_str());
//
// Part of the library SegueReports: who only trains does not link it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H
#define SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

/// A step under a plan, played.
struct StepForecast {
  /// "unconstrained", "budget 512.00 MiB", "smallest budget".
  std::string what;
  /// The plan; owned by the forecast that made this.
  const ResidencyPlan *plan = nullptr;
  StepTwin::Played played;
  /// Bytes of device_dram that do for it, the addresses of its blocks packed: more
  /// than live at once.
  uint64_t bytes = 0;

  /// The most that a phase holds; 0 for one that is not in the step.
  uint64_t peakIn(Phase phase, Space space = Space::DeviceDram) const;
};

/// One memory of the device in a step, or what is below it.
struct TierForecast {
  Space space = Space::DeviceDram;
  /// Bytes that do for the step, and those that there are.
  uint64_t bytes = 0, capacityBytes = 0;
  /// Where the most bytes are live at once, and who holds them.
  PhasePeak peak;
};

/// Whether a step keeps to a budget.
struct FitAnswer {
  /// Bytes of device_dram: those asked for, or all that the device has.
  uint64_t budgetBytes = 0;
  bool fits = false;
  /// Index into MemoryForecast::steps() of the step by which it would; none where no plan keeps to the budget.
  std::optional<size_t> step;
  /// A sentence for what lacks; empty: nothing.
  std::string why;
};

class MemoryForecast {
public:
  /// Plays some steps of `modules` in virtual time, with the capacities and speeds of the
  /// device `spec`, which is not opened. Throws what StepTwin and virtualTwin throw.
  MemoryForecast(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                 size_t microBatches = 1);

  const StepTwin &twin() const { return twin_; }
  const ResidencyPlanner &planner() const { return planner_; }
  /// Nothing leaves.
  /// The step as it runs with no budget and no services: a run that is given no config does with its bytes.
  const StepForecast &unconstrained() const { return steps_.front(); }
  /// Under the smallest budget that is feasible.
  const StepForecast &smallest() const { return smallest_; }
  /// Under `bytes` of device_dram. Throws BudgetInfeasible with the smallest
  /// budget and the tensors that set it.
  StepForecast forBudget(uint64_t bytes);

  /// Plays a step under `budget` bytes of device_dram, or under all that the device has, and
  /// notes it. Does not throw for a budget that no plan keeps to: that is an answer.
  FitAnswer ask(std::optional<uint64_t> budget = std::nullopt);
  /// The unconstrained step, and one for each answer that has one.
  const std::vector<StepForecast> &steps() const { return steps_; }

  /// The device's own memory, then what is below it: those that the step uses, of its twin's
  /// spaces. What the host has is known where the spec or a profile says so.
  std::vector<TierForecast> tiers(const StepForecast &step) const;
  /// Capacity of the device's device_dram.
  uint64_t capacityBytes() const { return capacityOf(Space::DeviceDram); }

  /// The event that sets the smallest budget: `save "h" in FORWARD`.
  std::string setBy() const;
  /// Returns who holds memory there, most bytes first.
  const std::vector<MemoryHolder> &heldAtSmallest() const;

  /// Everything as an object: the device, the answers, the steps with peaks by tier and
  /// phase, what each service does and the estimated time, the smallest budget and what
  /// sets it, what can leave.
  Json json() const;
  /// The answers and most figures as text for people.
  std::string text() const;

private:
  StepForecast forecast(std::string what, const ResidencyPlan &plan);
  uint64_t capacityOf(Space space) const;
  /// Returns a sentence that says which tiers are too small for `step`; empty if none is.
  std::string lacks(const StepForecast &step) const;
  Json json(const StepForecast &step) const;
  std::string sentence(const FitAnswer &answer) const;

  /// The device's twin; that of `twin_` has room for everything.
  std::string spec_;
  std::vector<SpaceInfo> spaces_;
  StepTwin twin_;
  ResidencyPlanner planner_;
  /// The first is unconstrained.
  std::vector<StepForecast> steps_;
  StepForecast smallest_;
  std::vector<FitAnswer> answers_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H
