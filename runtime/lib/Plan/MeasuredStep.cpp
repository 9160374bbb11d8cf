//===- MeasuredStep.cpp - what a step really takes ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/MeasuredStep.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace segue::inline runtime {

namespace {
/// The part that each event of a profile belongs to.
struct Parts {
  explicit Parts(const StepProfile &profile) {
    std::vector<size_t> open;
    for (const StepEvent &event : profile.events) {
      bool isPhase = event.kind == StepEvent::Kind::Phase;
      if (isPhase || event.kind == StepEvent::Kind::BlockBegin) {
        if (isPhase)
          open.clear();
        open.push_back(seconds.size());
        seconds.push_back(0);
        (isPhase ? phases : blocks).push_back(open.back());
      } else if (event.kind == StepEvent::Kind::BlockEnd && open.size() > 1) {
        open.pop_back();
      }
      ofEvent.push_back(open.empty() ? noPart : open.back());
      if (!open.empty())
        seconds[open.back()] += event.seconds;
    }
  }

  static constexpr size_t noPart = std::numeric_limits<size_t>::max();
  std::vector<size_t> ofEvent, phases, blocks;
  std::vector<double> seconds;
};
} // namespace

std::optional<StepProfile> withMeasured(const StepProfile &profile, const MeasuredStep &measured) {
  Parts parts(profile);
  if (measured.phases.size() != parts.phases.size() || measured.blocks.size() != parts.blocks.size())
    return std::nullopt;
  std::vector<double> seconds(parts.seconds.size());
  for (size_t i = 0; i < parts.phases.size(); ++i)
    seconds[parts.phases[i]] = measured.phases[i];
  for (size_t i = 0; i < parts.blocks.size(); ++i)
    seconds[parts.blocks[i]] = measured.blocks[i];
  StepProfile result = profile;
  // A run that makes tensors again takes as much more or less time as the part that made them.
  std::vector<bool> isScaled(result.remakes.size());
  for (const ResidencyGap &gap : result.gaps)
    if (size_t part = parts.ofEvent[gap.leaves]; gap.remake != noIndex && !isScaled[gap.remake] &&
                                                 part != Parts::noPart && parts.seconds[part] > 0) {
      result.remakes[gap.remake].seconds *= seconds[part] / parts.seconds[part];
      isScaled[gap.remake] = true;
    }
  for (size_t i = 0; i < result.events.size(); ++i) {
    size_t part = parts.ofEvent[i];
    if (part == Parts::noPart)
      continue;
    double &now = result.events[i].seconds, planned = parts.seconds[part];
    // A part that was planned to take nothing takes its time where it begins.
    now = planned > 0 ? now * seconds[part] / planned : std::exchange(seconds[part], 0);
  }
  return result;
}

double driftOf(const StepProfile &planned, const StepProfile &measured) {
  std::vector<double> before = Parts(planned).seconds, now = Parts(measured).seconds;
  double total = 0, drift = 0;
  for (double seconds : now)
    total += seconds;
  for (size_t part = 0; part < std::min(before.size(), now.size()); ++part)
    if (std::max(before[part], now[part]) > total / 100)
      drift = std::max(drift, before[part] > 0 ? std::abs(now[part] / before[part] - 1)
                                               : std::numeric_limits<double>::infinity());
  return drift;
}

} // namespace segue::inline runtime
