//===- HostSlabQueue.h - who may stage through pinned slabs -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The policy's view of the pool that loads are staged through: equal slabs, of
// which a load takes all that it needs or none, so that two loads that wait
// never hold what the other waits for. First come, first served. Numbers only;
// a PinnedPool of one class holds the memory.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_HOSTSLABQUEUE_H
#define SEGUE_RUNTIME_SERVICES_HOSTSLABQUEUE_H

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace segue::inline runtime {

class HostSlabQueue {
public:
  HostSlabQueue(int64_t slabBytes, int64_t slabs) : slabBytes_(slabBytes), slabs_(slabs) {}

  int64_t slabBytes() const { return slabBytes_; }
  int64_t slabs() const { return slabs_; }
  int64_t inUse() const { return inUse_; }
  int64_t free() const { return slabs_ - inUse_; }
  int64_t slabsFor(int64_t bytes) const { return (bytes + slabBytes_ - 1) / slabBytes_; }

  /// Takes slabs for `bytes` in the name of `owner`, all or none. Returns false if there
  /// are too few: the owner then waits, or, unless `mayWait`, nothing has happened. Throws
  /// StateTransition if it holds or waits already, InvalidArgument for more than the whole
  /// pool, ShutDown.
  bool acquire(const std::string &owner, int64_t bytes, bool mayWait);
  /// Gives the owner's slabs back; returns those who have theirs now, in order. Throws
  /// StateTransition if it holds none.
  std::vector<std::string> release(const std::string &owner);
  bool holds(const std::string &owner) const { return held_.contains(owner); }
  bool waits(const std::string &owner) const;
  /// Ends the owner's wait; returns those who have theirs now that it is out of the way.
  std::vector<std::string> cancel(const std::string &owner);
  /// Ends all waits and refuses slabs from now on; returns those who waited.
  std::vector<std::string> shutDown();

  /// Adds a wait of `owner`, as the caller measured it. Returns a warning from 100 ms on,
  /// or an empty text.
  std::string addWait(const std::string &owner, double milliseconds);
  int64_t waitCount() const { return waitCount_; }
  double totalWaitMs() const { return totalWaitMs_; }
  int64_t peakInUse() const { return peakInUse_; }

private:
  void take(const std::string &owner, int64_t count);
  std::vector<std::string> serve();

  struct Waiter {
    std::string owner;
    int64_t count;
  };
  int64_t slabBytes_, slabs_, inUse_ = 0;
  std::map<std::string, int64_t> held_;
  std::deque<Waiter> waiting_;
  bool shutDown_ = false;
  int64_t waitCount_ = 0, peakInUse_ = 0;
  double totalWaitMs_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_HOSTSLABQUEUE_H
