//===- StepRecorder.cpp - what a step does to a device's memory -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/StepRecorder.h"
#include "segue/runtime/Error.h"
#include <utility>

namespace segue::inline runtime {

/// Of a gap that is none: it leaves after everything.
static constexpr uint32_t never = UINT32_MAX;

void StepRecorder::closeEvent() {
  // The host's clock stands still but for waiting: the time since the event is
  // that of the work submitted since.
  device_.wait(Fence(Queue::Compute, device_.position(Queue::Compute)));
  double now = device_.seconds();
  if (!profile_.events.empty()) {
    profile_.events.back().peakBytes = device_.memory().peakBytes(Space::DeviceDram);
    profile_.events.back().seconds = now - eventBegan_;
  }
  eventBegan_ = now;
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

void StepRecorder::onPhase(Phase phase) {
  if (phase == Phase::StepBegin) {
    profile_ = {};
    open_.clear();
    blocks_.clear();
  }
  phase_ = phase;
  record(StepEvent::Kind::Phase, name(phase));
}

void StepRecorder::onBlockBegin(const Program &, std::string_view block) {
  blocks_.emplace_back(block);
  record(StepEvent::Kind::BlockBegin, block);
}

void StepRecorder::onBlockEnd(const Program &) {
  if (!blocks_.empty())
    blocks_.pop_back();
  record(StepEvent::Kind::BlockEnd, "");
}

void StepRecorder::onSave(const Program &program, uint32_t output, Tensor &saved) {
  const Value &value = program.outputs()[output];
  uint32_t event = record(StepEvent::Kind::Save, value.name);
  const Storage &storage = *saved.storage();
  // A storage that is saved twice stays: the first handle of it is given out.
  auto [entry, isNew] = open_.try_emplace(storage.id(), profile_.gaps.size());
  if (!isNew) {
    profile_.gaps[entry->second].leaves = never;
    return;
  }
  uint64_t bytes = device_.takenBytes(storage.space(), storage.bytes(), saved.desc().layout.alignment);
  profile_.gaps.push_back({.tensor = program.name() + "." + value.name,
                           .block = blocks_.empty() ? "" : blocks_.back(),
                           .location = value.location,
                           .bytes = bytes,
                           .outBytes = storage.bytes(),
                           .inBytes = storage.bytes(),
                           .leaves = event});
}

void StepRecorder::onRestore(const Program &program, uint32_t input, Tensor &saved) {
  uint32_t event = record(StepEvent::Kind::Restore, program.inputs()[input].name);
  auto entry = open_.find(saved.storage()->id());
  if (entry == open_.end())
    return; // read a second time
  profile_.gaps[entry->second].needed = event;
  open_.erase(entry);
}

StepProfile StepRecorder::takeProfile(const LinkSpeed &link) {
  closeEvent();
  if (profile_.events.empty())
    throw Error(ErrorCode::InvalidArgument, "no step was recorded: the session must enter STEP_BEGIN");
  profile_.link = link;
  // What cannot leave, or is never read again, is not a gap.
  std::erase_if(profile_.gaps, [](const ResidencyGap &gap) { return gap.needed <= gap.leaves; });
  open_.clear();
  return std::exchange(profile_, {});
}

} // namespace segue::inline runtime
