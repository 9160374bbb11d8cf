//===- SimAdversary.h - queues in the hands of an adversary -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// No threads: the host runs entries when it enqueues, asks or waits, and which
// ones is drawn from a seeded generator: any order that queues and fences allow,
// at times nothing until somebody waits for it, at times everything at once, at
// times one queue far ahead of or behind the others. The same calls with the
// same seed give the same order.
//
// Any thread may call; the order repeats only if one does.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMADVERSARY_H
#define SEGUE_LIB_DRIVERS_SIMADVERSARY_H

#include "SimQueues.h"
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

namespace segue::inline runtime {

class AdversarialQueues final : public SimQueues {
public:
  /// Called on the host with what is done after an entry, before anybody else can see it
  /// and before the next entry, with no lock held.
  using AfterEntry = std::function<void(const Fence &done)>;

  AdversarialQueues(uint64_t seed, AfterEntry afterEntry);

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override;
  void wait(const Fence &fence) override;
  uint64_t position(Queue queue) const override { return posted_[uint8_t(queue)].load(); }
  bool isDone(const Fence &fence) const override;
  bool poll(const Fence &fence) override;
  void finish() override;

private:
  struct Entry {
    Fence after;
    Work work;
  };
  /// The way in which the adversary chooses, for a while.
  enum class Mood { Lazy, Eager, Fair, Favour, Starve };
  using Candidates = std::array<bool, queueCount>;

  Candidates findRunnable() const;
  Candidates findNeeded(const Fence &fence) const;
  size_t draw(const Candidates &candidates);
  void drawMood();
  /// Runs some entries, or none, as the mood is.
  void act(std::unique_lock<std::mutex> &lock);
  void run(size_t queue, std::unique_lock<std::mutex> &lock);

  AfterEntry afterEntry_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::mt19937_64 random_;
  Mood mood_ = Mood::Fair;
  size_t moodQueue_ = 0;
  int moodLeft_ = 0;
  std::deque<Entry> entries_[queueCount];
  std::atomic<uint64_t> posted_[queueCount]{}, done_[queueCount]{};
  /// True while an entry of the queue runs. Only one thread runs entries at a time, but one
  /// that waits within an entry may run others.
  bool isRunning_[queueCount] = {};
  int depth_ = 0;
  std::thread::id runner_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMADVERSARY_H
