//===- RingSlotsTest.cpp - the size of a ring by a few tries --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/RingSlots.h"
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace segue;

static constexpr double never = std::numeric_limits<double>::infinity();

// Loads that come again cost `load` for each slot that is missing, what leaves `away`
// for each slot above `alone`: one of the ends is best, or, where what leaves is
// hidden up to a point, a number between.
TEST(RingSlots, TheFastestOfAFewTriesIsTaken) {
  for (int64_t least : {1, 3, 10})
    for (int64_t most : {3, 10, 11, 24, 200}) {
      for (double hidden : {0., 1., 4., 30.}) {
        if (least > most)
          continue;
        int tries = 0;
        auto seconds = [&](int64_t slots) {
          ++tries;
          EXPECT_TRUE(least <= slots && slots <= most);
          return 10 + 0.1 * double(most - slots) + 0.5 * std::max(0.0, double(slots - least) - hidden);
        };
        double both = std::min(10 + 0.1 * double(most - least),
                               10 + 0.5 * std::max(0.0, double(most - least) - hidden));
        int64_t chosen = fastestSlots(least, most, seconds);
        EXPECT_LE(tries, 5);
        EXPECT_LE(seconds(chosen), both + 1e-9) << "one of the ends is better than " << chosen;
        double best = never;
        for (int64_t slots = least; slots <= most; ++slots)
          best = std::min(best, seconds(slots));
        if (most - least <= 10) {
          EXPECT_LE(seconds(chosen), best + 0.1 + 1e-9) << "more than a slot away: " << chosen;
        }
      }
    }
}

TEST(RingSlots, TheRingStaysWhereFewerSlotsGainNothing) {
  EXPECT_EQ(fastestSlots(2, 9, [](int64_t) { return 1.0; }), 9);
  EXPECT_EQ(fastestSlots(2, 9, [](int64_t slots) { return 1 + 1e-5 * double(slots); }), 9);
  EXPECT_EQ(fastestSlots(9, 9, [](int64_t) { return never; }), 9);
  EXPECT_EQ(fastestSlots(2, 9, [](int64_t) { return never; }), 9);
}

TEST(RingSlots, WhatFitsIsTakenWhereTheRingDoesNot) {
  EXPECT_EQ(fastestSlots(2, 9, [](int64_t slots) { return slots > 2 ? never : 3.0; }), 2);
  EXPECT_EQ(fastestSlots(2, 10, [](int64_t slots) { return slots > 6 ? never : 9 - 0.1 * double(slots); }), 6);
}
