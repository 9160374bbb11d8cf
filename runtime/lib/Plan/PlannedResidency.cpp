//===- PlannedResidency.cpp - tensors leave by a plan -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/PlannedResidency.h"
#include "../Replay/Recorded.h"
#include "segue/runtime/Plan/PlanCalls.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

PlannedResidency::PlannedResidency(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan)
    : PlannedResidency(std::move(device)) {
  follow(profile, plan);
}

PlannedResidency::PlannedResidency(DeviceRef device)
    : device_(std::move(device)), residency_(device_), remakes_(device_, residency_),
      blocks_(device_, residency_) {
  roomMaker_ = device_->memory().addRoomMaker("planned residency", 0, [this](Space space, uint64_t wanted) {
    return space == Space::DeviceDram ? makeRoom(wanted) : 0;
  });
}

/// Has all leave that another session's plan finds in its way, newest values that the device alone has included.
uint64_t PlannedResidency::makeRoom(uint64_t wanted) {
  if (inStep_ || hasItsAddresses() || !device_->hasBytes())
    return residency_.makeRoom(wanted);
  uint64_t before = device_->memory().liveBytes(Space::DeviceDram);
  residency_.leaveAll();
  residency_.settle();
  return before - std::min(before, device_->memory().liveBytes(Space::DeviceDram));
}

void PlannedResidency::setAddressPlan(uint64_t number) {
  addressPlan_ = number;
  residency_.setPlaced(number != 0);
}

void PlannedResidency::follow(const StepProfile &profile, const ResidencyPlan &plan) {
  stayAll();
  residency_.leaveAll();
  heldElsewhere_.clear();
  bool isFirst = openLog_ && !log_;
  if (isFirst) {
    EventWriter head;
    PlanOfStep followed{profile, plan};
    visitFields(head, followed);
    log_ = openLog_(head.take());
  }
  follower_ = std::make_unique<Recorded<LoggedPlan>>(log_, profile, plan);
  if (log_ && !isFirst)
    follower_->note(plan_calls::plan, PlanOfStep{profile, plan});
  for (const ResidencyGap &gap : profile.gaps)
    plan_.residentOf.push_back(gap.resident);
  for (const ResidentUse &use : profile.uses)
    plan_.uses[{use.event, use.index}] = use.resident;
  plan_.items.resize(profile.residents.size());
  plan_.remakes = plan.isRemaking;
  for (const Resident &resident : profile.residents) {
    plan_.names.push_back(resident.name);
    plan_.isGradient.push_back(resident.role == Role::Gradient);
  }
}

PlannedResidency::~PlannedResidency() = default;

const PlanFollower &PlannedResidency::follower() const { return **follower_; }

bool PlannedResidency::isPlanned() const { return follower_ && inStep_ && !follower().hasDiverged(); }

bool PlannedResidency::hasDeparted() const { return follower_ && follower().hasDiverged(); }

void PlannedResidency::beginAgain() {
  residency_.leaveAll();
  residency_.settle();
  std::ranges::fill(plan_.items, std::nullopt); // what is known is fetched ahead
}

void PlannedResidency::stayAll() {
  forget();
  now_ = {};
  fetchesLater_ = false;
  follower_.reset();
  plan_ = {};
}

void PlannedResidency::advance(StepEvent::Kind kind, std::string_view label) {
  residency_.poll();
  if (std::exchange(fetchesLater_, false))
    fetchReturns();
  now_ = {};
  if (follower_ && inStep_)
    now_ = follower_->tell(plan_calls::event, kind, label);
}

Item *PlannedResidency::residentItem(uint32_t resident) {
  std::optional<Item::Id> id = plan_.items[resident];
  return id ? residency_.find(*id) : nullptr;
}

