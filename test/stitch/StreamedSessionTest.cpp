//===- StreamedSessionTest.cpp - weights come with their block ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A session whose config asks for Weight Stagehand trains to the bits of one
// without: losses, norms, gradients, parameters, evaluations, checkpoints.
//
//===----------------------------------------------------------------------===//

#include "StreamedModel.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <nlohmann/json.hpp>
#include <set>

using namespace segue;
using namespace segue::test;

namespace {
class StreamedSessionTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());

  Session make(const std::string &config = "", SessionOptions options = {}) {
    return makeSession(device, config, std::move(options));
  }
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, StreamedSessionTest,
                         testing::Values("cpu:threads=2", "sim:dram=4MiB,pinned=8MiB,link=4GB/s,latency=2us",
                                         "sim:dram=4MiB,pinned=64KiB", "sim:dram=4MiB,adversarial=1",
                                         "sim:dram=4MiB,pinned=8MiB,adversarial=2",
                                         "sim:streams,dram=4MiB,pinned=8MiB,link=4GB/s,latency=2us",
                                         "sim:streams,dram=4MiB,pinned=8MiB,adversarial=2",
                                         "cpu:dram=4MiB,threads=2,disk=.?capacity=16MiB&read=1GB/s&write=1GB/s"));

static double lossOf(Session &session, int seed) { return session.step(batchOf(session.device(), seed), 1e-2).loss; }

static Tensor hostCopy(const Tensor &tensor) {
  Tensor copy = Tensor::onHost(tensor.device(), tensor.shape(), tensor.element());
  copyInto(tensor, copy);
  wait(copy);
  return copy;
}

/// Everything that can differ, over steps of all kinds.
static std::vector<float> train(Session &session) {
  std::vector<float> bits;
  auto add = [&](const std::vector<float> &more) { bits.insert(bits.end(), more.begin(), more.end()); };
  auto addStep = [&](const StepResult &result) { add({float(result.loss), float(result.gradNorm)}); };
  const DeviceRef &device = session.device();
  addStep(session.step(batchOf(device, 1), 1e-2));
  add(values(session.evaluate(batchOf(device, 50)).at("loss")));
  TensorMap batches[] = {batchOf(device, 2), batchOf(device, 3), batchOf(device, 4)};
  addStep(session.step(batches, 1e-2));
  // An evaluation in the midst of a step, and gradients that wait.
  bits.push_back(float(session.forwardBackward(batchOf(device, 5))));
  add(values(session.evaluate(batchOf(device, 51)).at("loss")));
  bits.push_back(float(session.forwardBackward(batchOf(device, 6))));
  for (const ParameterInfo &info : session.parameters())
    if (info.trained)
      add(values(session.gradient(info.key)));
  add(values(session.parameter("w1")));
  addStep(session.optimize(1e-2));
  // A value from outside, then back to what was.
  Checkpoint kept = session.checkpoint();
  for (const auto &[key, tensor] : kept.parameters)
    kept.parameters[key] = hostCopy(tensor);
  for (const auto &[key, tensor] : kept.state)
    kept.state[key] = hostCopy(tensor);
  session.setParameter("w0", randomTensor(device, {modelWidth, modelWidth}, 900));
  session.setParameter("f2.weight", randomTensor(device, {modelWidth, modelWidth}, 901));
  addStep(session.step(batchOf(device, 7), 1e-2));
  add(values(session.evaluate(batchOf(device, 52)).at("loss")));
  session.restore(kept);
  addStep(session.step(batchOf(device, 8), 1e-2));
  for (const ParameterInfo &info : session.parameters())
    add(values(session.parameter(info.key)));
  for (const auto &[key, tensor] : session.state())
    add(values(tensor));
  return bits;
}

