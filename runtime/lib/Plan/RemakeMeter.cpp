//===- RemakeMeter.cpp - what computing saved tensors again takes ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/RemakeMeter.h"
#include "LinkTimes.h"
#include "segue/runtime/Error.h"
#include <utility>

namespace segue::inline runtime {

/// A run that takes longer than the link by this factor is not measured: preparing a
/// program costs milliseconds, and no plan would choose it.
static constexpr double beatenBy = 4;

RemakeMeter::RemakeMeter(Device &device, PlannedRemakes &remakes, StepProfile &profile)
    : device_(device), remakes_(remakes), profile_(profile) {
  for (uint32_t gap = 0; gap < profile.gaps.size(); ++gap)
    if (profile.gaps[gap].resident == noIndex)
      gapAt_[profile.gaps[gap].leaves] = gap;
  for (uint32_t event = 0; event < profile.events.size(); ++event) {
    if (profile.events[event].kind == StepEvent::Kind::Save)
      saves_.push_back(event);
    if (profile.events[event].kind == StepEvent::Kind::BlockBegin)
      begins_.push_back(event);
  }
  for (const ResidentUse &use : profile.uses)
    uses_[{use.event, use.index}] = use.resident;
}

double RemakeMeter::now() {
  device_.wait(Fence(Queue::Compute, device_.position(Queue::Compute)));
  return device_.seconds();
}

void RemakeMeter::receive(const Event &event) { deliver(*this, event); }

void RemakeMeter::on(const event::Submit &submit) {
  forward(submit);
  if (!isForward_)
    return;
  double begins = now();
  seconds_ += cost_ > 0 ? begins - submitted_ : 0;
  submitted_ = begins;
  cost_ += relativeCost(submit.program);
}

void RemakeMeter::on(const event::Save &save) {
  forward(save);
  auto gap = saved_ < saves_.size() ? gapAt_.find(saves_[saved_++]) : gapAt_.end();
  if (std::optional<SavedPlace> place = remakes_.placeOf(save.saved); place && gap != gapAt_.end())
    gaps_[*place] = gap->second;
}

void RemakeMeter::on(const event::BlockBegin &begin) {
  ++begun_;
  forward(begin);
}

void RemakeMeter::on(const event::BlockInput &need) {
  if (begun_ && begun_ <= begins_.size())
    if (auto use = uses_.find({begins_[begun_ - 1], need.input}); use != uses_.end())
      residents_[need.value.storage()->id()] = use->second;
  forward(need);
}

bool RemakeMeter::isBeaten(const Recomputation &again, const ResidencyGap &gap) {
  double link = outSeconds(gap, profile_.link) + inSeconds(gap, profile_.link);
  return cost_ > 0 && again.cost / cost_ * seconds_ > beatenBy * link;
}

RemakeMeter::Run RemakeMeter::measure(SavedPlace place) {
  Run run;
  run.sources = remakes_.recomputer().sourcesOf(place);
  DeviceMemory &memory = device_.memory();
  uint64_t before = memory.liveBytes(Space::DeviceDram);
  memory.resetPeak();
  double begins = now();
  try {
    for (const Tensor &weight : remakes_.recomputer().weightsOf(place))
      if (auto resident = residents_.find(weight.storage()->id()); resident != residents_.end())
        run.remake.residents.push_back(resident->second);
    remakes_.run(place);
  } catch (const Error &) { // not there when it is needed: it has to stay or to leave
    return run;
  }
  run.remake.seconds = now() - begins;
  run.remake.bytes = memory.peakBytes(Space::DeviceDram) - before;
  run.isGood = memory.liveBytes(Space::DeviceDram) == before;
  return run;
}

void RemakeMeter::on(const event::Restore &restore) {
  if (std::exchange(isForward_, false))
    seconds_ += now() - submitted_;
  std::optional<SavedPlace> place = remakes_.placeOf(restore.saved);
  if (auto gap = place ? gaps_.find(*place) : gaps_.end(); gap != gaps_.end() && ++restores_[gap->second] == 1) {
    const Recomputation *again = remakes_.recomputer().find(*place);
    if (again && !again->hasConstants && !isBeaten(*again, profile_.gaps[gap->second])) {
      RunKey key{place->submit, again->program.index()};
      runOf_[gap->second] = key;
      if (!runs_.contains(key))
        runs_[key] = measure(*place);
    }
  }
  forward(restore);
}

void RemakeMeter::finish() {
  std::map<RunKey, uint32_t> indices;
  for (const auto &[gap, key] : runOf_) {
    Run &run = runs_[key];
    if (!run.isGood || restores_[gap] != 1)
      continue;
    auto [index, isNew] = indices.try_emplace(key, uint32_t(profile_.remakes.size()));
    if (isNew) {
      for (SavedPlace source : run.sources)
        if (auto found = gaps_.find(source); found != gaps_.end())
          run.remake.gaps.push_back(found->second);
      profile_.remakes.push_back(std::move(run.remake));
    }
    profile_.gaps[gap].remake = index->second;
  }
}

} // namespace segue::inline runtime
