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

StepToPlan SessionState::stepToPlan(const StepSizes &step, std::span<const TensorMap> batches) const {
  StepToPlan next{device, modules, options, ranks ? ranks->shards() : nullptr, {}, bytesOn(*device, batches)};
  for (const Sizes *of : step)
    next.batches.push_back(&modulesOf(of));
  return next;
}

SessionState::KnownStep &SessionState::knownOf(const StepSizes &step) {
  auto found = std::ranges::find(known, step, &KnownStep::step);
  return found != known.end() ? *found : known.emplace_back(step);
}

void SessionState::planFor(const StepSizes &step, std::span<const TensorMap> batches) {
  device->transfer().use(stitchOptions);
  if (services && services->wantsPlan())
    return followPlanFor(step, batches);
  if (services)
    services->holdTo(step == certifiedFor ? knownOf(step).certified : std::nullopt);
  checkFor(step, batches);
  tellStatesLeave();
}

void SessionState::takeForPrograms(const StepSizes &step, std::span<const TensorMap> batches) {
  if (!device->bytesForPrograms())
    return;
  try {
    preparePrograms(stepToPlan(step.empty() ? StepSizes{nullptr} : step, batches));
  } catch (const Error &error) {
    refuseTooSmall(error, step, batches);
    throw;
  }
}

void SessionState::checkFor(const StepSizes &step, std::span<const TensorMap> batches) {
  bool hasTwin = device->twin().has_value();
  bool isChecked = hasTwin && !options.isRehearsal && !hasOwnSink();
  bool isRehearsed = hasTwin && services && services->wantsRehearsal();
  KnownStep &here = knownOf(step);
  // More micro-batches of extents that are known take no more than the first, but where sums of gradients wait for the last
  // to be given to other ranks.
  auto isKnown = [&](const Sizes *of) {
    return std::ranges::any_of(
        known, [&](const KnownStep &other) { return other.checked && std::ranges::count(other.step, of) > 0; });
  };
  bool sharesGradients = ranks && ranks->sharesGradients();
  if (!(isChecked || isRehearsed) || (!here.checked && !sharesGradients && std::ranges::all_of(step, isKnown)))
    return;
  if (!here.checked) {
    requireWhole();
    requireValues();
    takeForPrograms(step, batches);
    prepareStreamed(step, batches); // the ring is in the way
    StepToPlan next = stepToPlan(step, batches);
    CheckedStep found;
    if (isChecked)
      found = checkStep(services.get(), next);
    if (found.fits == StepFits::WithStatesAway) {
      letStatesLeave();
      streamed->release(); // a ring beside them was smaller
      prepareStreamed(step, batches);
    }
    if (isRehearsed)
      rehearseStep(*services, next);
    here.checked = std::move(found);
  } else if (step == plannedFor) {
    return;
  }
  if (here.checked->profile)
    services->expect(*here.checked->profile, here.checked->others);
  plannedFor = step;
}

std::unique_ptr<TriedPlan> SessionState::tryAnother(const StepSizes &step, std::span<const TensorMap> batches,
                                                      const MeasuredStep *measured) {
  auto stays = [&](const std::string &why) {
    if (options.log)
      options.log("step " + std::to_string(this->step + 1) + ": goes by the plan in force, as " + why);
  };
  try {
    if (std::unique_ptr<TriedPlan> tried = tryPlan(*services, stepToPlan(step, batches), measured))
      return tried;
    stays("another finds no room beside what the last step left");
  } catch (const Error &error) {
    // Somebody else took of the device or of a disk since.
    if (error.code() != ErrorCode::DeviceOom && error.code() != ErrorCode::BudgetInfeasible)
      throw;
    stays(std::string("there is no room to make another: ") + error.what());
  }
  return nullptr;
}

