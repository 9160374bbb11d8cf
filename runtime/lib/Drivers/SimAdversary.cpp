//===- SimAdversary.cpp - queues in the hands of an adversary -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimAdversary.h"
#include "RunWork.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

AdversarialQueues::AdversarialQueues(uint64_t seed, AfterEntry afterEntry)
    : afterEntry_(std::move(afterEntry)), random_(seed) {}

bool AdversarialQueues::isDone(const Fence &fence) const {
  for (size_t i = 0; i < queueCount; ++i)
    if (fence.at[i] > done_[i].load())
      return false;
  return true;
}

//===----------------------------------------------------------------------===//
// What may run, and what does
//===----------------------------------------------------------------------===//

AdversarialQueues::Candidates AdversarialQueues::findRunnable() const {
  Candidates candidates{};
  for (size_t i = 0; i < queueCount; ++i)
    candidates[i] = !isRunning_[i] && !entries_[i].empty() && isDone(entries_[i].front().after);
  return candidates;
}

/// The candidates that may run and that `fence` cannot do without.
AdversarialQueues::Candidates AdversarialQueues::findNeeded(const Fence &fence) const {
  Candidates runnable = findRunnable(), wanted{}, needed{};
  Fence pending = fence;
  for (bool grows = true; grows;) {
    grows = false;
    for (size_t i = 0; i < queueCount; ++i)
      if (!wanted[i] && pending.at[i] > done_[i].load()) {
        wanted[i] = grows = true;
        needed[i] = runnable[i];
        if (!runnable[i] && !entries_[i].empty())
          pending.join(entries_[i].front().after);
      }
  }
  return needed;
}

size_t AdversarialQueues::draw(const Candidates &candidates) {
  size_t count = size_t(std::ranges::count(candidates, true));
  if (mood_ == Mood::Favour && candidates[moodQueue_])
    return moodQueue_;
  bool spares = mood_ == Mood::Starve && candidates[moodQueue_] && count > 1;
  size_t which = random_() % (count - spares);
  for (size_t i = 0;; ++i)
    if (candidates[i] && !(spares && i == moodQueue_) && which-- == 0)
      return i;
}

void AdversarialQueues::drawMood() {
  if (moodLeft_-- > 0)
    return;
  mood_ = Mood(random_() % 5);
  // Those of a disk, and of other ranks, only where they are used: moods about others would change nothing.
  bool usesDisk = posted_[uint8_t(Queue::DiskRead)].load() || posted_[uint8_t(Queue::DiskWrite)].load();
  bool usesNetwork = posted_[uint8_t(Queue::Network)].load();
  moodQueue_ = random_() % (usesNetwork ? queueCount : usesDisk ? size_t(Queue::Network) : size_t(Queue::DiskRead));
  moodLeft_ = int(random_() % 40);
}

void AdversarialQueues::run(size_t queue, std::unique_lock<std::mutex> &lock) {
  Entry entry = std::move(entries_[queue].front());
  entries_[queue].pop_front();
  isRunning_[queue] = true;
  runner_ = std::this_thread::get_id();
  ++depth_;
  lock.unlock();
  runWork(entry.work);
  entry.work = {};
  Fence done; // nobody else counts: only one thread runs entries
  for (size_t i = 0; i < queueCount; ++i)
    done.at[i] = done_[i].load() + (i == queue);
  afterEntry_(done);
  lock.lock();
  isRunning_[queue] = false;
  done_[queue].fetch_add(1);
  if (--depth_ == 0)
    idle_.notify_all();
}

void AdversarialQueues::act(std::unique_lock<std::mutex> &lock) {
  if (depth_)
    return; // within an entry, or somebody else is at it
  drawMood();
  uint64_t most = mood_ == Mood::Lazy ? 0 : mood_ == Mood::Eager ? UINT64_MAX : random_() % 4;
  for (uint64_t i = 0; i < most; ++i) {
    Candidates candidates = findRunnable();
    if (mood_ == Mood::Starve)
      candidates[moodQueue_] = false;
    if (std::ranges::count(candidates, true) == 0)
      return;
    run(draw(candidates), lock);
  }
}

//===----------------------------------------------------------------------===//
// The queues
//===----------------------------------------------------------------------===//

uint64_t AdversarialQueues::enqueue(Queue queue, const Fence &after, Work work) {
  requireReached(after, work.label.empty() ? "work" : work.label);
  std::unique_lock lock(mutex_);
  entries_[uint8_t(queue)].push_back({after, std::move(work)});
  uint64_t position = posted_[uint8_t(queue)].fetch_add(1) + 1;
  act(lock);
  return position;
}

bool AdversarialQueues::poll(const Fence &fence) {
  if (isDone(fence))
    return true;
  std::unique_lock lock(mutex_);
  act(lock);
  return isDone(fence);
}

void AdversarialQueues::wait(const Fence &fence) {
  requireReached(fence, "the host");
  std::unique_lock lock(mutex_);
  while (!isDone(fence)) {
    if (depth_ && runner_ != std::this_thread::get_id()) {
      idle_.wait(lock);
      continue;
    }
    drawMood();
    Candidates candidates = findRunnable();
    if (mood_ == Mood::Lazy || mood_ == Mood::Starve)
      candidates = findNeeded(fence);
    if (std::ranges::count(candidates, true) == 0)
      throw Error(ErrorCode::InvalidArgument, "an entry of a queue waits for its own end");
    run(draw(candidates), lock);
  }
}

void AdversarialQueues::finish() {
  Fence all;
  for (Queue queue : allQueues)
    all.join(Fence(queue, position(queue)));
  wait(all);
}

} // namespace segue::inline runtime
