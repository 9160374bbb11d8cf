//===- RemakeMeter.cpp - what computing saved tensors again takes ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/RemakeMeter.h"
#include "LinkTimes.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

/// A run that takes longer than the link by this factor is not measured: preparing a
/// program costs milliseconds, and no plan would choose it.
static constexpr double beatenBy = 4;

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
  std::optional<SavedPlace> place = remakes_.placeOf(save.saved);
  if (place)
    numbers_[*place] = saved_.size();
  saved_.push_back(place ? std::optional(Saved{*place}) : std::nullopt);
}

void RemakeMeter::on(const event::BlockBegin &begin) {
  ++begun_;
  forward(begin);
}

void RemakeMeter::on(const event::BlockInput &need) {
  if (begun_)
    homes_[need.value.storage()->id()] = {begun_ - 1, need.input};
  forward(need);
}

bool RemakeMeter::isBeaten(const Recomputation &again, uint64_t bytes) {
  double link = linkSeconds(bytes, link_.d2hBytesPerSecond, link_.latencySeconds) +
                linkSeconds(bytes, link_.h2dBytesPerSecond, link_.latencySeconds);
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
      run.homes.push_back(weight.storage()->id());
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
  auto number = place ? numbers_.find(*place) : numbers_.end();
  if (number != numbers_.end()) {
    Saved &saved = *saved_[number->second];
    const Recomputer &recomputer = remakes_.recomputer();
    const Recomputation *again = recomputer.canDrop(*place) ? recomputer.find(*place) : nullptr;
    if (++saved.restores == 1 && again && !again->hasConstants && !isBeaten(*again, restore.saved.storage()->bytes())) {
      saved.run = {place->submit, again->program.index()};
      saved.hasSources = remakes_.hasSources(*place);
      if (!runs_.contains(*saved.run))
        runs_[*saved.run] = measure(*place);
    }
  }
  forward(restore);
}

void RemakeMeter::giveTo(StepProfile &profile) {
  // Saved tensors' gaps by the event at which they leave, and then by the place.
  std::map<uint32_t, uint32_t> gapAt;
  for (uint32_t gap = 0; gap < profile.gaps.size(); ++gap)
    if (profile.gaps[gap].resident == noIndex)
      gapAt[profile.gaps[gap].leaves] = gap;
  std::map<SavedPlace, uint32_t> gaps;
  std::vector<uint32_t> begins;
  size_t number = 0;
  for (uint32_t event = 0; event < profile.events.size(); ++event) {
    if (profile.events[event].kind == StepEvent::Kind::BlockBegin)
      begins.push_back(event);
    if (profile.events[event].kind != StepEvent::Kind::Save || number == saved_.size())
      continue;
    if (const std::optional<Saved> &saved = saved_[number++]; saved && gapAt.contains(event))
      gaps[saved->place] = gapAt[event];
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> uses;
  for (const ResidentUse &use : profile.uses)
    uses[{use.event, use.index}] = use.resident;

  std::map<RunKey, uint32_t> indices;
  for (const std::optional<Saved> &saved : saved_) {
    if (!saved || !saved->run || saved->restores != 1 || !runs_[*saved->run].isGood || !gaps.contains(saved->place))
      continue;
    auto [index, isNew] = indices.try_emplace(*saved->run, uint32_t(profile.remakes.size()));
    if (isNew) {
      const Run &run = runs_[*saved->run];
      StepRemake &remake = profile.remakes.emplace_back(run.remake);
      remake.latest = 0;
      for (SavedPlace source : run.sources)
        if (auto found = gaps.find(source); found != gaps.end())
          remake.gaps.push_back(found->second);
      for (uint64_t home : run.homes)
        if (auto at = homes_.find(home); at != homes_.end() && at->second.first < begins.size())
          if (auto use = uses.find({begins[at->second.first], at->second.second}); use != uses.end())
            remake.residents.push_back(use->second);
    }
    ResidencyGap &gap = profile.gaps[gaps[saved->place]];
    gap.remake = index->second;
    if (uint32_t &latest = profile.remakes[gap.remake].latest; saved->hasSources)
      latest = std::max(latest, gap.needed);
  }
}

} // namespace segue::inline runtime
