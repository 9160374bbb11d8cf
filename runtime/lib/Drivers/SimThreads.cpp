//===- SimThreads.cpp - a thread per queue --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimThreads.h"
#include "../StartThread.h"
#include "RunWork.h"
#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <vector>
#if defined(__linux__)
#include <pthread.h>
#include <sys/prctl.h>
#endif

namespace segue::inline runtime {

namespace {
struct Entry {
  Fence after;
  Work work;
};

/// Entries in order. The ring grows by doubling and is then reused.
class EntryRing {
public:
  bool empty() const { return count_ == 0; }
  Entry &front() { return entries_[first_]; }
  void push(Entry entry) {
    if (count_ == entries_.size()) {
      std::vector<Entry> larger(std::max<size_t>(16, 2 * count_));
      for (size_t i = 0; i < count_; ++i)
        larger[i] = std::move(entries_[(first_ + i) % count_]);
      entries_ = std::move(larger);
      first_ = 0;
    }
    entries_[(first_ + count_++) % entries_.size()] = std::move(entry);
  }
  Entry pop() {
    Entry entry = std::move(entries_[first_]);
    first_ = (first_ + 1) % entries_.size();
    --count_;
    return entry;
  }

private:
  std::vector<Entry> entries_;
  size_t first_ = 0, count_ = 0;
};
} // namespace

struct ThreadedQueues::State {
  std::mutex mutex;
  EntryRing rings[queueCount];
  bool stopping = false;
  /// The entry that has run is counted already: destroying what it held has
  /// brought finish() about.
  bool isCounted[queueCount] = {};
  std::condition_variable wake[queueCount];
  std::condition_variable hostWake;
  /// The fences that threads outside of the queues wait for.
  std::vector<const Fence *> hostFences;
  std::atomic<uint64_t> posted[queueCount]{}, done[queueCount]{};

  bool isDone(const Fence &fence) const {
    for (size_t i = 0; i < queueCount; ++i)
      if (fence.at[i] > done[i].load(std::memory_order_acquire))
        return false;
    return true;
  }

  /// Returns true if the queue's thread may go on. Called with the lock held.
  bool mayRun(size_t queue) { return rings[queue].empty() ? stopping : isDone(rings[queue].front().after); }

  /// Counts an entry as done. Wakes only those whose turn it is, since switching to a thread takes longer than most
  /// entries. Called with the lock held.
  void countEntry(size_t queue) {
    done[queue].fetch_add(1, std::memory_order_release);
    for (size_t other = 0; other < queueCount; ++other)
      if (other != queue && mayRun(other))
        wake[other].notify_one();
    if (std::ranges::any_of(hostFences, [&](const Fence *fence) { return isDone(*fence); }))
      hostWake.notify_all();
  }

  /// Runs entries of `queue` until it is empty and the queues are stopping.
  void run(size_t queue) {
    std::unique_lock lock(mutex);
    for (;;) {
      EntryRing &ring = rings[queue];
      wake[queue].wait(lock, [&] { return mayRun(queue); });
      if (ring.empty())
        return;
      Entry entry = ring.pop();
      lock.unlock();
      runWork(entry.work);
      entry.work = {};
      lock.lock();
      if (!isCounted[queue])
        countEntry(queue);
      isCounted[queue] = false;
    }
  }
};

ThreadedQueues::ThreadedQueues(Starts starts) : state_(std::make_shared<State>()) {
  try {
    for (Queue queue : allQueues)
      if (starts == Starts::UsualThreads && isUsual(queue))
        start(queue);
  } catch (...) {
    finish(); // no thread outlives its object
    throw;
  }
}

void ThreadedQueues::start(Queue queue) {
  std::string purpose = "run the queue " + std::string(name(queue)) + " of a device";
  threads_[uint8_t(queue)] = startThread(purpose, [state = state_, queue] {
#if defined(__linux__)
    std::string label = "segue-" + std::string(name(queue));
    pthread_setname_np(pthread_self(), label.c_str());
    // Sleeps that end in time: the link's are as short as its latency.
    prctl(PR_SET_TIMERSLACK, 1ul);
#endif
    state->run(uint8_t(queue));
  });
}

ThreadedQueues::~ThreadedQueues() {
  for ([[maybe_unused]] std::thread &thread : threads_)
    assert(!thread.joinable() && "finish() comes first");
}

void ThreadedQueues::finish() {
  std::shared_ptr<State> state = state_;
  size_t own = queueCount;
  {
    std::lock_guard lock(state->mutex);
    state->stopping = true;
    for (size_t queue = 0; queue < queueCount; ++queue) {
      if (threads_[queue].get_id() == std::this_thread::get_id()) {
        own = queue;
        state->countEntry(queue);
      }
      state->wake[queue].notify_one();
    }
  }
  if (own < queueCount) {
    // Entries behind the one that brought us here still have their turn, and
    // the loop that we come from must find none.
    state->run(own);
    std::lock_guard lock(state->mutex);
    state->isCounted[own] = true;
  }
  for (size_t queue = 0; queue < queueCount; ++queue) {
    if (queue == own)
      threads_[queue].detach();
    else if (threads_[queue].joinable())
      threads_[queue].join();
  }
}

uint64_t ThreadedQueues::enqueue(Queue queue, const Fence &after, Work work) {
  requireReached(after, work.label.empty() ? "work" : work.label);
  State &state = *state_;
  size_t index = uint8_t(queue);
  std::lock_guard lock(state.mutex);
  if (!threads_[index].joinable() && !state.stopping)
    start(queue);
  state.rings[index].push({after, std::move(work)});
  uint64_t position = state.posted[index].fetch_add(1, std::memory_order_relaxed) + 1;
  if (state.mayRun(index))
    state.wake[index].notify_one();
  return position;
}

uint64_t ThreadedQueues::position(Queue queue) const {
  return state_->posted[uint8_t(queue)].load(std::memory_order_relaxed);
}

bool ThreadedQueues::isDone(const Fence &fence) const { return state_->isDone(fence); }

void ThreadedQueues::wait(const Fence &fence) { waitFor(fence, std::numeric_limits<double>::infinity()); }

bool ThreadedQueues::waitFor(const Fence &fence, double seconds) {
  State &state = *state_;
  if (state.isDone(fence))
    return true;
  requireReached(fence, "the host");
  auto isDone = [&] { return state.isDone(fence); };
  // Ten years are for ever, and no overflow of the clock.
  bool endless = seconds > 3e8;
  std::unique_lock lock(state.mutex);
  state.hostFences.push_back(&fence);
  if (endless)
    state.hostWake.wait(lock, isDone);
  else
    state.hostWake.wait_for(lock, std::chrono::duration<double>(std::max(seconds, 0.0)), isDone);
  state.hostFences.erase(std::ranges::find(state.hostFences, &fence));
  return isDone();
}

} // namespace segue::inline runtime
