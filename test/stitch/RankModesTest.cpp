//===- RankModesTest.cpp - ranks under every service ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A model of blocks, trained by two ranks that have each a budget of their own: to the bits
// of one rank without services that has the batches of both. Gradients are sent while
// backward goes on.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "DeepModel.h"
#include "RandomTensors.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;
using namespace segue::test;

static constexpr int steps = 20;

namespace {
struct Way {
  const char *name, *device;
  /// The section memory.stagehand; empty: no services.
  const char *services = "";
};

/// Notes how many messages have been given to the network when each backward ends.
struct Messages final : ForwardEvents {
  DeviceRef device;
  uint64_t before = 0;
  std::vector<uint64_t> inBackward;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::Backward)
      before = device->position(Queue::Network);
    else if (begin.phase == Phase::Optimizer)
      inBackward.push_back(device->position(Queue::Network) - before);
  }
  void on(const auto &) {}
};

struct RankModes : testing::TestWithParam<Way> {};

const char *const marks = R"({"activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
  "pinned_pool_classes_mb": [1], "slabs_per_class": 6, "vram_high_watermark_mb": 0.001, "vram_low_watermark_mb": 0},
  "state_stagehand": {"mode": "on", "telemetry_enabled": false}})";
const char *const plan = R"({"activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";
const char *const ring = R"({"telemetry_enabled": false, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5})";
const char *const planAndRing = R"({"telemetry_enabled": false, "prefetch_window_blocks": 1,
  "vram_high_watermark_mb": 0.5,
  "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";
} // namespace

static const DeepModel model{.layers = 6, .rows = 256, .width = 64, .isRandom = true};

static const Binary &binary() {
  static const Binary file = model.compiled();
  return file;
}

/// Losses of all steps, and the parameters after the last.
static std::vector<float> train(Session &session, int first, int count) {
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
  std::vector<float> bits;
  for (int step = 0; step < steps; ++step) {
    std::vector<TensorMap> batches;
    for (int i = first; i < first + count; ++i)
      batches.push_back({{"x", randomTensor(session.device(), {model.rows, model.width}, uint32_t(100 + 2 * step + i))}});
    StepResult result = session.step(batches, 1e-2);
    bits.push_back(float(result.loss));
    bits.push_back(float(result.gradNorm));
  }
  for (const ParameterInfo &info : session.parameters())
    for (float value : values(session.parameter(info.key)))
      bits.push_back(value);
  return bits;
}

static const std::vector<float> &alone() {
  static const std::vector<float> bits = [] {
    SessionOptions options;
    options.maxGradNorm = 1e-3;
    options.seed = 11;
    Session session(Device::open("cpu:threads=1"), {{"deep", binary()}}, options);
    return train(session, 0, 2);
  }();
  return bits;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, RankModes,
    testing::Values(Way{"Cpu", "cpu:threads=1"}, Way{"Sim", "sim:dram=16MiB,pinned=16MiB,threads=1,link=8GB/s"},
                    Way{"Streams", "sim:streams,dram=16MiB,pinned=16MiB,threads=1,adversarial=5"},
                    Way{"Marks", "sim:dram=1MiB,pinned=16MiB,threads=1,link=8GB/s", marks},
                    Way{"MarksInAnyOrder", "sim:dram=1MiB,pinned=16MiB,threads=1,adversarial=6", marks},
                    Way{"Plan", "sim:dram=700KiB,pinned=16MiB,threads=1,link=8GB/s", plan},
                    Way{"PlanInAnyOrder", "sim:streams,dram=700KiB,pinned=16MiB,threads=1,adversarial=7", plan},
                    Way{"Ring", "sim:dram=4MiB,pinned=16MiB,threads=1,link=8GB/s", ring},
                    Way{"PlanAndRing", "sim:dram=700KiB,pinned=16MiB,threads=1,link=8GB/s", planAndRing}),
    [](const auto &info) { return info.param.name; });

TEST_P(RankModes, TwoRanksAreOneWithTwoBatches) {
  const Way &way = GetParam();
  std::vector<std::vector<uint64_t>> sent(2);
  EXPECT_EQ(onRanks(
                2, way.device,
                [&](Rank &rank) {
                  Messages messages;
                  messages.device = rank.device;
                  SessionOptions options;
                  options.maxGradNorm = 1e-3;
                  options.seed = 11 + rank.number(); // that of rank 0 is taken
                  options.collectives = rank.together;
                  options.events = &messages;
                  options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
                  std::string services = way.services;
                  if (!services.empty())
                    options.config = Config::parse(R"({"memory": {"stagehand": )" + services + "}}", "test");
                  Session session(rank.device, {{"deep", binary()}}, std::move(options));
                  std::vector<float> bits = train(session, rank.number(), 1);
                  EXPECT_TRUE(bits == alone()); // a thousand numbers would be told
                  sent[size_t(rank.number())] = messages.inBackward;
                },
                {.seed = 9}, {.bucketBytes = 20000}),
            nothing(2));
  for (const std::vector<uint64_t> &each : sent)
    EXPECT_EQ(each.size(), size_t(steps));
  // All gradients but the first layer's are final before the last block of backward; those that live on the host are
  // sent behind it.
  if (std::string_view(way.services).empty()) {
    EXPECT_EQ(sent, std::vector(2, std::vector<uint64_t>(steps, uint64_t(model.layers))));
  }
}
