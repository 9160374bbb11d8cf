//===- StepRecorder.cpp - what a step does to a device's memory -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/StepRecorder.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <utility>

namespace segue::inline runtime {

/// Marks a gap that is none: it leaves after everything.
static constexpr uint32_t never = UINT32_MAX;

void StepRecorder::closeEvent() {
  // The host's clock stands still but for waiting: the time since the event is
  // that of the work submitted since.
  device_.wait(Fence(Queue::Compute, device_.position(Queue::Compute)));
  double now = device_.seconds();
  uint64_t queued = device_.transfer().counters().h2dBytes;
  if (!profile_.events.empty()) {
    profile_.events.back().peakBytes = device_.memory().peakBytes(Space::DeviceDram);
    profile_.events.back().seconds = now - eventBegan_;
    profile_.events.back().h2dBytes = queued - h2dBegan_;
  }
  eventBegan_ = now;
  h2dBegan_ = queued;
  device_.memory().resetPeak();
}

uint32_t StepRecorder::record(StepEvent::Kind kind, std::string_view label) {
  closeEvent();
  profile_.events.push_back({.kind = kind,
                             .phase = phase_,
                             .label = std::string(label),
                             .liveBytes = device_.memory().liveBytes(Space::DeviceDram)});
  return uint32_t(profile_.events.size() - 1);
}

void StepRecorder::receive(const Event &event) { deliver(*this, event); }

void StepRecorder::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    profile_ = {};
    open_.clear();
    shared_.clear();
    blocks_.clear();
    cursor_.reset();
    tracks_.clear();
    residents_.clear();
    carried_.clear();
    inUse_.clear();
    broughtByTarget_.clear();
  }
  phase_ = begin.phase;
  record(StepEvent::Kind::Phase, name(begin.phase));
  forward(begin);
}

void StepRecorder::on(const event::BlockBegin &begin) {
  const auto &[program, block] = begin;
  cursor_.begin(program);
  blocks_.emplace_back(block);
  record(StepEvent::Kind::BlockBegin, block);
  forward(begin);
}

void StepRecorder::on(const event::BlockEnd &end) {
  const BlockUses &uses = cursor_.usesOf(end.program);
  size_t block = cursor_.end(end.program);
  if (!blocks_.empty())
    blocks_.pop_back();
  uint32_t event = record(StepEvent::Kind::BlockEnd, "");
  for (uint32_t input : uses.blocks[block].lastTouched)
    if (auto found = inUse_.find(input); found != inUse_.end()) {
      Track &track = tracks_[found->second];
      track.leaves = event;
      track.isChanged |= uses.written[input];
    }
  forward(end);
}

//===----------------------------------------------------------------------===//
// Saved tensors
//===----------------------------------------------------------------------===//

void StepRecorder::on(const event::Save &save) {
  const auto &[program, output, saved] = save;
  const Value &value = program.outputs()[output];
  uint32_t event = record(StepEvent::Kind::Save, value.name);
  const Storage &storage = *saved.storage();
  // A storage that is saved twice stays: the first handle of it is given out.
  auto [entry, isNew] = open_.try_emplace(storage.id(), profile_.gaps.size());
  if (!isNew) {
    ResidencyGap &gap = profile_.gaps[entry->second];
    if (gap.leaves != never) {
      shared_[storage.id()] = profile_.sharedSaves.size();
      profile_.sharedSaves.push_back({.bytes = gap.bytes, .saved = gap.leaves});
    }
    gap.leaves = never;
    return forward(save);
  }
  uint64_t bytes = device_.takenBytes(storage.space(), storage.bytes(), saved.desc().layout.alignment);
  profile_.gaps.push_back({.tensor = program.name() + "." + value.name,
                           .block = blocks_.empty() ? "" : blocks_.back(),
                           .location = value.location,
                           .bytes = bytes,
                           .outBytes = storage.bytes(),
                           .inBytes = storage.bytes(),
                           .leaves = event});
  forward(save);
}

