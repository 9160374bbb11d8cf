//===- SimThreads.h - a thread per queue ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each queue has a thread that takes its entries in order and waits for their
// fences; those of a disk have it from their first entry on. Enqueuing is a lock and a
// push; entries are kept in rings that are reused, so that a step like the one before
// allocates nothing.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMTHREADS_H
#define SEGUE_LIB_DRIVERS_SIMTHREADS_H

#include "SimQueues.h"
#include <thread>

namespace segue::inline runtime {

class ThreadedQueues final : public SimQueues {
public:
  /// Threads that are not started here are with the first entry of their queue.
  enum class Starts : uint8_t { UsualThreads, NoThread };
  /// Throws IoFailed where the system has no threads left.
  explicit ThreadedQueues(Starts starts = Starts::UsualThreads);
  ~ThreadedQueues() override;

  /// Throws IoFailed, with nothing enqueued, where the queue has no thread yet and none can be started.
  uint64_t enqueue(Queue queue, const Fence &after, Work work) override;
  void wait(const Fence &fence) override;
  bool waitFor(const Fence &fence, double seconds) override;
  uint64_t position(Queue queue) const override;
  bool isDone(const Fence &fence) const override;
  void finish() override;

private:
  void start(Queue queue);

  /// Outlives this object where the last handle of a device goes away in an
  /// entry: then a thread of its own returns from here.
  struct State;
  std::shared_ptr<State> state_;
  std::thread threads_[queueCount];
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMTHREADS_H
