//===- PhaseClockTest.cpp - phases last as long as they run ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `phase_durations` of Conductor are times of the compute queue, however far ahead
// the thread is that submits, which never waits for them.
//
//===----------------------------------------------------------------------===//

#include "SavedChain.h"
#include <chrono>
#include <future>
#include <thread>

using namespace segue;
using namespace segue::test;

namespace {
struct PhaseClockTest : SavedChainTest {
  void startConductor() { start({{"memory", {{"stagehand", {{"conductor_config", conductor()}}}}}}); }
};
} // namespace

// To the digit in virtual time, in which the host has not waited.
TEST_F(PhaseClockTest, VirtualTimesAreExact) {
  device = Device::open("sim:virtual,dram=1MiB,flops=1TFLOP/s,launch=0s");
  startConductor();
  auto compute = [&](uint64_t seconds) {
    device->enqueue(Queue::Compute, Fence(), Work{[] {}, {.flops = seconds * 1'000'000'000'000}, "work"});
  };
  for (int step = 1; step <= 2; ++step) {
    double begin = device->seconds();
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    compute(1);
    enter(Phase::Backward);
    compute(2);
    enter(Phase::Forward); // a micro-batch more
    compute(3);
    enter(Phase::Backward);
    enter(Phase::Optimizer);
    compute(5);
    enter(Phase::StepEnd);
    EXPECT_EQ(device->seconds(), begin);
    EXPECT_EQ(services->conductorRecord()["phase_durations"],
              Json::parse(R"({"step_begin": 0.0, "forward": 4.0, "backward": 2.0, "optimizer": 5.0})"));
    EXPECT_EQ(device->seconds(), begin);
    device->drain();
    EXPECT_EQ(folder.lines("conductor.jsonl").size(), size_t(step));
  }
  EXPECT_EQ(folder.lines("conductor.jsonl")[1]["phase_durations"]["optimizer"], 5.0);
}

// A step ends while its forward has not begun to run; its record is written once it
// has, with the time that it took.
TEST_F(PhaseClockTest, AStepEndsBeforeItsPhasesRan) {
  device = Device::open("sim:dram=1MiB,threads=1");
  startConductor();
  std::promise<void> gate, began;
  std::shared_future<void> opened = gate.get_future().share();
  auto step = [&](bool isGated) {
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    if (isGated)
      device->enqueue(Queue::Compute, Fence(), Work{[&began, opened] {
                             began.set_value();
                             opened.wait();
                           },
                           {},
                           "work"});
    enter(Phase::Backward);
    enter(Phase::StepEnd);
  };
  step(/*isGated=*/true);
  began.get_future().wait();
  double ended = device->seconds();
  step(/*isGated=*/false);
  EXPECT_TRUE(folder.lines("conductor.jsonl").empty()) << "nothing has run";
  std::this_thread::sleep_for(std::chrono::milliseconds(50)); // longer than a busy machine may hold up what follows
  double waited = device->seconds() - ended;
  gate.set_value();
  EXPECT_EQ(services->conductorRecord()["step_id"], 2);
  services->finishRecords();
  std::vector<Json> lines = folder.lines("conductor.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_GE(lines[0]["phase_durations"]["forward"].get<double>(), waited);
  EXPECT_LT(lines[0]["phase_durations"]["backward"].get<double>(),
            lines[0]["phase_durations"]["forward"].get<double>());
  // What nobody asks for is written at the end.
  step(/*isGated=*/false);
  services.reset();
  EXPECT_EQ(folder.lines("conductor.jsonl").size(), 3u);
}
