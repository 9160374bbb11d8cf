//===- HostSlabQueue.cpp - who may stage through pinned slabs -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/HostSlabQueue.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

static constexpr double warnAfterMs = 100;

bool HostSlabQueue::waits(const std::string &owner) const {
  return std::ranges::any_of(waiting_, [&](const Waiter &each) { return each.owner == owner; });
}

bool HostSlabQueue::acquire(const std::string &owner, int64_t bytes, bool mayWait) {
  if (shutDown_)
    throw Error(ErrorCode::ShutDown, "pinned pool: \"" + owner + "\" asks for slabs after the pool was shut down");
  if (waits(owner) || held_.contains(owner))
    throw Error(ErrorCode::StateTransition,
                "pinned pool: \"" + owner + "\" " + (waits(owner) ? "waits for" : "holds") + " slabs already");
  int64_t count = slabsFor(bytes);
  if (count > slabs_)
    throw Error(ErrorCode::InvalidArgument, "pinned pool: \"" + owner + "\" needs " + std::to_string(count) +
                                                " slabs of " + std::to_string(slabBytes_) +
                                                " bytes, and the pool has " + std::to_string(slabs_) +
                                                "; raise pinned_pool_mb");
  if (waiting_.empty() && count <= free()) {
    take(owner, count);
    return true;
  }
  if (mayWait) {
    waiting_.push_back({owner, count});
    ++waitCount_;
  }
  return false;
}

void HostSlabQueue::take(const std::string &owner, int64_t count) {
  held_[owner] = count;
  inUse_ += count;
  peakInUse_ = std::max(peakInUse_, inUse_);
}

std::vector<std::string> HostSlabQueue::serve() {
  std::vector<std::string> served;
  while (!waiting_.empty() && waiting_.front().count <= free()) {
    take(waiting_.front().owner, waiting_.front().count);
    served.push_back(std::move(waiting_.front().owner));
    waiting_.pop_front();
  }
  return served;
}

std::vector<std::string> HostSlabQueue::release(const std::string &owner) {
  auto held = held_.find(owner);
  if (held == held_.end())
    throw Error(ErrorCode::StateTransition, "pinned pool: \"" + owner + "\" gives slabs back that it does not hold");
  inUse_ -= held->second;
  held_.erase(held);
  return serve();
}

std::vector<std::string> HostSlabQueue::cancel(const std::string &owner) {
  std::erase_if(waiting_, [&](const Waiter &each) { return each.owner == owner; });
  return serve();
}

std::vector<std::string> HostSlabQueue::shutDown() {
  shutDown_ = true;
  std::vector<std::string> woken;
  for (Waiter &each : waiting_)
    woken.push_back(std::move(each.owner));
  waiting_.clear();
  return woken;
}

std::string HostSlabQueue::addWait(const std::string &owner, double milliseconds) {
  totalWaitMs_ += milliseconds;
  if (milliseconds < warnAfterMs)
    return "";
  return "pinned pool: \"" + owner + "\" waited " + std::to_string(int64_t(milliseconds)) + " ms for slabs; all " +
         std::to_string(slabs_) + " are in use, raise pinned_pool_mb";
}

} // namespace segue::inline runtime
