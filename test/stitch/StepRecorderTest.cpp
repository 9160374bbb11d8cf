//===- StepRecorderTest.cpp - the profile of compiled programs ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A forward and a backward program, played in virtual time: what they save and
// need, how long it takes by the profile of the device, and what it holds.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/StepRecorder.h"
#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Runtime.h"
#include <gtest/gtest.h>
#include <map>

using namespace segue;

namespace {

class StepRecorderTest : public testing::Test {
protected:
  StepRecorderTest() : recorder(*device) {
    // Everything that is not saved lives all the time.
    for (const char *name : {"forward", "backward"})
      for (const Value &value : binary.program(name).inputs())
        if (value.role != Role::Saved)
          tensors.try_emplace(value.name, Tensor::empty(device, value.desc()));
  }

  std::vector<Tensor> run(const char *name) {
    std::vector<Tensor> inputs;
    for (const Value &value : binary.program(name).inputs())
      if (auto known = tensors.find(value.name); known != tensors.end())
        inputs.push_back(value.role == Role::Saved ? std::move(known->second) : known->second);
      else
        inputs.push_back(Tensor());
    return Executor(device, binary.program(name)).run(std::move(inputs), &recorder);
  }

  StepProfile step() {
    recorder.enter(Phase::StepBegin);
    std::vector<Tensor> outputs = run("forward");
    const auto &values = binary.program("forward").outputs();
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i].role == Role::Saved)
        tensors[values[i].name] = std::move(outputs[i]);
    outputs.clear();
    run("backward");
    recorder.enter(Phase::StepEnd);
    return recorder.takeProfile({.h2dBytesPerSecond = 16e9, .d2hBytesPerSecond = 16e9, .latencySeconds = 1e-5});
  }

  DeviceRef device = Device::open("sim:virtual,dram=1GiB,flops=1TFLOP/s,membw=100GB/s,launch=5us");
  Binary binary = Binary::load(std::filesystem::path(SEGUE_STITCH_BINARIES) / "joined.segue");
  std::map<std::string, Tensor> tensors;
  StepRecorder recorder;
};

TEST_F(StepRecorderTest, SeesWhatIsSavedAndNeeded) {
  StepProfile profile = step();
  size_t saves = 0, restores = 0;
  for (const StepEvent &event : profile.events) {
    saves += event.kind == StepEvent::Kind::Save;
    restores += event.kind == StepEvent::Kind::Restore;
    EXPECT_GE(event.seconds, 0);
  }
  ASSERT_GT(saves, 0u);
  EXPECT_EQ(saves, restores);
  EXPECT_EQ(profile.gaps.size(), saves);
  for (const ResidencyGap &gap : profile.gaps) {
    EXPECT_EQ(profile.events[gap.leaves].kind, StepEvent::Kind::Save) << gap.tensor;
    EXPECT_EQ(profile.events[gap.needed].kind, StepEvent::Kind::Restore) << gap.tensor;
    EXPECT_EQ("forward." + profile.events[gap.leaves].label, gap.tensor);
    EXPECT_GE(gap.bytes, gap.outBytes) << gap.tensor;
    EXPECT_GT(gap.outBytes, 0u) << gap.tensor;
  }
}

TEST_F(StepRecorderTest, TakesTimeByTheProfileOfTheDevice) {
  double seconds = 0;
  for (const StepEvent &event : step().events)
    seconds += event.seconds;
  uint64_t commands = 0;
  for (const char *name : {"forward", "backward"})
    for (const CommandCount &count : binary.program(name).commandCounts())
      if (count.kind == "Launch" || count.kind == "Matmul")
        commands += count.count;
  ASSERT_GT(commands, 5u);
  EXPECT_GE(seconds, double(commands) * 5e-6);
  EXPECT_LT(seconds, double(commands) * 5e-5);
}

TEST_F(StepRecorderTest, IsTheSameEveryTimeAndCanBePlanned) {
  step(); // prepares the programs
  StepProfile first = step(), second = step();
  ASSERT_EQ(first.events.size(), second.events.size());
  for (size_t i = 0; i < first.events.size(); ++i) {
    EXPECT_EQ(first.events[i].label, second.events[i].label);
    EXPECT_EQ(first.events[i].peakBytes, second.events[i].peakBytes) << first.events[i].label;
    EXPECT_NEAR(first.events[i].seconds, second.events[i].seconds, 1e-12) << first.events[i].label;
  }
  ResidencyPlanner planner(first);
  EXPECT_GT(planner.unconstrained().peakBytes, planner.profile().gaps[0].bytes);
  EXPECT_LE(planner.smallestBudget(), planner.unconstrained().peakBytes);
}

TEST_F(StepRecorderTest, NeedsAStep) {
  EXPECT_THROW(recorder.takeProfile({.h2dBytesPerSecond = 1, .d2hBytesPerSecond = 1}), Error);
}

} // namespace
