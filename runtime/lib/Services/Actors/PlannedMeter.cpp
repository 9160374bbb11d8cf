//===- PlannedMeter.cpp - what a plan does with activations ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlannedMeter.h"

namespace segue::inline runtime {

void PlannedMeter::beginStep(int64_t step) {
  record_ = {};
  record_.step = step;
  saved_.clear();
  needs_.clear();
  away_ = pinnedBytes_ = unpinnedBytes_ = 0;
}

void PlannedMeter::see() {
  record_.peakUsedBytes = std::max(record_.peakUsedBytes, int64_t(device_.memory().liveBytes(Space::DeviceDram)));
}

void PlannedMeter::noteSave(const Tensor &before, const Tensor &after, bool isDropped, bool isPlanned) {
  if (!saved_.insert(before.storage()->id()).second) {
    ++record_.shared;
    return;
  }
  ++record_.saved;
  if (before.storage() == after.storage()) {
    ++record_.kept;
    ++record_.keptReasons[before.storage()->isExternal() ? "not_owned" : isPlanned ? "plan_keeps" : "not_as_planned"];
    return;
  }
  if (isDropped) {
    ++record_.recomputed;
    return;
  }
  int64_t bytes = int64_t(before.storage()->bytes());
  bool isPinned = device_.isHomeSpace(after.storage()->space());
  ++record_.spilled;
  ++away_;
  record_.spillBytes += bytes;
  ++(isPinned ? record_.poolHits : record_.poolMisses);
  (isPinned ? pinnedBytes_ : unpinnedBytes_) += bytes;
  record_.poolBytes = std::max(record_.poolBytes, pinnedBytes_);
  record_.unpinnedPeakBytes = std::max(record_.unpinnedPeakBytes, unpinnedBytes_);
}

std::shared_ptr<const CopyWait> PlannedMeter::noteRestore(const Tensor &before, const Tensor &after, Return how) {
  if (before.storage() == after.storage())
    return nullptr;
  int64_t bytes = int64_t(after.storage()->bytes());
  --away_;
  ++(how == Return::Rescued ? record_.rescued : record_.restored);
  record_.restoreBytes += how == Return::Rescued ? 0 : bytes;
  (device_.isHomeSpace(before.storage()->space()) ? pinnedBytes_ : unpinnedBytes_) -= bytes;
  std::shared_ptr<const CopyWait> wait = watchCopy(device_, after, lastMark_);
  if (wait)
    needs_.push_back({wait, how == Return::Ahead});
  return wait;
}

ActivationRecord PlannedMeter::endStep(bool aborted) {
  if (!needs_.empty())
    device_.wait(Fence(Queue::Compute, lastMark_));
  for (const auto &[wait, isAhead] : needs_) {
    if (isAhead)
      ++(wait->isLate ? record_.prefetchLate : record_.prefetchHits);
    if (!wait->isLate)
      continue;
    ++record_.stalls;
    record_.stallMs += wait->seconds() * 1e3;
  }
  record_.leaked = away_;
  record_.aborted = aborted;
  needs_.clear();
  return record_;
}

} // namespace segue::inline runtime
