//===- LeastTime.h - the least time of functions in turns -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is compared runs in turns, so that whatever else the machine does meets
// all candidates alike, and the least time of each counts: what it costs when
// nothing disturbs it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_BENCH_LEASTTIME_H
#define SEGUE_BENCH_LEASTTIME_H

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

namespace segue::bench {

/// Seconds per call of each candidate: the least of `rounds` rounds, in each of
/// which it is called `calls` times. One round before is not counted.
inline std::vector<double> leastTimes(int rounds, int calls, const std::vector<std::function<void()>> &candidates) {
  std::vector<double> least(candidates.size(), std::numeric_limits<double>::infinity());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i) {
      auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call)
        candidates[i]();
      std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      if (round >= 0)
        least[i] = std::min(least[i], seconds.count() / calls);
    }
  return least;
}

} // namespace segue::bench

#endif // SEGUE_BENCH_LEASTTIME_H
