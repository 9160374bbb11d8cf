//===- MeasuredStepTest.cpp - profiles with measured times ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/MeasuredStep.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace segue::runtime;

namespace {
using Kind = StepEvent::Kind;

/// Seconds of each event.
std::vector<double> secondsOf(const StepProfile &profile) {
  std::vector<double> seconds;
  for (const StepEvent &event : profile.events)
    seconds.push_back(event.seconds);
  return seconds;
}

/// A phase with a block of 1 + 3 s, in which another of 5 s lies; 2 s after it.
/// Then a phase that is planned to take nothing.
StepProfile profile() {
  StepProfile profile;
  auto add = [&](Kind kind, double seconds) { profile.events.push_back({.kind = kind, .seconds = seconds}); };
  add(Kind::Phase, 0);
  add(Kind::BlockBegin, 1);
  add(Kind::BlockBegin, 5);
  add(Kind::BlockEnd, 3);
  add(Kind::BlockEnd, 2);
  add(Kind::Phase, 0);
  add(Kind::Save, 0);
  return profile;
}
} // namespace

TEST(MeasuredStep, PartsTakeWhatWasMeasured) {
  std::optional<StepProfile> measured = withMeasured(profile(), {.blocks = {8, 1}, .phases = {20, 7}});
  ASSERT_TRUE(measured);
  // The outer block's 8 s are spread as 1 : 3, and the last phase's lie at its
  // beginning, as nothing says more.
  EXPECT_EQ(secondsOf(*measured), (std::vector<double>{0, 2, 1, 6, 20, 7, 0}));
}

// What the outer block made takes twice the time, and so it does when it is made again.
TEST(MeasuredStep, WhatIsMadeAgainTakesWhatItTookBefore) {
  StepProfile planned = profile();
  planned.gaps = {{.leaves = 3, .needed = 6, .remake = 0}, {.leaves = 3, .needed = 6, .remake = 0}};
  planned.remakes = {{.seconds = 0.5}};
  std::optional<StepProfile> measured = withMeasured(planned, {.blocks = {8, 1}, .phases = {20, 7}});
  ASSERT_TRUE(measured);
  EXPECT_DOUBLE_EQ(measured->remakes[0].seconds, 1);
}

TEST(MeasuredStep, AnotherStepIsNone) {
  EXPECT_FALSE(withMeasured(profile(), {.blocks = {8}, .phases = {20, 7}}));
  EXPECT_FALSE(withMeasured(profile(), {.blocks = {8, 1}, .phases = {20}}));
}

TEST(MeasuredStep, DriftIsThatOfTheWorstPartThatCounts) {
  StepProfile planned = profile(), now = profile();
  EXPECT_EQ(driftOf(planned, now), 0);
  now.events[2].seconds = 5.5;
  EXPECT_NEAR(driftOf(planned, now), 0.1, 1e-9);
  now.events[2].seconds = 2.5;
  EXPECT_NEAR(driftOf(planned, now), 0.5, 1e-9);
  // Below a hundredth of the step.
  now = profile();
  now.events[5].seconds = 0.05;
  EXPECT_EQ(driftOf(planned, now), 0);
  now.events[5].seconds = 1;
  EXPECT_TRUE(std::isinf(driftOf(planned, now)));
}
