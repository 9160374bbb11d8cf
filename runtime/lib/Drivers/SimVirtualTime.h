//===- SimVirtualTime.h - queues that only keep time ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The queues of `sim:virtual`: entries are not run, they take time. An entry
// starts when its queue is free, its fence is done and the host has enqueued
// it; what it costs and the profile say how long it takes:
//
//   latency, if it uses the link, else the time of a launch, plus the longest
//   of link bytes / bandwidth, memory bytes / bandwidth, flops / rate
//
// What the host copies for a transfer takes host bytes / bandwidth: before or
// after the link, or chunk by chunk beside it (WorkCost::chunkBytes). On the queues of a
// disk both are bytes of the disk. An entry that says its seconds takes these
// (WorkCost::seconds).
//
// The host's clock stands still but for waiting. The times of a step therefore
// depend on nothing but the profile and the calls.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMVIRTUALTIME_H
#define SEGUE_LIB_DRIVERS_SIMVIRTUALTIME_H

#include "SimProfile.h"
#include "SimQueues.h"
#include "VirtualClock.h"
#include <deque>
#include <mutex>

namespace segue::inline runtime {

class VirtualQueues final : public SimQueues {
public:
  explicit VirtualQueues(const SimProfile &profile) : profile_(profile) {}

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override;
  void wait(const Fence &fence) override;
  bool waitFor(const Fence &fence, double seconds) override;
  uint64_t position(Queue queue) const override;
  bool isDone(const Fence &fence) const override;
  void finish() override {}

  /// Returns the host's clock, in seconds since the device was opened.
  double seconds() const;
  /// Returns the time at which `fence` is done, by the host's clock, which is now if it is done already.
  double whenDone(const Fence &fence) const;

  void watch(VirtualClock::Watcher watcher) { watcher_ = std::move(watcher); }

  /// Makes the host do work of `queue` itself, between its entries, and wait for it.
  void waitFor(Queue queue, const WorkCost &cost);

private:
  struct Timeline {
    /// The time at which the last entry is done.
    double end = 0;
    /// The number of entries that are done by the host's clock; then the time at which each other is.
    uint64_t passed = 0;
    std::deque<double> ends;
  };

  double duration(Queue queue, const WorkCost &cost) const;
  double stagedSeconds(const WorkCost &cost, double linkRate) const;
  double endOf(const Fence &fence) const;
  void advanceTo(double time);

  const SimProfile &profile_;
  mutable std::mutex mutex_;
  double now_ = 0;
  Timeline timelines_[queueCount];
  VirtualClock::Watcher watcher_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMVIRTUALTIME_H
