//===- MessageTimes.cpp - what messages take of a step's time -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MessageTimes.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

double MessageTimes::sumOf(const std::vector<Interval> &intervals) {
  double sum = 0;
  for (const Interval &each : intervals)
    sum += each.end - each.begin;
  return sum;
}

double MessageTimes::hiddenTime() const {
  // Blocks lie in each other; what is computed at once counts once.
  std::vector<Interval> compute, sorted = compute_;
  std::ranges::sort(sorted, {}, &Interval::begin);
  for (const Interval &each : sorted)
    if (compute.empty() || compute.back().end < each.begin)
      compute.push_back(each);
    else
      compute.back().end = std::max(compute.back().end, each.end);
  double hidden = 0;
  for (const Interval &message : messages_) {
    auto each = std::ranges::upper_bound(compute, message.begin, {}, &Interval::end);
    for (; each != compute.end() && each->begin < message.end; ++each)
      hidden += std::min(each->end, message.end) - std::max(each->begin, message.begin);
  }
  return hidden;
}

Json MessageTimes::json(double perSecond) const {
  return {{"messages", messages()},
          {"seconds", messageTime() / perSecond},
          {"hidden_seconds", hiddenTime() / perSecond},
          {"meetings", meetings()},
          {"meeting_seconds", meetingTime() / perSecond}};
}

} // namespace segue::inline runtime
