//===- GpuRanksTest.cpp - ranks on GPUs of the fake driver ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two ranks, each on a GPU of its own, in every strategy and with every service: losses, norms
// and parameters are those of one GPU with the batches of both, to the bit, in many of the
// orders in which GPUs may do what they are given.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/test/Collectives/OnRanks.h"
#include "../../runtime/test/Cuda/FakeCuda.h"
#include "DeepModel.h"
#include "PipelineModel.h"
#include "segue/runtime/Cuda/Nccl.h"
#include "segue/runtime/Session/Session.h"
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

using namespace segue;
using namespace segue::test;

namespace {
constexpr DeepModel model{.layers = 5, .rows = 32, .width = 96, .forGpus = true};
constexpr PipelineModel pipeline{.rows = 32, .width = 96, .forGpus = true};
constexpr int steps = 2;

struct GpuRanksRun {
  const char *name, *strategy;
  Sharding sharding;
};
constexpr GpuRanksRun runs[] = {{"Ddp", "ddp", Sharding::None},
                                {"Zero1", "zero1", Sharding::States},
                                {"Zero2", "zero2", Sharding::Gradients},
                                {"Zero3", "zero3", Sharding::Parameters},
                                {"Pipeline", "pipeline", Sharding::Modules}};
void PrintTo(const GpuRanksRun &run, std::ostream *os) { *os << run.name; }

struct GpuServices {
  /// The part of the peak in memory that each GPU has.
  double part;
  /// The contents of the section memory.stagehand; empty: no services.
  const char *stagehand;
};
constexpr GpuServices services[] = {
    {1.5, ""},
    {0.8, R"("activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false})"},
    {1.2, R"("activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
       "pinned_pool_classes_mb": [1], "slabs_per_class": 6, "vram_low_watermark_mb": 0,
       "vram_high_watermark_mb": 0.001})"},
    {1.2, R"("telemetry_enabled": false, "prefetch_window_blocks": 1)"},
};

class GpuRanks : public testing::TestWithParam<GpuRanksRun> {
protected:
  bool isPipeline() const { return GetParam().sharding == Sharding::Modules; }
  const std::vector<SessionModule> &modules() const {
    static const std::vector<SessionModule> whole{{"deep", model.compiled()}}, stages = pipeline.modules();
    return isPipeline() ? stages : whole;
  }
  TensorMap batch(const DeviceRef &device, int step, int index) const {
    if (isPipeline())
      return pipeline.batch(device, step, index);
    TensorMap batch;
    batch["x"] = randomTensor(device, {model.rows, model.width}, uint32_t(100 * step + index));
    return batch;
  }

  Session make(const DeviceRef &device, const std::string &stagehand, std::shared_ptr<Collectives> together = {}) {
    SessionOptions options;
    options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
    options.maxGradNorm = 0.01;
    options.seed = 11;
    if (!stagehand.empty())
      options.config = Config::parse("{\"memory\": {\"stagehand\": {" + stagehand + "}}}", "test");
    if (together)
      options.sharding = GetParam().sharding;
    options.collectives = std::move(together);
    if (isPipeline())
      options.wires = pipeline.wires();
    Session session(device, modules(), std::move(options));
    if (isPipeline())
      pipeline.setValues(session);
    else
      for (const ParameterInfo &info : session.parameters())
        session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    return session;
  }

  /// Trains on batches from `first` on, so many in each step. Returns losses and norms, and the parameters by name.
  std::map<std::string, std::vector<float>> train(Session &session, int first, int batches) const {
    std::map<std::string, std::vector<float>> bits;
    for (int step = 0; step < steps; ++step) {
      std::vector<TensorMap> given;
      for (int index = first; index < first + batches; ++index)
        given.push_back(batch(session.device(), step, index));
      StepResult result = session.step(given, 1e-3);
      bits["loss"].push_back(float(result.loss));
      bits["norm"].push_back(float(result.gradNorm));
    }
    session.gatherParameters([&](const ParameterInfo &info, const Tensor &value) { bits[info.key] = values(value); });
    return bits;
  }

  /// Expects the bits of one GPU with every service, of ranks whose collectives `join` makes. They may have `moreBytes`
  /// of memory for what one GPU has no need of.
  void expectBitsOfOne(uint64_t moreBytes, const MakeCollectives &join = makeCollectives);
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Strategies, GpuRanks, testing::ValuesIn(runs), [](const auto &info) { return info.param.name; });

void GpuRanks::expectBitsOfOne(uint64_t moreBytes, const MakeCollectives &join) {
  DeviceRef alone = Device::open("cuda:14,dram=64MiB,pinned=64MiB");
  std::map<std::string, std::vector<float>> expected;
  {
    Session one = make(alone, "");
    expected = train(one, 0, 2);
  }
  uint64_t peak = alone->memory().peakBytes(Space::DeviceDram);
  uint64_t order = 0;
  for (const GpuServices &way : services) {
    SCOPED_TRACE(way.stagehand);
    fakecuda::reseed(++order);
    uint64_t part = uint64_t(double(peak) * way.part) + moreBytes;
    std::string device = "cuda:RANK,pinned=64MiB,dram=" + std::to_string(part);
    EXPECT_EQ(onRanks(
                  2, device,
                  [&](Rank &rank) {
                    Session session = make(rank.device, way.stagehand, rank.together);
                    // Each stage gets all batches.
                    EXPECT_TRUE((isPipeline() ? train(session, 0, 2) : train(session, rank.number(), 1)) == expected);
                    EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram), part);
                  },
                  {.seed = 9}, {.bucketBytes = 20000}, join),
              nothing(2));
    EXPECT_EQ(fakecuda::misuse(), "");
  }
}

TEST_P(GpuRanks, HaveTheBitsOfOneGpu) { expectBitsOfOne(0); }

// The fake NCCL takes 6 MiB for itself, and the stage has some 20 KB. Where a config names no watermark of the ring, it is
// a part of all memory, whoever has it: so ranks need more than that sum.
TEST_P(GpuRanks, HaveTheBitsOfOneGpuByNccl) {
  fakecuda::reset();
  auto byNccl = [&](DeviceRef device, std::shared_ptr<Transport> transport, const CollectiveOptions &options) {
    return joinRanks(std::move(device), std::move(transport),
                     {.collectives = options,
                      .way = isPipeline() ? MessageWay::Automatic : MessageWay::Nccl,
                      .isPipeline = isPipeline()});
  };
  expectBitsOfOne((8 << 20) + 24000, byNccl);
  EXPECT_EQ(fakecuda::callCount("ncclCommInitRankConfig") > 0, !isPipeline());
}
