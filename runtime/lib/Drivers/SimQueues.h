//===- SimQueues.h - who runs the work of a simulated device ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The three queues behind `sim`: threads (ThreadedQueues), an adversary that
// runs entries on the host in an order of its own (AdversarialQueues), or time
// alone (VirtualQueues).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMQUEUES_H
#define SEGUE_LIB_DRIVERS_SIMQUEUES_H

#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

class SimQueues {
public:
  virtual ~SimQueues() = default;

  /// These are the queues of Device. A fence behind the end of a queue is an
  /// InvalidArgument: waiting for it would never end.
  virtual uint64_t enqueue(Queue queue, const Fence &after, Work work) = 0;
  virtual void wait(const Fence &fence) = 0;
  /// Waits with a limit. By default time passes only as entries run, so that this waits to the end.
  virtual bool waitFor(const Fence &fence, double seconds) {
    wait(fence);
    return true;
  }

  virtual uint64_t position(Queue queue) const = 0;
  /// Returns true if `fence` is done; changes nothing.
  virtual bool isDone(const Fence &fence) const = 0;
  /// Returns true if `fence` is done, asked by the host, which may let time pass.
  virtual bool poll(const Fence &fence) { return isDone(fence); }

  /// Runs what is queued to its end and stops. Called once, before anything that the work
  /// touches goes away, on any thread, which may be one that runs the work.
  virtual void finish() = 0;

protected:
  /// Throws InvalidArgument unless all of `fence` was enqueued.
  void requireReached(const Fence &fence, std::string_view who) const;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMQUEUES_H
