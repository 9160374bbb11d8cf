//===- PlannedActivations.cpp - tensors leave by a plan -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/PlannedActivations.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

PlannedActivations::PlannedActivations(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan)
    : PlannedActivations(std::move(device)) {
  follow(profile, plan);
}

PlannedActivations::PlannedActivations(DeviceRef device) : device_(std::move(device)), residents_(device_) {}

void PlannedActivations::follow(const StepProfile &profile, const ResidencyPlan &plan) {
  stayAll();
  residents_.leaveAll();
  heldElsewhere_.clear();
  follower_.emplace(profile, plan);
  for (const ResidencyGap &gap : profile.gaps)
    plan_.residentOf.push_back(gap.resident);
  for (const ResidentUse &use : profile.uses)
    plan_.uses[{use.event, use.index}] = use.resident;
  plan_.homes.resize(profile.residents.size());
  for (const Resident &resident : profile.residents)
    plan_.isGradient.push_back(resident.role == Role::Gradient);
}

void PlannedActivations::stayAll() {
  forget();
  now_ = {};
  fetchesLater_ = false;
  follower_.reset();
  plan_ = {};
}

void PlannedActivations::advance(StepEvent::Kind kind, std::string_view label) {
  if (std::exchange(fetchesLater_, false))
    fetchReturns();
  now_ = {};
  if (follower_ && inStep_)
    now_ = follower_->next(kind, label);
}

void PlannedActivations::fetchReturns() {
  for (uint32_t gap : now_.returns) {
    if (uint32_t resident = plan_.residentOf[gap]; resident != noIndex) {
      if (auto home = plan_.homes[resident])
        residents_.fetch(*home);
    } else if (auto host = hostOfGap_.find(gap); host != hostOfGap_.end()) {
      if (auto found = away_.find(host->second); found != away_.end() && !found->second.device) {
        found->second.device = fetch(found->second);
        ++counts_.fetchedAhead;
      }
    }
  }
}

void PlannedActivations::onPhase(Phase phase) {
  if (phase == Phase::StepBegin) {
    forget();
    residents_.forgetUnheld(); // parameters that were replaced
    inStep_ = true;
    if (follower_)
      follower_->beginStep();
  }
  isOptimizing_ = phase == Phase::Optimizer;
  next(StepEvent::Kind::Phase, name(phase));
  if (phase == Phase::StepEnd) {
    inStep_ = false;
    residents_.leaveAgain();
  }
}

void PlannedActivations::forget() {
  away_.clear();
  hostOfGap_.clear();
  cursor_.reset();
  inStep_ = isOptimizing_ = fetchesLater_ = false;
  // Gradients of a step that was given up.
  for (size_t i = 0; i < plan_.homes.size(); ++i)
    if (auto &home = plan_.homes[i]; home && plan_.isGradient[i]) {
      residents_.forgetUnheld(*home);
      home.reset();
    }
}

//===----------------------------------------------------------------------===//
// Saved tensors
//===----------------------------------------------------------------------===//

Tensor PlannedActivations::fetch(Away &away) {
  if (!away.left.expired())
    heldElsewhere_.push_back(away.gap);
  TransferOptions options;
  options.owner = away.owner;
  options.checksum = away.checksum;
  options.isPlanned = true;
  return device_->transfer().toLayout(device_, away.host, away.there, options);
}

void PlannedActivations::onSave(const Program &program, uint32_t output, Tensor &saved) {
  advance(StepEvent::Kind::Save, program.outputs()[output].name);
  for (uint32_t gap : now_.leaves) {
    std::shared_ptr<TransferChecksum> checksum = checksCopies_ ? std::make_shared<TransferChecksum>() : nullptr;
    Tensor host = copyToHost(device_, saved, counts_.unpinned, checksum);
    if (host.storage() == saved.storage())
      continue; // the host's memory is the device's
    counts_.left += 1;
    counts_.leftBytes += saved.storage()->bytes();
    const Value &value = program.outputs()[output];
    OwnerId owner = device_->memory().intern({.program = program.name(),
                                              .value = value.name,
                                              .role = std::string(name(value.role)),
                                              .location = value.location});
    uint64_t id = host.storage()->id();
    away_[id] = {gap, host, Tensor(), saved.sharedDesc(), saved.storage(), checksum, owner};
    hostOfGap_[gap] = id;
    saved = std::move(host);
  }
  fetchesLater_ = true;
}

