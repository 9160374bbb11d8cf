//===- SimVirtualTime.cpp - queues that only keep time --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimVirtualTime.h"
#include <algorithm>
#include <limits>

namespace segue::inline runtime {

/// Chunks pass two stages, the host and the link, in the order of the direction;
/// with two buffers each stage works on a chunk of its own (rule R5 of runtime
/// stitching). Where all chunks are equal the order makes no difference, and the
/// last one only ends sooner.
double VirtualQueues::stagedSeconds(const WorkCost &cost, double linkRate) const {
  auto host = [&](uint64_t bytes) { return double(bytes) / profile_.hostBytesPerSecond; };
  auto link = [&](uint64_t bytes) { return profile_.latencySeconds + double(bytes) / linkRate; };
  if (!cost.linkBytes)
    return host(cost.hostBytes);
  uint64_t chunk = cost.chunkBytes ? std::min(cost.chunkBytes, cost.linkBytes) : cost.linkBytes;
  uint64_t before = (cost.linkBytes - 1) / chunk, last = cost.linkBytes - before * chunk;
  if (before == 0)
    return host(last) + link(last);
  double middle = double(before - 1) * std::max(host(chunk), link(chunk));
  return host(chunk) + middle + std::max(host(last), link(chunk)) + link(last);
}

double VirtualQueues::duration(Queue queue, const WorkCost &cost) const {
  if (cost.seconds > 0)
    return cost.seconds + double(cost.hostBytes) / profile_.hostBytesPerSecond;
  if (uint64_t bytes = cost.linkBytes + cost.hostBytes; bytes && isOfDisk(queue) && profile_.diskLink) {
    const LinkSpeed &disk = *profile_.diskLink;
    return disk.latencySeconds +
           double(bytes) / (queue == Queue::DiskRead ? disk.h2dBytesPerSecond : disk.d2hBytesPerSecond);
  }
  double linkRate = queue == Queue::DeviceToHost ? profile_.d2hBytesPerSecond : profile_.h2dBytesPerSecond;
  if (cost.hostBytes)
    return stagedSeconds(cost, linkRate);
  double link = double(cost.linkBytes) / linkRate;
  double memory = double(cost.memoryBytes) / profile_.memoryBytesPerSecond;
  double compute = double(cost.flops) / profile_.flopsPerSecond;
  return (cost.linkBytes ? profile_.latencySeconds : profile_.launchSeconds) + std::max({link, memory, compute});
}

/// Returns the time at which all of `fence` is done; 0 if it is already, `never` if some of
/// it was not enqueued.
double VirtualQueues::endOf(const Fence &fence) const {
  double end = 0;
  for (size_t i = 0; i < queueCount; ++i) {
    const Timeline &timeline = timelines_[i];
    if (fence.at[i] <= timeline.passed)
      continue;
    uint64_t index = fence.at[i] - timeline.passed - 1;
    end = std::max(end, index < timeline.ends.size() ? timeline.ends[index] : std::numeric_limits<double>::infinity());
  }
  return end;
}

void VirtualQueues::advanceTo(double time) {
  now_ = std::max(now_, time);
  for (Timeline &timeline : timelines_)
    for (; !timeline.ends.empty() && timeline.ends.front() <= now_; ++timeline.passed)
      timeline.ends.pop_front();
}

uint64_t VirtualQueues::enqueue(Queue queue, const Fence &after, Work work) {
  requireReached(after, work.label.empty() ? "work" : work.label);
  std::lock_guard lock(mutex_);
  Timeline &timeline = timelines_[uint8_t(queue)];
  double begin = std::max({timeline.end, now_, endOf(after), work.cost.notBefore});
  timeline.end = begin + duration(queue, work.cost);
  if (watcher_)
    watcher_({queue, work.label, work.cost, begin, timeline.end});
  timeline.ends.push_back(timeline.end);
  return timeline.passed + timeline.ends.size();
}

void VirtualQueues::wait(const Fence &fence) {
  requireReached(fence, "the host");
  std::lock_guard lock(mutex_);
  advanceTo(endOf(fence));
}

bool VirtualQueues::waitFor(const Fence &fence, double seconds) {
  requireReached(fence, "the host");
  std::lock_guard lock(mutex_);
  double end = endOf(fence), until = now_ + std::max(seconds, 0.0);
  advanceTo(std::min(end, until));
  return end <= until;
}

uint64_t VirtualQueues::position(Queue queue) const {
  std::lock_guard lock(mutex_);
  const Timeline &timeline = timelines_[uint8_t(queue)];
  return timeline.passed + timeline.ends.size();
}

bool VirtualQueues::isDone(const Fence &fence) const {
  std::lock_guard lock(mutex_);
  return endOf(fence) <= now_;
}

double VirtualQueues::seconds() const {
  std::lock_guard lock(mutex_);
  return now_;
}

double VirtualQueues::whenDone(const Fence &fence) const {
  std::lock_guard lock(mutex_);
  return std::max(now_, endOf(fence));
}

void VirtualQueues::waitFor(Queue queue, const WorkCost &cost) {
  std::lock_guard lock(mutex_);
  Timeline &timeline = timelines_[uint8_t(queue)];
  timeline.end = std::max(timeline.end, now_) + duration(queue, cost);
  advanceTo(timeline.end);
}

} // namespace segue::inline runtime