void StepRecorder::on(const event::Restore &restore) {
  const auto &[program, input, saved] = restore;
  uint32_t event = record(StepEvent::Kind::Restore, program.inputs()[input].name);
  if (auto shared = shared_.find(saved.storage()->id()); shared != shared_.end())
    profile_.sharedSaves[shared->second].needed = event;
  auto entry = open_.find(saved.storage()->id());
  if (entry != open_.end()) { // otherwise it is read a second time
    profile_.gaps[entry->second].needed = event;
    open_.erase(entry);
  }
  forward(restore);
}

//===----------------------------------------------------------------------===//
// Residents
//===----------------------------------------------------------------------===//

/// Returns the resident that a tensor is. `value` is what the program calls it, for one that is seen first.
uint32_t StepRecorder::residentOf(const Tensor &tensor, const Value *value) {
  const Storage &storage = *tensor.storage();
  auto [entry, isNew] = residents_.try_emplace(storage.id(), uint32_t(tracks_.size()));
  if (isNew) {
    uint64_t taken = device_.takenBytes(Space::DeviceDram, storage.bytes(), tensor.desc().layout.alignment);
    profile_.residents.push_back({value ? value->name : "", value ? value->role : Role::Gradient, taken});
    bool isOnDisk = device_.diskLink() && storage.space() == Space::Disk;
    tracks_.push_back({.isOnDisk = isOnDisk,
                       .block = blocks_.empty() ? "" : blocks_.back(),
                       .location = value ? value->location : "",
                       .bytes = tensor.desc().spanBytes(),
                       .taken = taken});
  }
  return entry->second;
}

void StepRecorder::addGap(uint32_t resident, uint32_t needed, uint64_t outBytes) {
  const Track &track = tracks_[resident];
  profile_.gaps.push_back({.tensor = profile_.residents[resident].name,
                           .block = track.block,
                           .location = track.location,
                           .bytes = track.taken,
                           .outBytes = outBytes,
                           .inBytes = track.bytes,
                           .leaves = track.leaves,
                           .needed = needed,
                           .resident = resident,
                           .isOnDisk = track.isOnDisk && profile_.residents[resident].role != Role::Gradient});
}

/// Notes that a resident is needed at the last event.
void StepRecorder::use(uint32_t resident, uint32_t index) {
  Track &track = tracks_[resident];
  uint32_t event = lastEvent();
  profile_.uses.push_back({event, index, resident});
  if (track.firstUse == noIndex)
    track.firstUse = event;
  if (track.leaves == noIndex)
    return;
  // The host has the bytes of what left before and was not changed.
  bool isOnHost = !track.isChanged;
  if (track.leaves < event) {
    track.gaps.push_back(profile_.gaps.size());
    addGap(resident, event, isOnHost ? 0 : track.bytes);
    track.isChanged = false;
  }
  track.leaves = noIndex;
}

void StepRecorder::on(const event::OfferInput &offer) {
  if (!target)
    return;
  inUse_.clear();
  bool isBrought = false;
  forward(event::OfferInput{offer.program, offer.input, offer.value, isBrought});
  if (isBrought)
    broughtByTarget_.insert({offer.program.image().get(), offer.program.index(), offer.input});
  offer.isDeferred = true;
}

void StepRecorder::on(const event::BlockInput &need) {
  const auto &[program, input, value] = need;
  bool isBrought = broughtByTarget_.erase({program.image().get(), program.index(), input}) > 0;
  const Value &read = program.inputs()[input];
  bool isCarried = read.role == Role::Gradient && phase_ == Phase::Forward; // of the step before
  // A tensor that lives on the device stays there, as gradients do where nothing leaves.
  // One that came by no event of an output cannot leave.
  if (isBrought || isCarried || (read.role == Role::Gradient && residents_.contains(value.storage()->id()))) {
    uint32_t resident = residentOf(value, &read);
    if (isCarried)
      carried_[{program.image().get(), read.of}] = resident;
    inUse_[input] = resident;
    use(resident, input);
  }
  if (isBrought)
    forward(need);
}