void PlannedActivations::onRestore(const Program &program, uint32_t input, Tensor &saved) {
  next(StepEvent::Kind::Restore, program.inputs()[input].name);
  auto found = away_.find(saved.storage()->id());
  if (found == away_.end())
    return;
  Away &away = found->second;
  if (!away.device) {
    away.device = fetch(away);
    ++counts_.fetchedLate;
  }
  saved = std::move(away.device);
  away_.erase(found);
}

//===----------------------------------------------------------------------===//
// Residents
//===----------------------------------------------------------------------===//

std::optional<uint32_t> PlannedActivations::residentAt(uint32_t index) const {
  if (!isPlanned())
    return std::nullopt;
  auto found = plan_.uses.find({follower_->lastEvent(), index});
  return found == plan_.uses.end() ? std::nullopt : std::optional(found->second);
}

bool PlannedActivations::leavesNow(uint32_t resident) const {
  return std::ranges::any_of(now_.leaves, [&](uint32_t gap) { return plan_.residentOf[gap] == resident; });
}

void PlannedActivations::onBlockBegin(const Program &program, std::string_view block) {
  cursor_.begin(program);
  next(StepEvent::Kind::BlockBegin, block);
}

bool PlannedActivations::brings(const Program &program, uint32_t input, const Tensor &value) const {
  Role role = program.inputs()[input].role;
  return residents_.isHome(value) && (bringsParameters_ || role == Role::Gradient || role == Role::State);
}

bool PlannedActivations::defersInput(const Program &program, uint32_t input, const Tensor &value) {
  brought_.clear();
  return brings(program, input, value);
}

void PlannedActivations::onBlockInput(const Program &program, uint32_t input, Tensor &value) {
  if (!brings(program, input, value))
    return;
  ResidentTensors::Id home = ResidentTensors::idOf(value);
  if (auto resident = residentAt(input))
    plan_.homes[*resident] = home;
  brought_[input] = home;
  // An optimizer that lacks one of them halfway would leave a step half done.
  value = residents_.bring(value, program.inputs()[input], cursor_.usesOf(program).written[input],
                           /*mustArrive=*/isOptimizing_);
}

void PlannedActivations::onBlockEnd(const Program &program) {
  const BlockUses &uses = cursor_.usesOf(program);
  size_t block = cursor_.end(program);
  advance(StepEvent::Kind::BlockEnd, "");
  if (isPlanned())
    for (uint32_t gap : now_.leaves)
      if (uint32_t resident = plan_.residentOf[gap]; resident != noIndex && plan_.homes[resident])
        residents_.leave(*plan_.homes[resident]);
  for (uint32_t input : uses.blocks[block].lastTouched) {
    auto found = brought_.find(input);
    if (found == brought_.end())
      continue;
    if (follower_ && !isPlanned())
      residents_.leave(found->second);
    if (program.inputs()[input].role == Role::Gradient)
      residents_.forgetUnheld(found->second);
  }
  fetchReturns();
}

void PlannedActivations::onOutput(const Program &program, uint32_t output, Tensor &value) {
  advance(StepEvent::Kind::Output, program.outputs()[output].name);
  sendHome(value);
  fetchesLater_ = true;
}

void PlannedActivations::sendHome(Tensor &value) {
  auto resident = residentAt(0);
  if (!resident || !leavesNow(*resident))
    return;
  value = residents_.sendHome(value);
  plan_.homes[*resident] = ResidentTensors::idOf(value);
}

void PlannedActivations::onAccumulate(Tensor &sum, Tensor &gradient) {
  next(StepEvent::Kind::Accumulate, "");
  for (Tensor *tensor : {&sum, &gradient})
    if (residents_.isHome(*tensor))
      *tensor = residents_.take(ResidentTensors::idOf(*tensor));
}

void PlannedActivations::onAccumulated(Tensor &sum) {
  advance(StepEvent::Kind::Accumulated, "");
  sendHome(sum);
  fetchReturns();
}

} // namespace segue::inline runtime
