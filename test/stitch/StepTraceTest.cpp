//===- StepTraceTest.cpp - training steps as a Perfetto trace -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/StepTrace.h"
#include "segue/runtime/Runtime.h"
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

namespace {

class StepTraceTest : public testing::TestWithParam<const char *> {
protected:
  StepTraceTest() : trace(device) {
    std::vector<SessionModule> modules;
    for (const char *name : {"front", "back"})
      modules.push_back(
          {name, Binary::load(std::filesystem::path(SEGUE_STITCH_BINARIES) / (std::string(name) + ".segue"))});
    session.emplace(device, std::move(modules), SessionOptions{.events = &trace});
    for (const ParameterInfo &info : session->parameters())
      session->setParameter(info.key, Tensor::zeros(device, TensorDesc(info.desc.shape, info.desc.element)));
  }

  void step() {
    TensorMap batch;
    TensorDesc desc({2, 8}, ElementType::i64);
    desc.layout.space = Space::Host;
    for (const char *name : {"tokens", "targets"})
      batch[name] = Tensor::zeros(device, desc);
    session->step(batch, 1e-3);
  }

  std::vector<Json> select(const Json &json, const char *kind, std::string_view track = "") {
    std::map<int, std::string> tracks;
    std::vector<Json> found;
    for (const Json &event : json["traceEvents"])
      if (event["ph"] == "M")
        tracks[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    for (const Json &event : json["traceEvents"])
      if (event["ph"] == kind && (track.empty() || tracks[event["tid"].get<int>()] == track))
        found.push_back(event);
    return found;
  }

  DeviceRef device = Device::open(GetParam());
  StepTrace trace;
  std::optional<Session> session;
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, StepTraceTest, testing::Values("cpu:threads=1", "sim:dram=16MiB,link=1GB/s,latency=1us"));

// Records lie in memory, beside any budget: a trace that is full ends with its step, and says so.
TEST_P(StepTraceTest, EndsWhereItIsFull) {
  step();
  step();
  EXPECT_EQ(trace.endedAfter(), std::nullopt);
  Json whole = trace.toJson();
  EXPECT_FALSE(whole["otherData"].contains("ended_after_steps"));
  session.reset();
  StepTrace small(device, StepTrace::Memory::ByRole, StepTrace::Commands::Left, /*mostRecords=*/500);
  int steps = 0;
  for (; !small.endedAfter() && steps < 200; ++steps)
    for (Phase phase : {Phase::StepBegin, Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::StepEnd})
      small.receive(event::PhaseBegin{phase, steps + 1});
  ASSERT_TRUE(small.endedAfter());
  EXPECT_LT(steps, 200);
  EXPECT_GT(*small.endedAfter(), 2u);
  small.setOn(true);
  for (Phase phase : {Phase::StepBegin, Phase::Forward})
    small.receive(event::PhaseBegin{phase, steps + 1});
  Json json = small.toJson();
  EXPECT_EQ(json["otherData"]["ended_after_steps"], *small.endedAfter());
  std::vector<Json> phases = select(json, "X", "phase");
  EXPECT_EQ(phases.size(), 5 * *small.endedAfter());
  EXPECT_TRUE(device->transfer().tracesCopies()) << "the other trace is at work";
}

TEST_P(StepTraceTest, ShowsPhasesAndBlocksInOrder) {
  step();
  step();
  Json json = trace.toJson();
  std::vector<std::string> phases;
  double end = 0;
  for (const Json &phase : select(json, "X", "phase")) {
    phases.push_back(phase["name"].get<std::string>());
    EXPECT_NEAR(phase["ts"].get<double>(), end, phases.size() == 1 ? 1e9 : 1e-3) << phases.back();
    end = phase["ts"].get<double>() + phase["dur"].get<double>();
  }
  ASSERT_GE(phases.size(), 10u);
  EXPECT_EQ(std::vector(phases.begin(), phases.begin() + 5),
            (std::vector<std::string>{"step_begin", "forward", "backward", "optimizer", "step_end"}));
  EXPECT_EQ(phases[5], "step_begin");
  double before = 0;
  for (const Json &block : select(json, "X", "block")) {
    EXPECT_GE(block["ts"].get<double>(), before) << block;
    EXPECT_GE(block["dur"].get<double>(), 0) << block;
    EXPECT_TRUE(block["args"].contains("program")) << block;
    before = block["ts"].get<double>();
  }
}

TEST_P(StepTraceTest, ShowsCopiesAndMemory) {
  step();
  Json json = trace.toJson();
  std::vector<Json> in = select(json, "X", "h2d");
  EXPECT_EQ(in.empty(), device->hasUnifiedMemory());
  for (const Json &copy : in) {
    EXPECT_GT(copy["dur"].get<double>(), 0) << copy;
    EXPECT_GT(copy["args"]["bytes"].get<int>(), 0) << copy;
  }
  uint64_t most = 0;
  for (const Json &level : select(json, "C"))
    if (level["name"] == "device_dram")
      most = std::max(most, level["args"]["bytes"].get<uint64_t>());
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, device->memory().peakBytes(Space::DeviceDram));
}

TEST_P(StepTraceTest, WritesAFileThatParses) {
  step();
  trace.setOn(false); // a span that is open ends anew each time
  auto path = std::filesystem::path(testing::TempDir()) / ("trace" + std::to_string(getpid()) + ".json");
  trace.write(path);
  std::ifstream file(path);
  Json json = Json::parse(file);
  EXPECT_EQ(json["otherData"]["device"], device->name());
  EXPECT_FALSE(json["traceEvents"].empty());
  EXPECT_EQ(json, trace.toJson());
  std::filesystem::remove(path);
  EXPECT_THROW(trace.write("/nowhere/at/all.json"), Error);
}

// What lies elsewhere than planned is an instant of the trace.
TEST_P(StepTraceTest, ShowsWhereAPlanIsDepartedFrom) {
  DeviceMemory &memory = device->memory();
  trace.on(event::PhaseBegin{Phase::StepBegin});
  AddressPlan plan;
  plan.lines.push_back({MemoryOwner{.value = "planned"}, {{{.offset = 8 << 20, .bytes = 64}}}});
  plan.ranges = {{8 << 20, 64}};
  if (!memory.followAddresses(std::move(plan), nullptr))
    GTEST_SKIP() << "no addresses here";
  memory.beginPlannedStep();
  auto stranger = Storage::allocate(device, Space::DeviceDram, 128, 64, memory.intern({.value = "stranger"}));
  trace.on(event::PhaseBegin{Phase::Forward});
  trace.on(event::PhaseBegin{Phase::StepEnd});
  memory.endPlannedStep();
  memory.forgetAddresses();
  std::vector<Json> found = select(trace.toJson(), "i");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["name"], "departs from planned addresses");
  EXPECT_EQ(found[0]["args"]["blocks"], 1);
  EXPECT_EQ(found[0]["args"]["last"], "128 B for stranger: the plan has no such block");
}
