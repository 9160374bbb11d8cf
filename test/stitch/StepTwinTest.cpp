//===- StepTwinTest.cpp - a session in virtual time -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Runtime.h"
#include <gtest/gtest.h>

using namespace segue;

static constexpr const char *spec = "sim:virtual,dram=1GiB,link=16GB/s,latency=1us,flops=1TFLOP/s,membw=100GB/s";

static std::vector<SessionModule> modules(std::initializer_list<const char *> names) {
  std::vector<SessionModule> modules;
  for (const char *name : names)
    modules.push_back(
        {name, Binary::load(std::filesystem::path(SEGUE_STITCH_BINARIES) / (std::string(name) + ".segue"))});
  return modules;
}

TEST(StepTwin, KeepsTheLinkAndTheCapacitiesOfADevice) {
  auto device = Device::open("sim:dram=64MiB,link=2GB/s,threads=1,adversarial=3,fail-copy=0.1,stall=0.5,fail-h2d=9+");
  EXPECT_EQ(virtualTwin(*device), "sim:virtual,dram=64MiB,link=2GB/s");
  EXPECT_EQ(virtualTwin(*Device::open("sim:virtual,flops=1TFLOP/s")), "sim:virtual,flops=1TFLOP/s");
  EXPECT_EQ(virtualTwin(*Device::open("sim")), "sim:virtual");
}

TEST(StepTwin, RefusesDevicesThatCannotBePlanned) {
  try {
    virtualTwin(*Device::open("cpu"));
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_NE(std::string(error.what()).find("has one memory for host and device, so that nothing can leave it"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(StepTwin("sim", modules({"joined"}), {}), Error);
}

// The plan for the least memory, played: what was planned is what happens.
TEST(StepTwin, PlaysWhatWasPlanned) {
  for (auto names : {std::vector<const char *>{"joined"}, {"front", "back"}})
    for (size_t microBatches : {1, 3}) {
      std::vector<SessionModule> parts;
      for (const char *name : names)
        parts.push_back(std::move(modules({name})[0]));
      StepTwin twin(spec, std::move(parts), {}, microBatches);
      ResidencyPlanner planner(twin.record());
      ASSERT_FALSE(planner.profile().gaps.empty());
      uint64_t least = planner.smallestBudget(), most = planner.unconstrained().peakBytes;
      for (uint64_t i = 0; i <= 8; ++i) {
        uint64_t budget = least + (most - least) * i / 8;
        const ResidencyPlan &plan = planner.plan(budget);
        StepTwin::Played played = twin.play(planner.profile(), plan);
        // A return that shares its event with a departure is fetched after it.
        EXPECT_LE(played.peakBytes, plan.peakBytes);
        EXPECT_GE(played.peakBytes + 1024, plan.peakBytes);
        EXPECT_LE(played.peakBytes, budget);
        EXPECT_EQ(played.left, size_t(std::ranges::count_if(plan.away, [&](const Departure &departure) {
                    return planner.profile().gaps[departure.gap].resident == noIndex;
                  })));
        EXPECT_EQ(played.fetchedLate, 0u);
        EXPECT_TRUE(played.heldElsewhere.empty());
        EXPECT_GT(played.seconds, 0);
      }
    }
}

// The same step twice: the same profile.
TEST(StepTwin, RecordsTheSameEveryTime) {
  StepTwin twin(spec, modules({"front", "back"}), {});
  StepProfile first = twin.record(), second = twin.record();
  ASSERT_EQ(first.events.size(), second.events.size());
  for (size_t i = 0; i < first.events.size(); ++i)
    EXPECT_EQ(first.events[i].peakBytes, second.events[i].peakBytes) << i;
  ASSERT_EQ(first.gaps.size(), second.gaps.size());
}
