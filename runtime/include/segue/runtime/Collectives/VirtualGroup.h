//===- VirtualGroup.h - ranks whose virtual clocks are one ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Where each rank does something else, as in a pipeline, one of them alone says nothing of the
// others' waiting. So all are played, each on a thread with a device of virtual time, opened
// when the others are: a message begins to be received when it has been sent, and a meeting
// when the last one has come.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_VIRTUALGROUP_H
#define SEGUE_RUNTIME_COLLECTIVES_VIRTUALGROUP_H

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// Any thread may call. Times are seconds since devices were opened. Calls throw RankFailed when the group has ended.
class VirtualGroup {
public:
  explicit VirtualGroup(int ranks) : rounds_(size_t(ranks)) {}

  /// Notes that the next message of one rank to another is there at this time.
  void send(int from, int to, double time);
  /// Returns when the next one is there; blocks until that is known.
  double receive(int from, int to);
  /// Returns when all ranks have come to their next meeting, of which this one comes at `time`; blocks until that is
  /// known.
  double meet(int rank, double time);
  /// Has all calls fail: a rank does not go on.
  void end(const std::string &why);

private:
  void throwIfEnded() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<double>> sent_;
  /// The meetings that each rank has come to, and the latest time of each.
  std::vector<size_t> rounds_;
  std::vector<double> meetings_;
  std::string ended_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_VIRTUALGROUP_H
