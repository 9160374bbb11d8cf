//===- PlanStep.h - a session's step, planned for its budget ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_PLANSTEP_H
#define SEGUE_LIB_SESSION_PLANSTEP_H

#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Session/StepTwin.h"
#include <memory>

namespace segue::inline runtime {

/// The next steps of a session, for which a plan is made.
struct StepToPlan {
  const DeviceRef &device;
  /// The session's own modules, whose optimizers run.
  const std::vector<Module> &modules;
  const SessionOptions &options;
  /// The parameters of each rank, of which the modules are one's; null where each has all.
  std::shared_ptr<const ShardedStates> shards;
  /// The modules that run each micro-batch: `modules`, or the same compiled for other extents.
  std::vector<const std::vector<Module> *> batches;
  /// The bytes of the device that batches hold already.
  uint64_t placedBytes = 0;
  /// True if no step has been asked for yet: one batch is a guess.
  bool isBatchCountGuessed = false;
};

/// The parts that every twin of the session is made of: its modules, and the options that decide
/// what a step computes and sends. Services, slabs and sinks are the twin's own, and so are the ranks,
/// which takeRanks() puts in the place of the session's.
struct TwinParts {
  std::vector<SessionModule> modules;
  SessionOptions options;
  TwinBatches batches;
};
TwinParts twinParts(const StepToPlan &step);
/// Has a twin on `device` send to nobody what the session sends to other ranks.
void takeRanks(SessionOptions &options, const DeviceRef &device);

/// A plan that was certified for a device that had `room`, beside a ring of so many slots.
struct PlannedStep {
  StepProfile profile;
  ResidencyPlan plan;
  std::optional<AddressPlan> addresses;
  FreeRoom room;
  /// The bytes of device_dram that it was certified to be content with, and the budget that it was made for.
  uint64_t bytes = 0, budgetBytes = 0;
  /// The slots of the ring, and the most of them that are open at once; 0 without a ring.
  int64_t slots = 0, openAtOnce = 0;
  /// The programs, whose constants count and lie in the plan's room; see preparePrograms().
  std::vector<Executor> programs;
};

/// Makes the programs of a step ready, so that what the device takes for them is there and counts. All are tried before
/// one for which memory lacks is an error: Device::bytesForPrograms knows of all of them then. They stay ready as long as the
/// caller keeps them.
std::vector<Executor> preparePrograms(const StepToPlan &step);

/// A plan of a step with a ring of so many slots, certified for `room`.
struct TriedPlan {
  TriedPlan(const StepToPlan &step, const WeightStreamer *weights, const MeasuredStep *measured);
  void certifyFor(FreeRoom free, uint64_t bytes, Search search);

  int64_t slots;
  StepTwin twin;
  ResidencyPlanner planner;
  FreeRoom room;
  CertifiedPlan found;
};

/// Plans a step for which a plan is in force, and moves nothing: what the last step left lies in the midst of its
/// addresses, and may leave no room for another. Returns null then. `measured` may be null.
std::unique_ptr<TriedPlan> tryPlan(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured);

/// Plans a step of other extents than that for which a plan is in force, and moves nothing, as if what stays on the device
/// lay together. Throws BudgetInfeasible if there is no plan even so. Returns null where fewer slots of a ring may help.
std::unique_ptr<TriedPlan> tryOtherStep(MemoryServices &services, const StepToPlan &step);

/// Makes a twin of the session on `sim:virtual`, plans a step for what the device's budget
/// leaves to the session, with the times that were `measured` if they are of such a step,
/// and has `services` follow the plan, which is returned. Slots of Weight Stagehand's ring that no plan fits beside,
/// or that cost more time than they spare (RingSlots.h), are given back. Throws
/// BudgetInfeasible, and Unsupported for a device that nothing can leave. What was `tried` with the same times is
/// followed if it fits.
PlannedStep planStep(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured = nullptr,
                     std::unique_ptr<TriedPlan> tried = nullptr);

/// Has `services` follow a plan again that was made before, between two steps. Returns false if the device has other
/// room or another budget now, or the ring other slots: then a plan has to be made.
bool followAgain(MemoryServices &services, const DeviceRef &device, const PlannedStep &planned);

/// The way in which a step keeps to its budget: with gradients and optimizer states where
/// they are, or if they leave (MemoryServices::letStatesLeave).
enum class StepFits : uint8_t { AsItIs, WithStatesAway };

/// The findings of a step that was tried. MemoryServices::expect takes `profile` and `others`.
struct CheckedStep {
  StepFits fits = StepFits::AsItIs;
  /// Nothing if no services check the budget.
  std::optional<StepProfile> profile;
  int64_t others = 0;
  /// The programs, whose constants count; see preparePrograms().
  std::vector<Executor> programs;
};

/// Tries steps on a twin within the budget, if no plan is wanted, with the services that
/// there are (null for none), and throws BudgetInfeasible, with the smallest budget that is
/// enough, if they end for want of memory. Throws Unsupported for a device that can have no twin.
CheckedStep checkStep(const MemoryServices *services, const StepToPlan &step);

/// Plays the first steps of a session that trains by no plan on a twin within the budget,
/// after checkStep. Returns the bytes of device_dram, with what others hold, with which it
/// was seen to train. Throws BudgetInfeasible as checkStep does.
uint64_t certifyStep(const MemoryServices *services, const StepToPlan &step);

/// Refuses, as checkStep does, the cap of a session that lacked memory before its first step, or whose ring found none;
/// returns if a twin has enough. `others` are the bytes of the device that are not the session's.
void refuseTooSmall(const MemoryServices *services, const StepToPlan &step, uint64_t others);

/// Plays the first step by watermarks on such a twin, before it runs, and has `services`
/// begin with the slabs and the choices that this has shown. Throws Unsupported for a
/// device that can have no twin.
void rehearseStep(MemoryServices &services, const StepToPlan &step);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_PLANSTEP_H
