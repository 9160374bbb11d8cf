//===- PlannedModeTest.cpp - a budget is a promise ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `mode: planned` in a session that trains: whatever the cap, the bits are those
// of the run without services, and the device never holds more than the cap.
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "segue/runtime/Plan/StepTwin.h"
#include <fstream>
#include <sstream>

using namespace segue;

static constexpr int64_t layers = 8, rows = 512, width = 128;

/// gelu (x w) eight times, and the mean of the squares.
static std::string model() {
  std::string matrix = "tensor<" + std::to_string(width) + "x" + std::to_string(width) + "xf32>";
  std::string wide = "tensor<" + std::to_string(rows) + "x" + std::to_string(width) + "xf32>";
  std::ostringstream out;
  out << "func.func @forward(%h0: " << wide
      << " {segue.name = \"x\", segue.role = #segue.role<input>, segue.requires_grad = false}";
  for (int64_t i = 0; i < layers; ++i)
    out << ",\n  %w" << i << ": " << matrix << " {segue.name = \"w" << i << "\", segue.role = #segue.role<parameter>}";
  out << ")\n  -> (tensor<f32> {segue.name = \"loss\", segue.role = #segue.role<output>}) {\n";
  for (int64_t i = 0; i < layers; ++i)
    out << "  %p" << i << " = segue.dot_general %h" << i << ", %w" << i
        << " batch [] x [] contract [1] x [1] {segue.block = \"h." << i << "\"} : " << wide << ", " << matrix << " -> "
        << wide << "\n  %h" << i + 1 << " = segue.gelu tanh %p" << i << " {segue.block = \"h." << i << "\"} : " << wide
        << "\n";
  out << "  %s = segue.mul %h" << layers << ", %h" << layers << " : " << wide
      << "\n  %loss = segue.reduce mean %s dims [0, 1] : " << wide
      << " -> tensor<f32>\n  return %loss : tensor<f32>\n}\n";
  return out.str();
}

static const Binary &binary() {
  static const Binary file = [] {
    CompileOptions options;
    options.name = "deep";
    options.training = true;
    options.optimizer = "adamw";
    CompiledModule module(model(), options);
    if (!module.binary)
      throw std::runtime_error(module.diagnostics);
    return *module.binary;
  }();
  return file;
}

namespace {
class PlannedModeTest : public testing::TestWithParam<const char *> {
protected:
  struct Run {
    std::vector<float> bits;
    uint64_t peak = 0;
  };

  /// Some steps; the device's budget is `capBytes`, 0: none and no services.
  Run train(uint64_t capBytes, int steps = 4, size_t microBatches = 1) {
    DeviceRef device = Device::open(GetParam());
    SessionOptions options;
    if (capBytes) {
      double mib = double(capBytes) / 1048576;
      std::ostringstream text;
      text.precision(17);
      text << R"({"memory": {"stagehand": {
        "conductor_config": {"enabled": true, "telemetry_enabled": false, "vram_hard_cap_mb": )"
           << mib << R"(, "vram_soft_cap_mb": )" << mib << R"(},
        "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false,
          "vram_high_watermark_mb": 8, "vram_low_watermark_mb": 4,
          "pinned_pool_classes_mb": [1], "slabs_per_class": 1}}}})";
      options.config = Config::parse(text.str(), "test");
    }
    Session session(device, {{"deep", binary()}}, std::move(options));
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    device->memory().resetPeak();
    Run run;
    std::vector<TensorMap> batches(microBatches);
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < microBatches; ++i)
        batches[i]["x"] = randomTensor(device, {rows, width}, uint32_t(100 * step) + uint32_t(i));
      run.bits.push_back(float(session.step(batches, 1e-3).loss));
    }
    run.peak = device->memory().peakBytes(Space::DeviceDram);
    for (const ParameterInfo &info : session.parameters())
      for (float value : values(session.parameter(info.key)))
        run.bits.push_back(value);
    return run;
  }

  ResidencyPlanner planner(size_t microBatches = 1) {
    StepTwin twin(virtualTwin(*Device::open(GetParam())), {{"deep", binary()}}, {}, microBatches);
    return ResidencyPlanner(twin.record());
  }
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, PlannedModeTest,
                         testing::Values("sim:dram=16MiB,pinned=8MiB,link=8GB/s,latency=1us,threads=1",
                                         "sim:dram=16MiB,pinned=8MiB,link=8GB/s,latency=1us,threads=1,adversarial=5"));

TEST_P(PlannedModeTest, ACapIsKeptAndChangesNoBit) {
  Run free = train(0);
  ResidencyPlanner plans = planner();
  uint64_t least = plans.smallestBudget(), most = plans.unconstrained().peakBytes;
  ASSERT_LT(least + 3 * rows * width * 4, most) << "too little can leave for a test";
  // Weights, their gradients and AdamW's states are among what leaves.
  StepProfile saved = plans.profile();
  std::vector<uint32_t> residents;
  for (uint32_t gap = 0; gap < saved.gaps.size(); ++gap)
    if (saved.gaps[gap].resident != noIndex)
      residents.push_back(gap);
  removeGaps(saved, residents);
  EXPECT_LT(least + 2 * layers * width * width * 4, ResidencyPlanner(saved).smallestBudget());
  for (uint64_t i = 0; i <= 4; ++i) {
    uint64_t cap = least + (most - least) * i / 4;
    Run run = train(cap);
    EXPECT_EQ(run.bits, free.bits) << "cap " << cap;
    EXPECT_LE(run.peak, cap);
  }
  EXPECT_GT(free.peak, least);
}

TEST_P(PlannedModeTest, MicroBatchesAreOfThePlan) {
  Run free = train(0, 3, 3);
  ResidencyPlanner plans = planner(3);
  uint64_t cap = (plans.smallestBudget() + plans.unconstrained().peakBytes) / 2;
  Run run = train(cap, 3, 3);
  EXPECT_EQ(run.bits, free.bits);
  EXPECT_LE(run.peak, cap);
}

TEST_P(PlannedModeTest, AnInfeasibleCapIsRefusedBeforeTheFirstStep) {
  uint64_t least = planner().smallestBudget();
  try {
    train(least - 4096);
    FAIL() << "trained in less than the least";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::BudgetInfeasible) << error.what();
    EXPECT_NE(std::string(error.what()).find("the smallest budget is"), std::string::npos) << error.what();
  }
}