void SessionState::followPlanFor(const StepSizes &step, std::span<const TensorMap> batches) {
  requireWhole();
  requireValues();
  KnownStep &here = knownOf(step);
  // A device has the addresses of one plan, which another session may have made since, and a budget that may have
  // changed with the caps of others. What others have there makes room as soon as their plan is not in force.
  bool isTurn = !services->hasItsAddresses() ||
                (here.planned && here.planned->budgetBytes != device->memory().budget(Space::DeviceDram));
  if (isTurn && device->memory().isInPlannedStep())
    throw Error(ErrorCode::StateTransition,
                "a step of another session is under way on this device, and the addresses of its memory are those of that "
                "step's plan; take this one when that step has ended, or give each session a device of its own");
  if (isTurn)
    device->memory().forgetAddresses();
  prepareStreamed(step, batches); // the ring is in the way of a plan
  int64_t slots = services->weights() ? services->weights()->slots() : 0;
  // A step that was aborted has left results of the one before where the plan's first step, with which it begins again,
  // has room for others. A smaller ring leaves more.
  bool isInForce = plannedFor == step && slots <= plannedSlots && !hasAborted && !isTurn;
  bool isPlanned = isInForce;
  // Blocks that evaluations have left in the plan's ranges go, or are planned around.
  if (isPlanned && device->memory().lentBytes()) {
    dropCaches(*device);
    isPlanned = !device->memory().lentBytes();
  }
  std::optional<MeasuredStep> measured = services->takeMeasured();
  if (isPlanned && !measured)
    return;
  takeForPrograms(step, batches);
  std::unique_ptr<TriedPlan> tried;
  if (isInForce && !(tried = tryAnother(step, batches, measured ? &*measured : nullptr)))
    return;
  auto isFollowed = [&] {
    plannedFor = step;
    plannedSlots = services->weights() ? services->weights()->slots() : 0;
    hasAborted = false;
  };
  bool isMoved = false;
  try {
    if (!plannedFor.empty() && plannedFor != step && !here.planned)
      tried = tryOtherStep(*services, stepToPlan(step, batches));
    // A plan begins with a step that has no update of the one before to make.
    StepSizes before = plannedFor;
    makeDeferred();
    plannedFor = std::move(before);
    isMoved = true;
    if (plannedFor != step || hasAborted || isTurn) {
      measured.reset(); // it is of the plan before, whose results may lie in the midst of its addresses
      device->memory().forgetAddresses();
      if (here.planned && followAgain(*services, device, *here.planned))
        return isFollowed();
    }
    here.planned = planStep(*services, stepToPlan(step, batches), measured ? &*measured : nullptr, std::move(tried));
    here.certified = here.planned->bytes;
  } catch (const Error &error) {
    bool hasNoRoom = error.code() == ErrorCode::BudgetInfeasible || error.code() == ErrorCode::DeviceOom;
    if (hasAborted && !isTurn && isMoved && hasNoRoom && plannedFor == step && here.planned) {
      // Blocks lie anywhere then, and are moved where that is needed.
      services->follow(here.planned->profile, here.planned->plan, std::nullopt);
      return isFollowed();
    }
    if (isMoved) // what the plan in force counts on
      plannedFor.clear();
    if (error.code() == ErrorCode::DeviceOom && sealer)
      throw error.within(sealer->whatIsTaken());
    if (hasNoRoom && isTurn)
      throw error.within("other sessions of the device leave too little; end one, or give each a larger budget");
    throw;
  }
  if (options.log && (measured || (!plannedFor.empty() && plannedFor != step)))
    options.log("step " + std::to_string(this->step + 1) +
                (measured ? ": planned again, with the times that the last steps took"
                          : ": planned for batches of other extents or another number"));
  isFollowed();
}

uint64_t Session::certify(size_t microBatches) {
  SessionState &s = *state_;
  if (s.waiting || microBatches == 0)
    throw Error(s.waiting ? ErrorCode::StateTransition : ErrorCode::InvalidArgument,
                s.waiting ? "a step is certified before it begins, and " + std::to_string(s.waiting) +
                                " batches of one wait for optimize()"
                          : std::string("a step of no batches is none to certify"));
  SessionState::StepSizes step(microBatches, nullptr);
  s.planFor(step, {});
  std::optional<uint64_t> &certified = s.knownOf(step).certified;
  if (!certified)
    certified = certifyStep(s.services.get(), s.stepToPlan(step));
  s.certifiedFor = std::move(step);
  return *certified;
}

void SessionState::refuseTooSmall(const Error &error, const StepSizes &step,
                                    std::span<const TensorMap> batches) const {
  auto *memory = error.details<OutOfMemory::Report>();
  bool isTooSmall = memory ? memory->space == Space::DeviceDram : error.code() == ErrorCode::BudgetInfeasible;
  if (!isTooSmall || !plannedFor.empty() || options.isRehearsal || hasOwnSink() || !device->twin())
    return;
  uint64_t placed = bytesOn(*device, batches), own = placed, live = device->memory().liveBytes(Space::DeviceDram);
  TensorMap held = optimizerState;
  for (size_t slot = 0; slot < values.size(); ++slot)
    held[std::to_string(slot)] = values[slot];
  for (size_t slot = 0; loading && slot < loading->size(); ++slot)
    held["loading " + std::to_string(slot)] = (*loading)[slot];
  own += bytesOn(*device, std::span(&held, 1));
  StepToPlan next = stepToPlan(step.empty() ? StepSizes{nullptr} : step, batches);
  next.isBatchCountGuessed = step.empty();
  segue::refuseTooSmall(services.get(), next, live - std::min(live, own) + device->bytesForPrograms().value_or(0));
}

} // namespace segue::inline runtime
