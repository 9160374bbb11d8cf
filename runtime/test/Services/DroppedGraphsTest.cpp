//===- DroppedGraphsTest.cpp - saved values that nobody asks for ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A forward whose results are dropped without a backward holds nothing from the
// next program on: on the device, on its way out, on the host, or half way back.
//
//===----------------------------------------------------------------------===//

#include "SavedChain.h"

using namespace segue;
using namespace segue::test;

namespace {
struct DroppedGraphs : SavedChainTest {
  void startWith(double high, int slabs) {
    setUp(plainSim);
    Json stagehand = activation();
    stagehand["vram_high_watermark_mb"] = high;
    stagehand["vram_low_watermark_mb"] = 0.1;
    stagehand["slabs_per_class"] = slabs;
    stagehand["pool_growth"] = false;
    start(config(stagehand));
  }
  /// Runs as many forwards as fill neither the pool nor the device if each gives back what
  /// the one before held; then a step as any.
  void dropSome() {
    enter(Phase::StepBegin);
    for (int i = 0; i < 6; ++i) {
      forward();
      EXPECT_LE(device->memory().liveBytes(Space::DeviceDram), live + (count + 2) * bytes);
    }
    EXPECT_EQ(backward(forward()), reference);
    enter(Phase::StepEnd);
    Json record = services->activationRecord();
    EXPECT_EQ(record["activations_saved"], 7 * count);
    EXPECT_EQ(record["activations_leaked"], 0);
    expectNothingLeft();
  }
};
} // namespace

TEST_F(DroppedGraphs, OnTheDevice) {
  startWith(7.5, 12);
  dropSome();
  EXPECT_EQ(services->activationRecord()["activations_kept"], 7 * count);
}

TEST_F(DroppedGraphs, OnTheHost) {
  startWith(0.6, count);
  dropSome();
  // Slabs of the pool serve again and again, but for one that is on its way out still.
  EXPECT_GE(int64_t(services->activationRecord()["pool_hits"]), 6 * (count - 1));
}

TEST_F(DroppedGraphs, WhereTheRestIsKept) {
  startWith(0.6, 2 * count);
  enter(Phase::StepBegin);
  std::vector<Tensor> kept = forward();
  forward();
  std::vector<Tensor> last = forward();
  EXPECT_EQ(backward(std::move(last)), reference);
  EXPECT_EQ(backward(std::move(kept)), reference);
  enter(Phase::StepEnd);
  EXPECT_EQ(services->activationRecord()["activations_leaked"], 0);
  expectNothingLeft();
}

// Backward of another has brought some of it back ahead of a need that never comes.
TEST_F(DroppedGraphs, HalfWayBack) {
  startWith(3.2, 2 * count);
  services->setWatermarks(1, 0); // all leaves
  enter(Phase::StepBegin);
  std::vector<Tensor> dropped = forward(), last = forward();
  services->setWatermarks(7 << 20, 6 << 20); // and all returns ahead
  EXPECT_EQ(backward(std::move(last)), reference);
  dropped.clear();
  EXPECT_EQ(backward(forward()), reference);
  enter(Phase::StepEnd);
  Json record = services->activationRecord();
  // A value that is asked for while it leaves is rescued: it comes back without a copy.
  EXPECT_GT(int64_t(record["activations_restored"]) + int64_t(record["activations_rescued"]), count) << record.dump();
  EXPECT_EQ(record["activations_leaked"], 0);
  expectNothingLeft();
  EXPECT_EQ(step(), reference);
}
