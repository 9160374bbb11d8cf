//===- StepTwinTest.cpp - a session in virtual time -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Runtime.h"
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

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

TEST(StepTwin, IsKnownBeforeADeviceIsOpened) {
  std::string folder = std::filesystem::exists("/var/tmp") ? "/var/tmp" : ".";
  std::string profile = testing::TempDir() + "segue-twin-" + std::to_string(getpid()) + ".json";
  std::ofstream(profile) << R"({"version": 1, "h2d": "3GB/s", "latency": "70us", "flops": "81.5GFLOP/s",
                               "membw": "12GB/s", "launch": "3us", "hostmem": "5GB/s"})";
  for (const std::string &spec :
       {std::string("sim"), std::string("sim:dram=64MiB,link=2GB/s,threads=1,stall=0.5,adversarial=3"),
        std::string("sim:virtual,flops=1TFLOP/s"), "sim:profile=" + profile,
        "cpu:dram=1MiB,threads=1,pinned=8MiB,disk=" + folder + "?capacity=9000&read=7GB/s",
        "cpu:dram=1MiB,profile=" + profile + ",disk=" + folder + "?capacity=1MiB"})
    EXPECT_EQ(virtualTwin(spec), virtualTwin(*Device::open(spec))) << spec;
  std::string twin = virtualTwin("cpu:dram=1MiB,profile=" + profile + ",disk=" + folder + "?capacity=1MiB&write=2GB/s");
  EXPECT_EQ(twin, "sim:virtual,dram=1048576,pinned=67108864,disk=1048576,l1=0,h2d=3000000000B/s,d2h=2000000000B/s,"
                  "latency=70us,flops=81.5GFLOP/s,membw=12000000000B/s,launch=3us,hostmem=5000000000B/s");
  // A disk is not made for it: no machine has this room.
  EXPECT_EQ(virtualTwin("cpu:dram=1TiB,threads=2,disk=" + folder + "?capacity=1024TiB"),
            "sim:virtual,dram=1099511627776,pinned=67108864,disk=1125899906842624,l1=0,h2d=2000000000B/s,"
            "d2h=1000000000B/s,latency=100us,flops=100GFLOP/s,membw=10000000000B/s,launch=2us");
  EXPECT_EQ(virtualTwin("cpu:dram=1TiB,threads=2"), virtualTwin("cpu:dram=1TiB,threads=2,disk=.?capacity=1024TiB"));
  std::filesystem::remove(profile);
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
