//===- LoopWatermarksTest.cpp - what a loop's steps have to spare ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Session/LoopWatermarks.h"
#include <gtest/gtest.h>
#include <string_view>

using namespace segue;
using Keys = std::string_view;

namespace {
struct LoopWatermarksTest : testing::Test {
  static LoopWatermarks::Key key(char program) { return {nullptr, uint64_t(program)}; }
  /// A step of such programs: lower case saves 10 bytes while 100 are in use, upper
  /// case asks for them. Returns the watermark that each of them saw.
  std::vector<uint64_t> step(Keys programs, uint64_t peak) {
    std::vector<uint64_t> seen = begin(programs);
    watermarks.endStep(peak);
    return seen;
  }
  std::vector<uint64_t> begin(Keys programs) {
    watermarks.beginStep();
    std::vector<uint64_t> seen;
    for (char program : programs) {
      high = watermarks.onSubmit(key(program)).value_or(high);
      seen.push_back(high);
      if (program >= 'a')
        watermarks.onSave(100, 10);
      else
        watermarks.onRestore(120);
    }
    return seen;
  }

  static constexpr uint64_t all = LoopWatermarks::everythingLeaves;
  LoopWatermarks watermarks{1600};
  uint64_t high = all;
};
} // namespace

TEST_F(LoopWatermarksTest, WhatTwoStepsHadToSpareStays) {
  EXPECT_EQ(step("abBA", 1000), (std::vector<uint64_t>{all, all, all, all}));
  EXPECT_EQ(step("abBA", 1000), (std::vector<uint64_t>{all, all, all, all}));
  // 1600 less a peak of 1000 and a sixteenth of the budget, above the least in use.
  EXPECT_EQ(step("abBA", 1500), (std::vector<uint64_t>{600, 600, 600, 600}));
  EXPECT_EQ(step("abBA", 1500), (std::vector<uint64_t>{600, 600, 600, 600}));
}

TEST_F(LoopWatermarksTest, NothingStaysWhereNothingIsToSpare) {
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step("aA", 1500), (std::vector<uint64_t>{all, all}));
}

TEST_F(LoopWatermarksTest, ADepartureBeginsAnew) {
  step("aA", 1000), step("aA", 1000);
  EXPECT_EQ(step("abBA", 1000), (std::vector<uint64_t>{600, all, all, all}));
  EXPECT_EQ(step("abBA", 1000), (std::vector<uint64_t>{all, all, all, all}));
  EXPECT_EQ(step("abBA", 1000)[3], 600);
  EXPECT_EQ(step("aA", 1000), (std::vector<uint64_t>{600, all}));
}

TEST_F(LoopWatermarksTest, WhatLeavesAPlanHasAllLeave) {
  step("aA", 1000), step("aA", 1000);
  EXPECT_EQ(step("aA", 1000)[0], 600);
  watermarks.beginStep();
  watermarks.depart();
  EXPECT_EQ(watermarks.onSubmit(key('a')), all);
  EXPECT_EQ(watermarks.onSubmit(key('A')), std::nullopt);
  high = all;
  EXPECT_EQ(step("aA", 1000)[0], 600) << "what was learnt stays";
}

TEST_F(LoopWatermarksTest, StepsWithoutABackwardSayNothing) {
  step("a", 300), step("a", 300);
  EXPECT_EQ(step("aA", 1000), (std::vector<uint64_t>{all, all}));
  step("aA", 1000);
  EXPECT_EQ(step("a", 300), (std::vector<uint64_t>{600}));
  EXPECT_EQ(step("aA", 1000), (std::vector<uint64_t>{600, 600}));
}

TEST_F(LoopWatermarksTest, AStepWithoutMemoryEndsIt) {
  step("aA", 1000), step("aA", 1000);
  begin("aA");
  watermarks.abortStep(/*isOutOfMemory=*/false);
  EXPECT_EQ(step("aA", 1000)[0], 600);
  begin("aA");
  watermarks.abortStep(/*isOutOfMemory=*/true);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step("aA", 1000)[0], all);
  step("bB", 1000), step("bB", 1000);
  EXPECT_EQ(step("bB", 1000)[0], 600) << "other orders are as they were";
}