TEST_P(StreamedSessionTest, TrainsToTheSameBits) {
  const std::vector<float> expected = [&] {
    Session resident = make();
    EXPECT_EQ(resident.services(), nullptr);
    return train(resident);
  }();
  std::set<int64_t> rings;
  for (double high : {0.38, 0.4, 0.42, 3.0})
    for (int64_t window : {0, 1, 3}) {
      SCOPED_TRACE("high " + std::to_string(high) + " MiB, window " + std::to_string(window));
      Session session = make(streamingConfig(high, window));
      EXPECT_EQ(train(session), expected);
      ASSERT_NE(session.services()->weights(), nullptr);
      rings.insert(session.services()->weights()->slots());
      EXPECT_FALSE(session.services()->weightRecord()["aborted"]);
    }
  EXPECT_TRUE(rings.contains(modelLayers * 2)) << "all are there";
  EXPECT_GE(rings.size(), 3u);
}

// Homes take page-locked memory first, but not the last of it: what lies in
// pageable memory is staged, and the host waits for no copy.
TEST(StreamedHomesTest, LeaveRoomToStage) {
  DeviceRef device = Device::open("sim:dram=4MiB,pinned=1MiB");
  uint64_t budget = device->memory().budget(Space::HostPinned), matrix = modelWidth * modelWidth * sizeof(float);
  TensorDesc others({int64_t(budget - budget / 16 - 3 * matrix)}, ElementType::i8, {.space = Space::HostPinned});
  Tensor held = Tensor::empty(device, others);
  Session session = makeSession(device, streamingConfig(0.38, 1), {});
  const TransferCounters &counters = device->transfer().counters();
  for (int step = 0; step < 2; ++step)
    lossOf(session, step);
  device->drain();
  EXPECT_GE(device->memory().liveBytes(Space::HostPinned), held.desc().spanBytes() + 2 * matrix) << "page-locked homes";
  EXPECT_GT(counters.hostBytes, 0u) << "pageable ones";
  EXPECT_EQ(counters.pageableCopies, 0u);
}

// A gradient whose block has left is where the optimizer's program declares its
// input, in the step's sums, too; with a plan it is brought there for each.
TEST_P(StreamedSessionTest, GradientsAreWhereTheOptimizerWantsThem) {
  auto accumulate = [](Session &session) {
    for (int batch = 0; batch < 3; ++batch)
      session.forwardBackward(batchOf(session.device(), batch));
  };
  std::map<std::string, std::vector<float>> expected;
  {
    Session resident = make();
    accumulate(resident);
    for (const ParameterInfo &info : resident.parameters())
      if (info.trained)
        expected[info.key] = values(resident.gradient(info.key));
  }
  Session session = make(streamingConfig(0.38, 1));
  accumulate(session);
  const WeightStreamer &weights = *session.services()->weights();
  int away = 0;
  for (const SessionModule &module : modelModules())
    if (module.name == "back")
      for (const Value &input : module.binary.program("optimizer").inputs()) {
        if (input.role != Role::Gradient)
          continue;
        const Tensor &gradient = session.gradient(input.of);
        EXPECT_EQ(gradient.desc().layout.space, input.desc().layout.space) << input.of;
        EXPECT_EQ(values(gradient), expected.at(input.of)) << input.of;
        std::string block = weights.blockOf("back", input.of);
        away += !block.empty() && weights.policy().state("back/" + block) == BlockState::Unloaded;
      }
  EXPECT_GE(away, 1) << weights.policy().describe();
}

// Frozen parameters stay in the file, and take no memory of the host.
TEST_P(StreamedSessionTest, FrozenParametersStayInTheFile) {
  TemporaryFolder folder;
  {
    Session session = make();
    saveSafetensors(folder.path / "weights.safetensors", session.checkpoint().parameters);
  }
  Session resident = makeSession(Device::open(GetParam()));
  resident.loadWeights(folder.path / "weights.safetensors");
  Session session = make(streamingConfig(0.22, 2));
  session.loadWeights(folder.path / "weights.safetensors");
  EXPECT_FALSE(session.parameter("f1.weight").storage()->isWritable()) << "the mapped file itself";
  EXPECT_TRUE(session.parameter("w1").storage()->isWritable());
  for (int step = 0; step < 3; ++step)
    EXPECT_EQ(lossOf(session, step), lossOf(resident, step));
  EXPECT_GT(session.services()->weightRecord()["file_read_ms"].get<double>(), 0) << "read from the file in each step";
  for (const ParameterInfo &info : session.parameters())
    EXPECT_EQ(values(session.parameter(info.key)), values(resident.parameter(info.key))) << info.key;
  // A checkpoint has them too, and they stay where they are when it comes back.
  session.save(folder.path / "checkpoint.safetensors");
  resident.save(folder.path / "expected.safetensors");
  session.load(folder.path / "checkpoint.safetensors");
  EXPECT_FALSE(session.parameter("f1.weight").storage()->isWritable());
  Session other = makeSession(Device::open(GetParam()), streamingConfig(0.22, 2));
  other.load(folder.path / "expected.safetensors");
  EXPECT_EQ(lossOf(other, 9), lossOf(session, 9));
}

