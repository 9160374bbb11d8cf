//===- StepProfile.cpp - the memory and time of one step ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/StepProfile.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

std::string_view name(StepEvent::Kind kind) {
  static constexpr std::string_view names[] = {"phase",   "block_begin", "block_end",  "save",
                                               "restore", "output",      "accumulate", "accumulated"};
  return names[size_t(kind)];
}

std::vector<uint64_t> leastWithSavedAway(const StepProfile &profile) {
  std::vector<uint64_t> least;
  for (const StepEvent &event : profile.events)
    least.push_back(event.peakBytes);
  auto leave = [&](uint64_t bytes, uint32_t from, uint32_t to) {
    for (uint32_t event = from; event < to; ++event)
      least[event] -= std::min(bytes, least[event]);
  };
  for (const ResidencyGap &gap : profile.gaps)
    if (gap.resident == noIndex)
      leave(gap.bytes, gap.leaves, gap.needed);
  for (const SharedSave &shared : profile.sharedSaves)
    leave(shared.bytes, shared.saved, shared.needed);
  return least;
}

void removeGaps(StepProfile &profile, std::vector<uint32_t> indices) {
  std::vector<bool> goes(profile.gaps.size());
  for (uint32_t index : indices)
    goes[index] = true;
  for (bool again = true; std::exchange(again, false);)
    for (size_t i = 0; i < goes.size(); ++i)
      if (uint32_t with = profile.gaps[i].with; !goes[i] && with != noIndex && goes[with])
        again = goes[i] = true;
  std::vector<uint32_t> moved(goes.size());
  uint32_t kept = 0;
  for (size_t i = 0; i < goes.size(); ++i) {
    moved[i] = kept;
    if (!goes[i] && kept != i)
      profile.gaps[kept] = std::move(profile.gaps[i]);
    kept += !goes[i];
  }
  profile.gaps.resize(kept);
  for (ResidencyGap &gap : profile.gaps)
    if (gap.with != noIndex)
      gap.with = moved[gap.with];
  // A tensor that does not leave is always there.
  for (StepRemake &remake : profile.remakes) {
    std::erase_if(remake.gaps, [&](uint32_t gap) { return goes[gap]; });
    for (uint32_t &gap : remake.gaps)
      gap = moved[gap];
  }
}

} // namespace segue::inline runtime
