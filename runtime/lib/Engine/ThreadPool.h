//===- ThreadPool.h - the threads that devices share ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One set of workers serves all devices of a process. A region is a function that takes
// pieces of work until none is left. Its caller runs it, and so does each worker that comes
// in time: a caller never waits for a worker that has not begun, since it takes the pieces
// itself. It waits for those that have, each of which is in the middle of one piece.
//
// A worker is the same thread in all regions, so that what it did in one lies in its cache in
// the next: a region of `threads` is helped by workers 1 to threads - 1. Several callers may
// have regions at the same time.
//
// Who waits looks at memory for a while and sleeps then, because sleeping and waking take
// longer than most gaps between regions. That is right as long as the processor would idle
// otherwise. Where another program wants it, looking takes time from that program and, as the
// system is fair, from our own work afterwards: threads sleep almost at once while the
// machine is crowded. A thread knows of others by the time that it did not get.
//
// A process that was forked has no workers, and starts its own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_THREADPOOL_H
#define SEGUE_RUNTIME_LIB_ENGINE_THREADPOOL_H

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace segue::inline runtime {

/// Whether others want the processors of this process, as far as its threads have noticed.
class Crowd {
public:
  /// A thread was without a processor for a while, at `time`, in nanoseconds.
  void notice(int64_t time);

  /// True for a while after it was noticed, longer if it was so before.
  bool isThere(int64_t time) const { return time < until_.load(std::memory_order_relaxed); }

private:
  static constexpr int64_t kLeastHold = 200'000'000, kMostHold = 1'600'000'000;
  std::atomic<int64_t> until_{0}, hold_{0};
};

class ThreadPool {
public:
  /// Takes pieces as thread `thread` until there are none. Must not throw.
  using Body = void (*)(void *context, int thread);

  /// The pool of this process.
  static ThreadPool &ofProcess();

  /// True while the calling thread runs a body.
  static bool isInsideRegion();

  /// Calls body(context, 0) here and body(context, t) on those workers t < `threads` that come
  /// before it returns. Returns when all have. Starts workers that are not there yet; where
  /// the system gives none, or too many threads call at once, there is less help. Any thread
  /// may call, though not from inside a body. Cost: less than a microsecond while workers look.
  void run(int threads, Body body, void *context) noexcept;

  /// True if workers may come late, as they sleep or as the machine is crowded: smaller pieces pay.
  bool isSlow() const;

  /// Ends the workers: from now on a region has its caller alone.
  void end() noexcept;

private:
  /// A region that workers may join, or room for one.
  struct alignas(64) Slot {
    /// How many workers are inside, with the bits of ThreadPool.cpp.
    std::atomic<uint32_t> state{0};
    Body body = nullptr;
    void *context = nullptr;
  };
  struct Worker;

  static void *start(void *worker);
  Slot *takeSlot();
  void addWorkers(int count) noexcept;
  void work(int thread);
  void help(int thread);
  void waitForHelpers(Slot &slot);

  std::array<Slot, 32> slots_;
  /// Counts the regions that were opened; workers wait for another.
  alignas(64) std::atomic<uint32_t> opened_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> workers_{0};
  /// True once no worker may be added: the system gave none, or the pool has ended.
  std::atomic<bool> isFull_{false};
  std::atomic<bool> ended_{false};
  Crowd crowd_;
  std::mutex mutex_; // guards what follows
  Worker *last_ = nullptr;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_THREADPOOL_H
