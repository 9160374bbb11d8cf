//===- LossScalingTest.cpp - losses that are scaled for f16 ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rule beside torch.amp.GradScaler in whole runs is in test_half_precision.py.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/LossScaling.h"
#include "Session/ExpectError.h"
#include <gtest/gtest.h>
#include <limits>
#include <vector>

using namespace segue;

TEST(LossScaling, GrowsAfterFiniteStepsAndFallsAtOnce) {
  LossScaling scaling{.scale = 8, .growth = 4, .backoff = 0.5, .interval = 3};
  for (bool isFinite : {true, true, false, true, true})
    scaling.stepEnded(isFinite);
  EXPECT_EQ(scaling.scale, 4); // the steps before the one that was not finite count no more
  scaling.stepEnded(true);
  EXPECT_EQ(scaling.scale, 16);
  EXPECT_EQ(scaling.finiteSteps, 0);
}

// A scale that is infinite in f32 would make every gradient so.
TEST(LossScaling, StaysFinite) {
  LossScaling scaling{.scale = 0x1p126, .interval = 1};
  for (double expected : {0x1p127, 0x1p127, 0x1p127}) {
    scaling.stepEnded(true);
    EXPECT_EQ(scaling.scale, expected);
  }
}

TEST(LossScaling, EndsToFallBelowOne) {
  LossScaling scaling{.scale = 2};
  for (bool canFall : {true, true, false}) {
    EXPECT_EQ(scaling.canFall(), canFall);
    scaling.stepEnded(false);
  }
}

TEST(LossScaling, ComesBackFromItsText) {
  for (double scale : {65536.0, 0.1, 3e-5}) {
    LossScaling scaling{.scale = scale, .finiteSteps = 17}, other;
    other.restore(scaling.state());
    EXPECT_EQ(other.scale, scale);
    EXPECT_EQ(other.finiteSteps, 17);
  }
  for (std::string text : {"", "1", "1 ", "x 1", "1 x", "1 2 3", "0 1", "-1 1", "1 -1", "1e99 1", "nan 1", "inf 1"}) {
    LossScaling scaling;
    EXPECT_ERROR(scaling.restore(text), FileCorrupt, "the loss scale of the checkpoint is \"" + text + "\"");
    EXPECT_EQ(scaling.scale, 65536);
  }
}

TEST(LossScaling, RefusesNumbersThatNoRunCanGoBy) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<LossScaling> bad = {{.scale = 0},    {.scale = 1e99}, {.scale = nan},  {.growth = 1},
                                        {.growth = nan}, {.backoff = 1},  {.backoff = 0}, {.interval = 0}};
  for (const LossScaling &scaling : bad)
    EXPECT_ERROR(scaling.check(), InvalidArgument, "loss scaling: scale");
  LossScaling().check();
}