void PlannedResidency::fetchReturns() {
  for (uint32_t gap : now_.returns) {
    if (uint32_t resident = plan_.residentOf[gap]; resident != noIndex) {
      if (Item *item = residentItem(resident))
        residency_.fetch(*item);
    } else if (auto id = itemOfGap_.find(gap); id != itemOfGap_.end()) {
      Item *item = residency_.find(id->second);
      if (!item || (item->device().exists() && item->device().state != CopyState::Leaving))
        continue;
      noteHeldElsewhere(away_[item->id]);
      residency_.fetch(*item);
      ++counts_.fetchedAhead;
    }
  }
}

void PlannedResidency::receive(const Event &event) { deliver(*this, event); }

void PlannedResidency::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    forget();
    residency_.forgetUnheld(); // parameters that were replaced
    inStep_ = true;
    if (follower_)
      follower_->tell(plan_calls::beginStep);
  }
  blocks_.beginPhase(begin.phase);
  advance(StepEvent::Kind::Phase, name(begin.phase));
  // The batch comes between the first event and the second. Behind all that returns early, it
  // would hold up the step.
  if (begin.phase == Phase::StepBegin)
    fetchesLater_ = true;
  else
    fetchReturns();
  if (begin.phase == Phase::StepEnd) {
    inStep_ = false;
    remakes_.forget();
    residency_.leaveKept();
    if (follower_)
      follower_->flush();
  }
}

void PlannedResidency::forget() {
  residency_.forgetStep();
  remakes_.forget();
  away_.clear();
  itemOfGap_.clear();
  blocks_.reset();
  inStep_ = fetchesLater_ = false;
  // Gradients of a step that was given up go; those that somebody holds wait for the next forward.
  for (uint32_t i = 0; i < plan_.items.size(); ++i)
    if (plan_.items[i] && plan_.isGradient[i]) {
      Item *item = residentItem(i);
      if (item && !item->host().tensor.isSoleOwner())
        continue;
      if (item)
        residency_.forget(*item);
      plan_.items[i].reset();
    }
}

//===----------------------------------------------------------------------===//
// Saved tensors
//===----------------------------------------------------------------------===//

void PlannedResidency::noteHeldElsewhere(const Away &away) {
  if (!device_->hasBytes() && !away.left.expired()) // with bytes, the item itself may hold them still
    heldElsewhere_.push_back(away.gap);
}

void PlannedResidency::on(const event::Submit &submit) {
  if (knowsSaves())
    remakes_.onSubmit(submit.program, submit.inputs);
}

void PlannedResidency::on(const event::Save &save) {
  const auto &[program, output, saved] = save;
  advance(StepEvent::Kind::Save, program.outputs()[output].name);
  if (knowsSaves())
    remakes_.onSave(program, output, saved);
  if (!now_.drops.empty() && remakes_.drop(saved))
    ++counts_.dropped;
  for (uint32_t gap : now_.leaves) {
    const Value &value = program.outputs()[output];
    OwnerId owner = device_->memory().intern({.program = program.name(),
                                              .value = value.name,
                                              .role = std::string(name(value.role)),
                                              .location = value.location});
    std::weak_ptr<Storage> left = saved.storage();
    uint64_t bytes = saved.storage()->bytes(), unpinned = residency_.counts().unpinned;
    Item &item = residency_.hold(saved, value.name, owner, ItemLifetime::Step);
    saved = Tensor(); // what leaves is the item's alone
    if (!residency_.leave(item)) {
      saved = residency_.take(item); // the host's memory is the device's
      continue;
    }
    counts_.left += 1;
    counts_.leftBytes += bytes;
    counts_.unpinned += residency_.counts().unpinned - unpinned;
    away_[item.id] = {gap, item.id, std::move(left)};
    itemOfGap_[gap] = item.id;
    saved = item.host().tensor;
    if (knowsSaves())
      remakes_.onLeft(program, output, item);
  }
  fetchesLater_ = true;
}

