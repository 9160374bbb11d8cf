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

/// Returns, by rank, the smallest dram of `device` in which none is refused by `certify`, which certifies its steps.
inline std::vector<uint64_t> leastOfEachRank(int ranks, const std::string &device,
                                             const std::function<void(Rank &)> &certify) {
  // A device that holds no session is refused for steps of one batch, and steps of several may want more.
  std::vector<uint64_t> least(size_t(ranks), 4096);
  for (bool isEnough = false; !isEnough;) {
    std::vector<uint64_t> named = least;
    onRanks(ranks, device + ",dram=16MiB", [&](Rank &rank) {
      uint64_t &own = named[size_t(rank.number())];
      rank.device = Device::open(device + ",dram=" + std::to_string(own));
      rank.together = makeCollectives(rank.device, rank.transport);
      auto [code, what] = errorOf([&] { certify(rank); });
      EXPECT_TRUE(code == ErrorCode(-1) || code == ErrorCode::BudgetInfeasible) << what;
      own = std::max(own, smallestNamed(what));
    });
    isEnough = named == least;
    least = named;
  }
  return least;
}

/// Returns the smallest in which no rank is.
inline uint64_t leastOfRanks(int ranks, const std::string &device, const std::function<void(Rank &)> &certify) {
  return std::ranges::max(leastOfEachRank(ranks, device, certify));
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_LEASTOFRANKS_H
