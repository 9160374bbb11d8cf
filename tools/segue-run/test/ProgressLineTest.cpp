//===- ProgressLineTest.cpp - how far a run is, on a terminal -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ProgressLine.h"
#include <gtest/gtest.h>

using namespace segue::tool;

static const ProgressState midway{.step = 38, .steps = 100, .secondsLeft = 40.2, .speed = "18250 tokens/s", .loss = 2.41369,
                                  .hasLoss = true, .peakBytes = 212 << 20, .capBytes = 256 << 20};

TEST(ProgressLine, SaysAllThatIsKnown) {
  EXPECT_EQ(progressText(midway, 100), "[=======>            ] 38/100, 0:41 left, 18250 tokens/s, loss 2.4137, 212 of 256 MiB");
  EXPECT_EQ(progressText({.step = 1, .steps = 2}, 100), "[==========>         ] 1/2");
  EXPECT_EQ(progressText({.step = 2, .steps = 2, .secondsLeft = 7322}, 100), "[====================] 2/2, 2:02:02 left");
}

// A line that went over the edge of the terminal could not be drawn over.
TEST(ProgressLine, IsNoLongerThanTheTerminal) {
  EXPECT_EQ(progressText(midway, 70), "38/100, 0:41 left, 18250 tokens/s, loss 2.4137, 212 of 256 MiB");
  EXPECT_EQ(progressText(midway, 40), "38/100, 0:41 left, 18250 tokens/s");
  for (size_t width = 0; width < 100; ++width)
    EXPECT_LE(progressText(midway, width).size(), width);
}
