//===- MemoryForecast.h - what a budget means, said beforehand --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Forecasts what a training step will hold, do and take under a budget, before anything
// runs: `segue-run plan` and `model.memory()`. Every figure is that of a step
// played in virtual time by the code that will train.
//
//   MemoryForecast forecast(*device, modules, options);
//   forecast.unconstrained().played.peakBytes
//   StepForecast step = forecast.forBudget(512 << 20);      // BudgetInfeasible
//   Json report = forecast.json({forecast.unconstrained(), step, forecast.smallest()});
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

class MemoryForecast {
public:
  /// Plays some steps of `modules` in virtual time, with the capacities and the
  /// link of `device`; the device itself does nothing. Throws what StepTwin and
  /// virtualTwin throw.
  MemoryForecast(const Device &device, std::vector<SessionModule> modules, SessionOptions options,
                 size_t microBatches = 1);

  const StepTwin &twin() const { return twin_; }
  const ResidencyPlanner &planner() const { return planner_; }
  /// Nothing leaves.
  /// Without services, too: a run that is given no config does with its bytes.
  const StepForecast &unconstrained() const { return unconstrained_; }
  /// Under the smallest budget that is feasible.
  const StepForecast &smallest() const { return smallest_; }
  /// Under `bytes` of device_dram. Throws BudgetInfeasible with the smallest
  /// budget and the tensors that set it.
  StepForecast forBudget(uint64_t bytes);

  /// Capacity of the device's device_dram.
  uint64_t capacityBytes() const { return capacityBytes_; }

  /// The event that sets the smallest budget: `save "h" in FORWARD`.
  std::string setBy() const;
  /// Returns who holds memory there, most bytes first.
  std::vector<MemoryHolder> heldAtSmallest() const;

  /// `step` as an object: peaks by space and phase, what each service does,
  /// the estimated time.
  Json json(const StepForecast &step) const;
  /// All of it: device, smallest budget and what sets it, what can leave, and
  /// `steps`.
  Json json(std::span<const StepForecast> steps) const;

private:
  StepForecast forecast(std::string what, const ResidencyPlan &plan);

  StepTwin twin_;
  ResidencyPlanner planner_;
  StepForecast unconstrained_, smallest_;
  uint64_t capacityBytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H
