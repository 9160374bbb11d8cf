//===- VirtualGroup.cpp - ranks whose virtual clocks are one --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Collectives/VirtualGroup.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

void VirtualGroup::throwIfEnded() const {
  if (!ended_.empty())
    throw Error(ErrorCode::RankFailed, ended_);
}

void VirtualGroup::send(int from, int to, double time) {
  std::lock_guard lock(mutex_);
  throwIfEnded();
  sent_[{from, to}].push_back(time);
  changed_.notify_all();
}

double VirtualGroup::receive(int from, int to) {
  std::unique_lock lock(mutex_);
  std::deque<double> &sent = sent_[{from, to}];
  changed_.wait(lock, [&] { return !sent.empty() || !ended_.empty(); });
  throwIfEnded();
  double time = sent.front();
  sent.pop_front();
  return time;
}

double VirtualGroup::meet(int rank, double time) {
  std::unique_lock lock(mutex_);
  size_t meeting = rounds_[size_t(rank)]++;
  meetings_.resize(std::max(meetings_.size(), meeting + 1), 0);
  meetings_[meeting] = std::max(meetings_[meeting], time);
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return !ended_.empty() || std::ranges::all_of(rounds_, [&](size_t round) { return round > meeting; });
  });
  throwIfEnded();
  return meetings_[meeting];
}

void VirtualGroup::end(const std::string &why) {
  std::lock_guard lock(mutex_);
  if (ended_.empty())
    ended_ = why;
  changed_.notify_all();
}

} // namespace segue::inline runtime
