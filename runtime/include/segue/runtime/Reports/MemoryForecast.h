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
//   forecast.countSeals();              // of a run that seals its checkpoints
//   forecast.unconstrained().played.peakBytes
//   forecast.ask(512 << 20).fits
//   std::puts(forecast.text().c_str());
//
// Part of the library SegueReports, which programs that only train do not link.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H
#define SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

/// A step that was played under a plan.
struct StepForecast {
  /// The name of the step: "unconstrained", "budget 512.00 MiB", "smallest budget".
  std::string what;
  /// The plan; owned by the forecast that made this.
  const ResidencyPlan *plan = nullptr;
  StepTwin::Played played;
  /// The bytes of device_dram in which the step runs, with the addresses of its blocks
  /// packed: more than are live at once.
  uint64_t bytes = 0;

  /// Returns the most bytes that a phase holds; 0 for one that is not in the step.
  uint64_t peakIn(Phase phase, Space space = Space::DeviceDram) const;
};

/// One memory of the device in a step, or what is below it.
struct TierForecast {
  Space space = Space::DeviceDram;
  /// The bytes that the step needs of it, and those that there are.
  uint64_t bytes = 0, capacityBytes = 0;
  /// A run takes these of a disk besides: while it plans, when all leaves that can, and for sealed checkpoints, where
  /// they are counted.
  uint64_t planningBytes = 0, sealBytes = 0;

  uint64_t allBytes() const { return bytes + planningBytes + sealBytes; }
  /// The moment at which the most bytes are live, and those who hold them.
  PhasePeak peak;
};

/// The answer to the question whether a step keeps to a budget.
struct FitAnswer {
  /// The budget in bytes of device_dram: that asked for, or all that the device has.
  uint64_t budgetBytes = 0;
  bool fits = false;
  /// The index into MemoryForecast::steps() of the step that keeps to the budget; nothing where no plan does.
  std::optional<size_t> step;
  /// A sentence about what lacks; empty if nothing does.
  std::string why;
};

class MemoryForecast {
public:
  /// Plays some steps of `modules` in virtual time, with the capacities and speeds of the
  /// device `spec`, which is opened only where nothing else can tell them. Throws what StepTwin and virtualTwin throw.
  MemoryForecast(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                 size_t microBatches = 1);

  /// Counts, in answers and tiers from here on, what sealed checkpoints take of the disk (Session::sealRoom). Throws
  /// Unsupported for a device that has none.
  void countSeals();

  const StepTwin &twin() const { return twin_; }
  const ResidencyPlanner &planner() const { return planner_; }
  /// Returns the step in which nothing leaves, as it runs without budget and services: that of a run
  /// without a config.
  const StepForecast &unconstrained() const { return steps_.front(); }
  /// Returns the step under the smallest budget that is feasible.
  const StepForecast &smallest() const { return smallest_; }
  /// Returns the step under `bytes` of device_dram. Throws BudgetInfeasible with the
  /// smallest budget and the tensors that set it.
  StepForecast forBudget(uint64_t bytes);

  /// Plays a step under `budget` bytes of device_dram, or under all that the device has, and
  /// notes it. Does not throw for a budget that no plan keeps to: that is an answer.
  FitAnswer ask(std::optional<uint64_t> budget = std::nullopt);
  /// Returns the unconstrained step, and one for each answer that has one.
  const std::vector<StepForecast> &steps() const { return steps_; }

  /// Returns the tiers that the step uses: the device's own memory, then the spaces of its
  /// twin below it. If nothing leaves, there are none below, unless seals are counted: a run
  /// that seals has its parameters and states there. The host's capacity is known where the
  /// spec or a profile gives it.
  std::vector<TierForecast> tiers(const StepForecast &step) const;
  /// Returns the capacity of the device's device_dram in bytes.
  uint64_t capacityBytes() const { return capacityOf(Space::DeviceDram); }

  /// Returns the event that sets the smallest budget, as `save "h" in FORWARD`.
  std::string setBy() const;
  /// Returns those who hold memory at that event, most bytes first.
  const std::vector<MemoryHolder> &heldAtSmallest() const;

  /// Returns everything as an object: the device, the answers, the steps with peaks by tier
  /// and phase, what each service does and the estimated time, the smallest budget and what
  /// sets it, what can leave.
  Json json() const;
  /// Returns the answers and most figures as text for people.
  std::string text() const;

private:
  StepForecast forecast(std::string what, CertifiedPlan found) const;
  uint64_t capacityOf(Space space) const;
  /// Returns a sentence that says which tiers are too small for `step`; empty if none is.
  std::string lacks(const StepForecast &step) const;
  Json json(const StepForecast &step) const;
  std::string sentence(const FitAnswer &answer) const;

  /// The spec of the device's twin. The device of `twin_` has room for everything instead.
  std::string spec_;
  std::vector<SpaceInfo> spaces_;
  /// The bytes of every step that the device takes for programs, and its twin does not.
  uint64_t programBytes_;
  StepTwin twin_;
  ResidencyPlanner planner_;
  /// All steps; the first one is unconstrained.
  std::vector<StepForecast> steps_;
  StepForecast smallest_;
  std::vector<FitAnswer> answers_;
  /// The bytes for sealed checkpoints; nothing if they are not counted.
  std::optional<uint64_t> sealBytes_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_MEMORYFORECAST_H
