//===- PhaseClock.cpp - how long the phases of a step take ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PhaseClock.h"
#include "../../Drivers/VirtualClock.h"
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static bool hasQueueClock(const Device &device) { return device.hasBytes() && !device.runsInline(); }

PhaseClock::Times::Moment PhaseClock::mark() {
  auto moment = std::make_shared<Timestamp>();
  if (hasQueueClock(device_))
    lastEntry_ = device_.enqueueStamp(Queue::Compute, Fence(), moment, "phase");
  else if (auto *clock = dynamic_cast<const VirtualClock *>(&device_))
    moment->set(clock->endOf(Fence(Queue::Compute, device_.position(Queue::Compute))));
  else
    moment->set(device_.seconds());
  return moment;
}

void PhaseClock::beginStep() {
  times_ = {};
  enter(StepPhase::StepBegin);
}

void PhaseClock::endStep() { times_.end_ = mark(); }

void PhaseClock::wait() const {
  if (times_.end_ && !times_.areKnown())
    device_.wait(Fence(Queue::Compute, lastEntry_));
}

bool PhaseClock::Times::areKnown() const { return end_ && end_->isKnown(); }

void PhaseClock::Times::putInto(Json &record, double now) const {
  auto at = [&](const Moment &moment) {
    double seconds = moment ? moment->seconds() : now;
    return std::isnan(seconds) ? now : seconds;
  };
  std::map<StepPhase, double> seconds;
  for (size_t i = 0; i < marks_.size(); ++i) {
    double end = at(i + 1 < marks_.size() ? marks_[i + 1].second : end_);
    seconds[marks_[i].first] += std::max(0.0, end - at(marks_[i].second));
  }
  Json &durations = record["phase_durations"];
  for (const auto &[phase, lasted] : seconds) {
    std::string key(nameOf(phase));
    std::ranges::transform(key, key.begin(), [](unsigned char letter) { return char(std::tolower(letter)); });
    if (durations.contains(key))
      durations[key] = lasted;
  }
}

} // namespace segue::inline runtime