void PlannedResidency::on(const event::Restore &restore) {
  const auto &[program, input, saved] = restore;
  next(StepEvent::Kind::Restore, program.inputs()[input].name);
  Tensor given = saved;
  if (remakes_.isDropped(given)) {
    saved = remakes_.make(given);
    remakes_.onRestore(given, saved);
    ++counts_.remade;
    return;
  }
  Item *item = residency_.findHome(saved);
  auto found = item ? away_.find(item->id) : away_.end();
  if (found == away_.end())
    return;
  if (!item->device().exists() || (item->device().state == CopyState::Leaving)) {
    noteHeldElsewhere(found->second);
    ++counts_.fetchedLate;
  }
  away_.erase(found);
  residency_.fetch(*item);
  counts_.rescued += item->isRescued();
  saved = residency_.take(*item);
  remakes_.onRestore(given, saved);
}

//===----------------------------------------------------------------------===//
// Residents
//===----------------------------------------------------------------------===//

std::optional<uint32_t> PlannedResidency::residentAt(uint32_t index) const {
  if (!isPlanned())
    return std::nullopt;
  auto found = plan_.uses.find({follower().lastEvent(), index});
  return found == plan_.uses.end() ? std::nullopt : std::optional(found->second);
}

bool PlannedResidency::leavesNow(uint32_t resident) const {
  return std::ranges::any_of(now_.leaves, [&](uint32_t gap) { return plan_.residentOf[gap] == resident; });
}

void PlannedResidency::on(const event::BlockBegin &begin) {
  blocks_.begin(begin);
  next(StepEvent::Kind::BlockBegin, begin.block);
}

void PlannedResidency::on(const event::OfferInput &offer) { blocks_.offer(offer); }

void PlannedResidency::on(const event::BlockInput &need) {
  Item *item = blocks_.find(need);
  if (!item)
    return;
  if (auto resident = residentAt(need.input))
    plan_.items[*resident] = item->id;
  blocks_.bring(need, *item);
}

void PlannedResidency::on(const event::BlockEnd &end) {
  std::span<const BlockItems::Touched> touched = blocks_.end(end);
  advance(StepEvent::Kind::BlockEnd, "");
  if (isPlanned())
    for (uint32_t gap : now_.leaves)
      if (uint32_t resident = plan_.residentOf[gap]; resident != noIndex)
        if (Item *item = residentItem(resident))
          residency_.leave(*item);
  for (auto [input, id] : touched) {
    Item *item = residency_.find(id);
    if (!item)
      continue;
    if (follower_ && !isPlanned())
      residency_.leave(*item);
    if (end.program.inputs()[input].role == Role::Gradient && item->host().tensor.isSoleOwner())
      residency_.forget(*item);
  }
  fetchReturns();
}

void PlannedResidency::on(const event::Output &made) {
  const auto &[program, output, value] = made;
  advance(StepEvent::Kind::Output, program.outputs()[output].name);
  sendHome(value);
  fetchesLater_ = true;
}

void PlannedResidency::sendHome(Tensor &value) {
  auto resident = residentAt(0);
  if (!resident || !leavesNow(*resident))
    return;
  // The home of a gradient that has none yet.
  const std::string &name = plan_.names[*resident];
  OwnerId owner = device_->memory().intern({.value = name, .role = std::string(runtime::name(Role::Gradient))});
  Item &item = residency_.hold(value, name, owner, ItemLifetime::Session);
  value = Tensor();
  if (!residency_.leave(item)) {
    value = residency_.take(item);
    return;
  }
  value = item.host().tensor;
  plan_.items[*resident] = item.id;
}

void PlannedResidency::on(const event::Accumulate &addition) {
  next(StepEvent::Kind::Accumulate, "");
  blocks_.take(addition);
}

void PlannedResidency::on(const event::Accumulated &addition) {
  advance(StepEvent::Kind::Accumulated, "");
  sendHome(addition.sum);
  fetchReturns();
}

} // namespace segue::inline runtime
