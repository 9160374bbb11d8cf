//===- RecomputeChoiceTest.cpp - recompute or spill, by cost --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/RecomputeChoice.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace segue;

static constexpr int64_t mib = 1 << 20;
static constexpr double ms = 1e-3;

// The figures of the contract: 64 MiB at 12 GB/s take 5.592 ms one way.
TEST(RecomputeChoiceTest, SpillCosts) {
  LinkRates link{12e9, 12e9};
  EXPECT_NEAR(spillSeconds(64 * mib, link, 0, 0), 11.185 * ms, 1e-6);
  EXPECT_NEAR(spillSeconds(64 * mib, link, 5 * ms, 5 * ms), 1.185 * ms, 1e-6);
  EXPECT_EQ(spillSeconds(64 * mib, link, 6 * ms, 6 * ms), 0);
}

// No idle time: what a norm gives is computed again. Idle time on both sides:
// an attention is moved, and so is what nothing makes again in any case.
TEST(RecomputeChoiceTest, TheCheaperOfTheTwo) {
  LinkRates link{12e9, 12e9};
  auto choose = [&](double idle, std::optional<double> recompute) {
    SavedCost saved{64 * mib, 10 * ms - idle, 10 * ms, 10 * ms + idle, recompute};
    return chooseResidence({&saved, 1}, link, 64 * mib)[0];
  };
  EXPECT_EQ(choose(0, 0.9 * ms), Residence::Recompute);
  EXPECT_EQ(choose(5 * ms, 14 * ms), Residence::Spill);
  EXPECT_EQ(choose(5 * ms, 1.2 * ms), Residence::Spill);
  EXPECT_EQ(choose(5 * ms, 1.1 * ms), Residence::Recompute);
  EXPECT_EQ(choose(0, std::nullopt), Residence::Spill);
}

// Nothing leaves that fits, and of what leaves the cheapest per byte go first:
// the early ones, whose copies nobody waits for.
TEST(RecomputeChoiceTest, WhatFitsStays) {
  LinkRates link{12e9, 12e9};
  std::vector<SavedCost> saved;
  for (int i = 0; i < 4; ++i)
    saved.push_back({64 * mib, i * 10 * ms, 40 * ms, (80 - i * 10) * ms, 3 * ms});
  auto none = chooseResidence(saved, link, 0);
  EXPECT_EQ(none, std::vector<Residence>(4, Residence::Keep));
  auto one = chooseResidence(saved, link, 1);
  EXPECT_EQ(one, (std::vector{Residence::Spill, Residence::Keep, Residence::Keep, Residence::Keep}));
  auto all = chooseResidence(saved, link, 4 * 64 * mib);
  EXPECT_EQ(all, std::vector<Residence>(4, Residence::Spill));
}

// A link that cannot carry all: some are computed again, so that the others
// pass in time; no more than that takes.
TEST(RecomputeChoiceTest, TheLinkIsShared) {
  LinkRates link{12e9, 12e9};
  std::vector<SavedCost> saved;
  for (int i = 0; i < 16; ++i)
    saved.push_back({64 * mib, i * 2.5 * ms, 40 * ms, (80 - i * 2.5) * ms, 1.5 * ms});
  std::vector<Residence> residence = chooseResidence(saved, link, 16 * 64 * mib);
  int64_t spilled = std::ranges::count(residence, Residence::Spill);
  EXPECT_GE(spilled, 5) << "40 ms carry seven";
  EXPECT_LE(spilled, 8);
  EXPECT_EQ(std::ranges::count(residence, Residence::Recompute), 16 - spilled);
  // Twice as fast, more pass.
  LinkRates fast{24e9, 24e9};
  EXPECT_GT(std::ranges::count(chooseResidence(saved, fast, 16 * 64 * mib), Residence::Spill), spilled);
}