// Memory that the caller keeps is read anew in every step and written when it
// ends; training goes on in it.
TEST_P(StreamedSessionTest, BoundMemoryCountsAndIsWritten) {
  Session resident = makeSession(Device::open(GetParam())), session = make(streamingConfig(3.0, 2));
  Tensor mine = hostCopy(session.parameter("w2"));
  EXPECT_TRUE(session.bindParameter("w2", mine));
  EXPECT_FALSE(session.bindParameter("w3", mine)) << "two copies on the device would go apart";
  resident.setParameter("w2", mine);
  resident.setParameter("w3", mine);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(lossOf(session, step), lossOf(resident, step));
    EXPECT_EQ(values(mine), values(resident.parameter("w2")));
    mine.data<float>()[5] = 0.25f * float(step);
    resident.setParameter("w2", mine);
  }
}

// What was asked for is said by stagehand_enabled or any key of Weight
// Stagehand; sections of other services alone switch nothing on.
TEST_P(StreamedSessionTest, OtherSectionsDoNotSwitchItOn) {
  auto streams = [&](const std::string &stagehand) {
    Session session = make(R"({"memory": {"stagehand": )" + stagehand + "}}");
    return session.services() && session.services()->weights();
  };
  EXPECT_FALSE(streams("{}"));
  EXPECT_FALSE(streams(R"({"conductor_config": {"enabled": true, "telemetry_enabled": false}})"));
  EXPECT_FALSE(streams(R"({"stagehand_enabled": false, "telemetry_enabled": false, "prefetch_window_blocks": 2})"));
  EXPECT_TRUE(streams(R"({"stagehand_enabled": true, "telemetry_enabled": false})"));
  EXPECT_TRUE(streams(R"({"prefetch_window_blocks": 2, "telemetry_enabled": false})"));
}

// What blocks share stays on the device, and what the optimizer updates outside
// of the block that it belongs to.
TEST_P(StreamedSessionTest, WhatCannotBeStreamedStaysOnTheDevice) {
  Session session = make(streamingConfig(3.0, 2));
  for (const ParameterInfo &info : session.parameters()) {
    bool isOnHost = session.parameter(info.key).desc().layout.space != Space::DeviceDram;
    EXPECT_EQ(isOnHost, info.key != "shared" && info.key != "outer") << info.key;
  }
}

TEST(StreamedSession, TakesTimeAndMemoryWithoutBytes) {
  DeviceRef device = Device::open("sim:virtual,dram=4MiB,link=1GB/s");
  Session session(device, modelModules(), [] {
    SessionOptions options;
    options.config = Config::parse(streamingConfig(0.22, 1), "test");
    options.wires = {{"back", "hidden", "front", "h"}};
    return options;
  }());
  session.allocateParameters();
  TensorMap batch{{"x", Tensor::onHost(device, {modelRows, modelWidth}, ElementType::f32)}};
  for (int step = 0; step < 3; ++step) {
    double before = device->seconds();
    session.step(batch, 1e-2);
    EXPECT_GT(device->seconds(), before);
    EXPECT_GT(session.services()->weightRecord()["loads"], 0) << session.services()->weightRecord().dump();
  }
  EXPECT_LT(session.services()->weights()->slots(), 2 * modelLayers);
}
