//===- GpuSessionTest.cpp - sessions on a fake GPU ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Sessions with every service on a GPU of the fake driver, in many of the orders in which a
// GPU may do what it is given: losses and parameters are those of a run in memory, to the bit.
//
//   SEGUE_GPU_ORDERS=100 SegueGpuStitchTests --gtest_filter='GpuSession*'   more orders of each
//
//===----------------------------------------------------------------------===//

#include "../../runtime/test/Cuda/FakeCuda.h"
#include "DeepModel.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

using namespace segue;
using namespace segue::test;

static constexpr DeepModel model{.layers = 6, .rows = 32, .width = 96, .forGpus = true};
static constexpr int steps = 2;

namespace {
struct GpuRun {
  const char *name;
  /// The options of the device besides its memory.
  const char *options;
  /// The part of the peak in memory that the device has.
  double part;
  /// What memory.stagehand holds.
  const char *stagehand;
};

constexpr const char *planned =
    R"("activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false})";
constexpr const char *watermarks =
    R"("activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
       "pinned_pool_classes_mb": [1], "slabs_per_class": 6, "vram_low_watermark_mb": 0,
       "vram_high_watermark_mb": 0.001})";
constexpr const char *ring = R"("telemetry_enabled": false, "prefetch_window_blocks": 1)";

/// The least that may be above a disk, an eighth of it buffers.
constexpr const char *aboveDisk = "host=256KiB,disk=.?capacity=16MiB";

constexpr GpuRun runs[] = {
    {"Planned", "pinned=64MiB", 0.7, planned},
    {"Watermarks", "pinned=64MiB", 1, watermarks},
    {"Ring", "pinned=64MiB", 1, ring},
    {"PlannedAboveDisk", aboveDisk, 0.6, planned},
    {"WatermarksAboveDisk", aboveDisk, 1, watermarks},
    {"RingAboveDisk", aboveDisk, 1, ring},
};

void PrintTo(const GpuRun &run, std::ostream *os) { *os << run.name; }

class GpuSession : public testing::TestWithParam<GpuRun> {};

const Binary &binary() {
  static const Binary file = model.compiled();
  return file;
}

/// The losses of some steps and the parameters after them.
std::vector<float> trained(const DeviceRef &device, const std::string &stagehand) {
  SessionOptions options;
  options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
  options.maxGradNorm = 0.01;
  if (!stagehand.empty())
    options.config = Config::parse("{\"memory\": {\"stagehand\": {" + stagehand + "}}}", "test");
  Session session(device, {{"deep", binary()}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
  std::vector<float> bits;
  for (int step = 0; step < steps; ++step) {
    TensorMap batch;
    batch["x"] = randomTensor(device, {model.rows, model.width}, uint32_t(100 * step));
    bits.push_back(float(session.step(std::vector{batch}, 1e-3).loss));
  }
  for (const ParameterInfo &info : session.parameters())
    for (float value : values(session.parameter(info.key)))
      bits.push_back(value);
  return bits;
}

struct InMemory {
  std::vector<float> bits;
  uint64_t peak = 0;
};
const InMemory &inMemory() {
  static const InMemory known = [] {
    DeviceRef device = Device::open("cuda:14,dram=64MiB,pinned=64MiB");
    InMemory made{trained(device, "")};
    made.peak = device->memory().peakBytes(Space::DeviceDram);
    return made;
  }();
  return known;
}

std::string runName(const testing::TestParamInfo<GpuRun> &info) { return info.param.name; }
} // namespace

INSTANTIATE_TEST_SUITE_P(Runs, GpuSession, testing::ValuesIn(runs), runName);

TEST_P(GpuSession, EveryOrderHasTheBitsOfARunInMemory) {
  const GpuRun &run = GetParam();
  const char *asked = std::getenv("SEGUE_GPU_ORDERS");
  uint64_t orders = asked ? std::strtoull(asked, nullptr, 10) : 4;
  uint64_t dram = uint64_t(double(inMemory().peak) * run.part);
  for (uint64_t seed = 0; seed < orders; ++seed) {
    fakecuda::reseed(seed);
    DeviceRef device =
        Device::open("cuda:" + std::to_string(seed % 8) + ",dram=" + std::to_string(dram) + "," + run.options);
    std::vector<float> bits = trained(device, run.stagehand);
    ASSERT_EQ(bits.size(), inMemory().bits.size());
    ASSERT_EQ(std::memcmp(bits.data(), inMemory().bits.data(), bits.size() * sizeof(float)), 0) << "order " << seed;
    ASSERT_EQ(fakecuda::misuse(), "") << "order " << seed;
    EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), dram);
    EXPECT_GT(device->transfer().counters().d2hBytes, 0u);
    EXPECT_EQ(device->transfer().counters().diskReadBytes > 0, run.options == aboveDisk);
  }
}