void StepRecorder::on(const event::Output &made) {
  const auto &[program, output, value] = made;
  if (!target)
    return;
  record(StepEvent::Kind::Output, program.outputs()[output].name);
  // The gradient that the next forward reads has the place of the one that this forward has read.
  if (auto carried = carried_.extract({program.image().get(), program.outputs()[output].of}); !carried.empty()) {
    residents_[value.storage()->id()] = carried.mapped();
    tracks_[carried.mapped()].isCarried = true;
    tracks_[carried.mapped()].leaves = noIndex; // there was none until now
  }
  uint32_t resident = residentOf(value, &program.outputs()[output]);
  use(resident, 0);
  tracks_[resident].leaves = lastEvent();
  tracks_[resident].isChanged = true;
  forward(made);
}

void StepRecorder::on(const event::Accumulate &addition) {
  const auto &[sum, gradient] = addition;
  if (!target)
    return;
  record(StepEvent::Kind::Accumulate, "");
  summed_ = residentOf(sum, nullptr);
  use(*summed_, 0);
  use(residentOf(gradient, nullptr), 1);
  forward(addition);
}

void StepRecorder::on(const event::Accumulated &addition) {
  if (!target)
    return;
  uint32_t event = record(StepEvent::Kind::Accumulated, "");
  residents_[addition.sum.storage()->id()] = *summed_;
  profile_.uses.push_back({event, 0, *summed_});
  tracks_[*summed_].leaves = event;
  tracks_[*summed_].isChanged = true;
  forward(addition);
}

StepProfile StepRecorder::takeProfile(const LinkSpeed &link) {
  closeEvent();
  if (profile_.events.empty())
    throw Error(ErrorCode::InvalidArgument, "no step was recorded: the session must enter STEP_BEGIN");
  profile_.link = link;
  if (auto disk = device_.diskLink()) {
    const TransferEngine &engine = device_.transfer();
    profile_.below = {*disk, engine.roomToKeep(), engine.passingBytes()};
  }
  // What outlives the step may be away around its end; where its bytes are the
  // host's before the first use, they are so until somebody writes them.
  for (uint32_t resident = 0; resident < tracks_.size(); ++resident) {
    const Track &track = tracks_[resident];
    bool isGradient = profile_.residents[resident].role == Role::Gradient;
    if ((isGradient && !track.isCarried) || track.leaves == noIndex)
      continue;
    uint32_t around = uint32_t(profile_.gaps.size());
    if (isGradient) { // it has a home only once it has left where it was made
      bool isMade = profile_.events[track.leaves].kind != StepEvent::Kind::BlockEnd;
      if (!isMade && track.gaps.empty())
        continue;
      addGap(resident, track.firstUse, isMade ? track.bytes : 0);
      if (!isMade)
        profile_.gaps[around].with = uint32_t(track.gaps.back());
      continue;
    }
    addGap(resident, track.firstUse, track.isChanged ? track.bytes : 0);
    for (size_t gap : track.gaps)
      profile_.gaps[gap].with = around;
  }
  // A gradient that did not leave the first time is not on the host later.
  for (const Track &track : tracks_)
    for (size_t i = 1; i < track.gaps.size(); ++i)
      if (ResidencyGap &gap = profile_.gaps[track.gaps[i]]; gap.with == noIndex && !gap.outBytes)
        gap.with = uint32_t(track.gaps[i - 1]);
  // A tensor that cannot leave, or is never read again, has no gap.
  std::vector<uint32_t> none;
  for (uint32_t i = 0; i < profile_.gaps.size(); ++i)
    if (const ResidencyGap &gap = profile_.gaps[i]; gap.resident == noIndex && gap.needed <= gap.leaves)
      none.push_back(i);
  removeGaps(profile_, none);
  open_.clear();
  shared_.clear();
  return std::exchange(profile_, {});
}

} // namespace segue::inline runtime
