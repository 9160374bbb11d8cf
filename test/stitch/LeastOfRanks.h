//===- LeastOfRanks.h - the memory that no rank is refused ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_LEASTOFRANKS_H
#define SEGUE_TEST_STITCH_LEASTOFRANKS_H

#include "Collectives/OnRanks.h"
#include "ErrorOf.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace segue::test {

/// Returns the smallest dram of `device` in which no rank is refused by `certify`, which certifies its steps.
inline uint64_t leastOfRanks(int ranks, const std::string &device, const std::function<void(Rank &)> &certify) {
  // A device that holds no session is refused for steps of one batch, and steps of several may want more.
  for (uint64_t enough = 4096;;) {
    std::vector<uint64_t> least(static_cast<size_t>(ranks));
    onRanks(ranks, device + ",dram=" + std::to_string(enough), [&](Rank &rank) {
      auto [code, what] = errorOf([&] { certify(rank); });
      bool isEnough = code == ErrorCode(-1);
      EXPECT_TRUE(isEnough || code == ErrorCode::BudgetInfeasible) << what;
      least[size_t(rank.number())] = isEnough ? enough : smallestNamed(what);
    });
    if (uint64_t most = std::ranges::max(least); most > enough)
      enough = most;
    else
      return enough;
  }
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_LEASTOFRANKS_H
