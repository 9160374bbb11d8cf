//===- PhaseClock.cpp - how long the phases of a step take ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PhaseClock.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

static bool hasQueueClock(const Device &device) { return device.hasBytes() && !device.runsInline(); }

void PhaseClock::beginStep() {
  marks_.clear();
  enter(StepPhase::StepBegin);
}

PhaseClock::Moment PhaseClock::mark() {
  auto moment = std::make_shared<std::atomic<double>>(NAN);
  if (hasQueueClock(device_))
    lastEntry_ = device_.enqueue(Queue::Compute, Fence(),
                                 Work{[moment, device = &device_] { *moment = device->seconds(); }, {}, "phase"});
  else
    *moment = device_.seconds();
  return moment;
}

std::vector<PhaseSeconds> PhaseClock::durations(bool waits) {
  Moment last;
  if (waits) {
    last = mark();
    if (hasQueueClock(device_))
      device_.wait(Fence(Queue::Compute, lastEntry_));
  }
  double now = device_.seconds();
  auto at = [&](const Moment &moment) {
    double seconds = moment ? moment->load() : now;
    return std::isnan(seconds) ? now : seconds;
  };
  std::vector<PhaseSeconds> result;
  for (size_t i = 0; i < marks_.size(); ++i) {
    double end = at(i + 1 < marks_.size() ? marks_[i + 1].second : last);
    result.push_back({marks_[i].first, std::max(0.0, end - at(marks_[i].second))});
  }
  return result;
}

} // namespace segue::inline runtime
