//===- WatermarkEstimateTest.cpp - a step by watermarks -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/WatermarkEstimate.h"
#include "segue/runtime/Plan/ResidencyPlanner.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace segue;

static constexpr uint64_t MiB = 1 << 20;

namespace {

/// `blocks` tensors of 1 MiB saved and needed in reverse, 1 s of computing at
/// each event, the link `mibPerSecond` each way, `base` MiB live all the time.
StepProfile makeStack(uint32_t blocks, double mibPerSecond, uint64_t base) {
  StepProfile profile;
  profile.link = {mibPerSecond * MiB, mibPerSecond * MiB, 0};
  auto add = [&](StepEvent::Kind kind, Phase phase, uint64_t live, double seconds) {
    profile.events.push_back({.kind = kind,
                              .phase = phase,
                              .label = std::to_string(profile.events.size()),
                              .liveBytes = (base + live) * MiB,
                              .peakBytes = (base + live) * MiB,
                              .seconds = seconds});
  };
  for (uint32_t block = 0; block < blocks; ++block)
    add(StepEvent::Kind::Save, Phase::Forward, block + 1, 1);
  add(StepEvent::Kind::Phase, Phase::Backward, blocks, 0);
  for (uint32_t block = blocks; block-- > 0;)
    add(StepEvent::Kind::Restore, Phase::Backward, block + 1, 1);
  for (uint32_t block = 0; block < blocks; ++block)
    profile.gaps.push_back({.tensor = std::to_string(block),
                            .bytes = MiB,
                            .outBytes = MiB,
                            .inBytes = MiB,
                            .leaves = block,
                            .needed = 2 * blocks - block});
  return profile;
}

ActivationStagehandConfig watermarks(double high, double low) {
  ActivationStagehandConfig config;
  config.enabled = true;
  config.highWatermarkMiB = high;
  config.lowWatermarkMiB = low;
  return config;
}

TEST(WatermarkEstimate, KeepsAllBelowTheWatermark) {
  WatermarkOutcome outcome = estimateWatermarks(makeStack(6, 1, 10), watermarks(100, 50));
  EXPECT_EQ(outcome.peakBytes, 16 * MiB);
  EXPECT_EQ(outcome.seconds, 12);
  EXPECT_EQ(outcome.stallSeconds, 0);
  EXPECT_EQ(outcome.telemetry["activations_kept"], 6);
  EXPECT_EQ(outcome.telemetry["activations_spilled"], 0);
}

// High 13, low 12, copies of half a second: the third save (13 MiB live) begins
// to spill, and its bytes are gone before the next event.
TEST(WatermarkEstimate, SpillsFromTheWatermarkOn) {
  WatermarkOutcome outcome = estimateWatermarks(makeStack(6, 2, 10), watermarks(13, 12));
  EXPECT_EQ(outcome.telemetry["activations_kept"], 2);
  EXPECT_EQ(outcome.telemetry["activations_spilled"], 4);
  EXPECT_EQ(outcome.telemetry["activations_leaked"], 0);
  EXPECT_EQ(outcome.peakBytes, 13 * MiB);
  // What is needed first was saved last; nothing of it is back so soon.
  EXPECT_GE(outcome.stallSeconds, 0.5);
  EXPECT_NEAR(outcome.seconds, 12 + outcome.stallSeconds, 1e-9);
}

// A link much slower than the computing: saves wait for the copies before.
TEST(WatermarkEstimate, WaitsForTheCopyBefore) {
  WatermarkOutcome outcome = estimateWatermarks(makeStack(6, 0.1, 10), watermarks(11, 10));
  EXPECT_EQ(outcome.telemetry["activations_spilled"], 6);
  EXPECT_GT(outcome.telemetry["finalize_waits"], 3);
  EXPECT_GT(outcome.stallSeconds, 50);
}

TEST(WatermarkEstimate, APlanIsNoSlowerAndNoLarger) {
  for (double speed : {0.5, 1.0, 2.0, 8.0}) {
    StepProfile profile = makeStack(24, speed, 10);
    WatermarkOutcome outcome = estimateWatermarks(profile, watermarks(20, 16));
    ASSERT_GT(outcome.telemetry["activations_spilled"], 0);
    ResidencyPlanner planner(profile);
    const ResidencyPlan &plan = planner.plan(outcome.peakBytes);
    EXPECT_LE(plan.peakBytes, outcome.peakBytes);
    EXPECT_LE(plan.seconds, outcome.seconds * 1.001) << speed;
  }
}

} // namespace
