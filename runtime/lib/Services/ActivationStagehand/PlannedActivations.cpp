//===- PlannedActivations.cpp - saved tensors leave by a plan -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/PlannedActivations.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

PlannedActivations::PlannedActivations(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan)
    : device_(std::move(device)), follower_(profile, plan) {}

void PlannedActivations::follow(StepEvent::Kind kind, std::string_view label) {
  now_ = follower_.next(kind, label);
  for (uint32_t gap : now_.returns)
    if (auto found = away_.find(gap); found != away_.end() && !found->second.device) {
      found->second.device = fetch(gap, found->second);
      ++counts_.fetchedAhead;
    }
}

void PlannedActivations::onPhase(Phase phase) {
  if (phase == Phase::StepBegin) {
    follower_.beginStep();
    forget();
  }
  follow(StepEvent::Kind::Phase, name(phase));
}

void PlannedActivations::forget() {
  away_.clear();
  gapOfHost_.clear();
}

void PlannedActivations::onBlockBegin(const Program &, std::string_view block) {
  follow(StepEvent::Kind::BlockBegin, block);
}

void PlannedActivations::onBlockEnd(const Program &) { follow(StepEvent::Kind::BlockEnd, ""); }

Tensor PlannedActivations::toHost(const Tensor &saved) {
  auto there = std::make_shared<TensorDesc>(saved.desc());
  there->layout.space = Space::HostPinned;
  TransferOptions options;
  options.priority = TransferPriority::Required;
  try {
    return device_->transfer().toLayout(device_, saved, there, options);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
  }
  ++counts_.unpinned;
  there = std::make_shared<TensorDesc>(*there);
  there->layout.space = Space::Host;
  return device_->transfer().toLayout(device_, saved, there, options);
}

Tensor PlannedActivations::fetch(uint32_t gap, Away &away) {
  if (!away.left.expired())
    heldElsewhere_.push_back(gap);
  return device_->transfer().toLayout(device_, away.host, away.there);
}

void PlannedActivations::onSave(const Program &program, uint32_t output, Tensor &saved) {
  follow(StepEvent::Kind::Save, program.outputs()[output].name);
  for (uint32_t gap : now_.leaves) {
    Tensor host = toHost(saved);
    if (host.storage() == saved.storage())
      return; // the host's memory is the device's
    counts_.left += 1;
    counts_.leftBytes += saved.storage()->bytes();
    away_[gap] = {host, Tensor(), saved.sharedDesc(), saved.storage()};
    gapOfHost_[host.storage()->id()] = gap;
    saved = std::move(host);
  }
}

void PlannedActivations::onRestore(const Program &program, uint32_t input, Tensor &saved) {
  follow(StepEvent::Kind::Restore, program.inputs()[input].name);
  auto gap = gapOfHost_.find(saved.storage()->id());
  if (gap == gapOfHost_.end())
    return;
  auto found = away_.find(gap->second);
  if (!found->second.device) {
    found->second.device = fetch(gap->second, found->second);
    ++counts_.fetchedLate;
  }
  saved = std::move(found->second.device);
  away_.erase(found);
  gapOfHost_.erase(gap);
}

} // namespace segue::inline runtime
