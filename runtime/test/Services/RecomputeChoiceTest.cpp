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

namespace {
/// Four tensors of 64 MiB, needed last first, with 256 MiB in use at each need; a
/// link so slow that computing any of them again gains.
struct RoomTest : testing::Test {
  RoomTest() {
    for (int i = 0; i < 4; ++i)
      saved.push_back({.bytes = 64 * mib,
                       .savedAt = i * ms,
                       .turn = 4 * ms,
                       .neededAt = (8 - i) * ms,
                       .recomputeSeconds = ms,
                       .runBytes = 64 * mib,
                       .heldAtNeed = 256 * mib,
                       .heldAfter = 320 * mib});
  }
  /// Returns the choice as letters, in the order of saves.
  std::string choose(int64_t budgetMiB) {
    std::string letters;
    for (Residence residence :
         chooseResidence(saved, {1e9, 1e9}, 256 * mib, {budgetMiB * mib, highMiB * mib, highMiB * mib}))
      letters += "KSR"[int(residence)];
    return letters;
  }
  std::vector<SavedCost> saved;
  int64_t highMiB = 0;
};
} // namespace

// A run's scratch is memory that a copy back does not take.
TEST_F(RoomTest, ARunTakesScratch) {
  EXPECT_EQ(choose(320), "RRRR");
  saved[2].runBytes = 80 * mib;
  EXPECT_EQ(choose(336), "RRRR");
  EXPECT_EQ(choose(335), "RRSR") << "the others take no more than a copy back does";
  saved[2].heldAtNeed = 240 * mib; // less is in use then
  EXPECT_EQ(choose(320), "RRRR");
}

// What it is made from comes with it, whether it is copied back or made first
// itself, and stays until its own need.
TEST_F(RoomTest, SourcesComeEarly) {
  saved[0].recomputeSeconds.reset();
  saved[3].sources = {0};
  EXPECT_EQ(choose(384), "SRRR");
  EXPECT_EQ(choose(383), "SRRS") << "the source would lie there from the need of 3 on";
  saved[2].heldAfter = 330 * mib;
  EXPECT_EQ(choose(393), "SRRS") << "and after that of 2 there is more in use";
  EXPECT_EQ(choose(394), "SRRR");
}

// What the watermarks let stay is on the device at the needs of all that is saved
// after it, and no source that would have to come early.
TEST_F(RoomTest, WhatStaysTakesRoom) {
  saved[0].recomputeSeconds.reset();
  saved[3].sources = {0};
  highMiB = 1;
  EXPECT_EQ(choose(384), "SRRR");
  EXPECT_EQ(choose(383), "SSSS") << "0 is there at the need of 3, which lacks room for a copy back as well";
  saved[3].runBytes = saved[3].bytes = 1 * mib;
  saved[3].heldAfter = 257 * mib;
  EXPECT_EQ(choose(384), "SRRR");
}

// A source that is made again takes what its own run does.
TEST_F(RoomTest, ChainsAddUp) {
  saved[3].sources = {2};
  saved[2].sources = {1};
  saved[2].recomputeSeconds = 0.5 * ms; // chosen before those that hang on it
  saved[1].recomputeSeconds = 0.4 * ms;
  EXPECT_EQ(choose(448), "RRRR");
  EXPECT_EQ(choose(447), "RRRS");
  EXPECT_EQ(choose(383), "RRSS") << "1 comes with 2, 64 MiB more at the need of 2";
}

// What comes from the same run is not made twice: it lies there until its need.
TEST_F(RoomTest, OneRunMakesTwo) {
  saved[3].together = saved[1].together = {1, 3};
  saved[3].runBytes = saved[1].runBytes = 128 * mib;
  EXPECT_EQ(choose(384), "RRRR");
  std::string narrow = choose(383);
  EXPECT_TRUE(narrow == "RSRS") << narrow << ": either's run makes both";
}
