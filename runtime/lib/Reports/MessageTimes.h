//===- MessageTimes.h - what messages take of a step's time -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A message between ranks is hidden while the device computes beside it: forecasts, traces
// and reports of runs say how much is, by this one definition.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPORTS_MESSAGETIMES_H
#define SEGUE_LIB_REPORTS_MESSAGETIMES_H

#include "segue/runtime/Json.h"
#include <vector>

namespace segue::inline runtime {

class MessageTimes {
public:
  /// Add times in which the device computes, a message of a rank with tensors is under way, or ranks meet, in which all
  /// wait. In one unit, in any order.
  void addCompute(double begin, double end) { compute_.push_back({begin, end}); }
  void addMessage(double begin, double end) { messages_.push_back({begin, end}); }
  void addMeeting(double begin, double end) { meetings_.push_back({begin, end}); }

  bool empty() const { return messages_.empty() && meetings_.empty(); }
  uint64_t messages() const { return messages_.size(); }
  uint64_t meetings() const { return meetings_.size(); }
  double messageTime() const { return sumOf(messages_); }
  double meetingTime() const { return sumOf(meetings_); }
  /// Returns how much of the time of messages the device computes.
  double hiddenTime() const;

  /// Returns the figures; `perSecond` is how many of their units are a second.
  Json json(double perSecond) const;

private:
  struct Interval {
    double begin, end;
  };
  static double sumOf(const std::vector<Interval> &intervals);

  std::vector<Interval> compute_, messages_, meetings_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPORTS_MESSAGETIMES_H
