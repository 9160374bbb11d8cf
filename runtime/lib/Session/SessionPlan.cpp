//===- SessionPlan.cpp - what a session knows of its steps ahead ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Before a step begins: its plan, its rehearsal, whether the budget lets it run, and
// with how many bytes it is known to.
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "PlanStep.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

/// Returns the bytes of those tensors of `batches` that lie on the device.
static uint64_t bytesOn(const Device &device, std::span<const TensorMap> batches) {
  uint64_t bytes = 0;
  for (const TensorMap &batch : batches)
    for (const auto &[name, tensor] : batch)
      if (tensor && tensor.device().get() == &device && tensor.storage()->space() == Space::DeviceDram)
        bytes += device.takenBytes(Space::DeviceDram, tensor.storage()->bytes(), tensor.desc().layout.alignment);
  return bytes;
}

void Session::State::planFor(size_t microBatches, std::span<const TensorMap> batches) {
  if (services && !services->wantsPlan())
    services->holdTo(certified && certified->microBatches == microBatches ? std::optional(certified->bytes)
                                                                          : std::nullopt);
  bool hasTwin = device->twin().has_value(), isPlanWanted = services && services->wantsPlan();
  bool isChecked = hasTwin && !options.isRehearsal && !hasOwnSink();
  bool isRehearsed = hasTwin && services && services->wantsRehearsal();
  if (!isPlanWanted && (plannedFor || !(isChecked || isRehearsed)))
    return tellStatesLeave();
  requireWhole();
  requireValues();
  prepareStreamed(microBatches, batches); // the ring is in the way of a plan
  int64_t slots = services && services->weights() ? services->weights()->slots() : 0;
  bool isPlanned = plannedFor == microBatches && slots <= plannedSlots; // a smaller ring leaves more
  StepToPlan next{device, modules, options, microBatches, bytesOn(*device, batches)};
  if (!isPlanWanted) {
    // The check is made before the first step, since later ones keep memory for reuse.
    if (isChecked && checkStep(services.get(), next) == StepFits::WithStatesAway) {
      letStatesLeave();
      streamed->release(); // a ring beside them was smaller
      prepareStreamed(microBatches, batches);
    }
    if (isRehearsed)
      rehearseStep(*services, next);
    plannedFor = microBatches;
    plannedSlots = slots;
    return tellStatesLeave();
  }
  // Blocks that evaluations have left in the plan's ranges go, or are planned around.
  if (isPlanned && device->memory().lentBytes()) {
    dropCaches(*device);
    isPlanned = !device->memory().lentBytes();
  }
  std::optional<MeasuredStep> measured = services->takeMeasured();
  if (isPlanned && !measured)
    return;
  try {
    certified = {microBatches, planStep(*services, next, measured ? &*measured : nullptr)};
  } catch (const Error &error) {
    if (sealer && error.code() == ErrorCode::DeviceOom)
      throw error.within(sealer->whatIsTaken());
    // Somebody else took of the device since: the plan in force may still fit.
    if (error.code() != ErrorCode::BudgetInfeasible || plannedFor != microBatches)
      throw;
    return;
  }
  if (measured && options.log)
    options.log("step " + std::to_string(step + 1) + ": planned again, with the times that the last steps took");
  plannedFor = microBatches;
  plannedSlots = services->weights() ? services->weights()->slots() : 0;
}

uint64_t Session::certify(size_t microBatches) {
  State &s = *state_;
  if (s.waiting || microBatches == 0)
    throw Error(s.waiting ? ErrorCode::StateTransition : ErrorCode::InvalidArgument,
                s.waiting ? "a step is certified before it begins, and " + std::to_string(s.waiting) +
                                " batches of one wait for optimize()"
                          : std::string("a step of no batches is none to certify"));
  s.planFor(microBatches, {});
  if (!s.certified || s.certified->microBatches != microBatches)
    s.certified = {microBatches, certifyStep(s.services.get(), {s.device, s.modules, s.options, microBatches})};
  return s.certified->bytes;
}

void Session::State::refuseTooSmall(const Error &error, std::optional<size_t> microBatches,
                                    std::span<const TensorMap> batches) const {
  auto *memory = dynamic_cast<const OutOfMemory *>(&error);
  bool isTooSmall = memory ? memory->report().space == Space::DeviceDram : error.code() == ErrorCode::BudgetInfeasible;
  if (!isTooSmall || plannedFor || options.isRehearsal || hasOwnSink() || !device->twin())
    return;
  uint64_t placed = bytesOn(*device, batches), own = placed, live = device->memory().liveBytes(Space::DeviceDram);
  TensorMap held = optimizerState;
  for (size_t slot = 0; slot < values.size(); ++slot)
    held[std::to_string(slot)] = values[slot];
  for (size_t slot = 0; loading && slot < loading->size(); ++slot)
    held["loading " + std::to_string(slot)] = (*loading)[slot];
  own += bytesOn(*device, std::span(&held, 1));
  StepToPlan next{device, modules, options, microBatches.value_or(1), placed, !microBatches};
  segue::refuseTooSmall(services.get(), next, live - std::min(live, own));
}

} // namespace segue::inline runtime
