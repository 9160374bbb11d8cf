//===- RehearsalTest.cpp - the first step by watermarks -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Before its first step a session by watermarks plays one on a twin of its
// device: the pool has the slabs that the step wants, and what costs less to
// compute again than to move is not moved, in the first step already.
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include <nlohmann/json.hpp>
#include <sstream>

using namespace segue;

static constexpr int64_t layers = 6, rows = 512, width = 128;

/// gelu (x w) six times, and the mean of the squares: 256 KiB each are saved.
static const Binary &binary() {
  static const Binary file = [] {
    std::ostringstream out;
    std::string matrix = "tensor<128x128xf32>", wide = "tensor<512x128xf32>";
    out << "func.func @forward(%h0: " << wide
        << " {segue.name = \"x\", segue.role = #segue.role<input>, segue.requires_grad = false}";
    for (int64_t i = 0; i < layers; ++i)
      out << ",\n  %w" << i << ": " << matrix << " {segue.name = \"w" << i
          << "\", segue.role = #segue.role<parameter>}";
    out << ")\n  -> (tensor<f32> {segue.name = \"loss\", segue.role = #segue.role<output>}) {\n";
    for (int64_t i = 0; i < layers; ++i)
      out << "  %p" << i << " = segue.dot_general %h" << i << ", %w" << i
          << " batch [] x [] contract [1] x [1] {segue.block = \"h." << i << "\"} : " << wide << ", " << matrix
          << " -> " << wide << "\n  %h" << i + 1 << " = segue.gelu tanh %p" << i << " {segue.block = \"h." << i
          << "\"} : " << wide << "\n";
    out << "  %s = segue.mul %h" << layers << ", %h" << layers << " : " << wide
        << "\n  %loss = segue.reduce mean %s dims [0, 1] : " << wide
        << " -> tensor<f32>\n  return %loss : tensor<f32>\n}\n";
    CompileOptions options;
    options.name = "deep";
    options.training = true;
    options.optimizer = "adamw";
    CompiledModule module(out.str(), options);
    if (!module.binary)
      throw std::runtime_error(module.diagnostics);
    return *module.binary;
  }();
  return file;
}

/// Nobody waits for it: nothing is chosen to be computed again before it was measured.
static const std::string fastLink = "1000GB/s";

namespace {
struct Trained {
  std::vector<double> losses;
  /// Records of the telemetry, by step.
  std::vector<Json> records;
};

struct RehearsalTest : testing::TestWithParam<const char *> {
  /// `link`: in bytes per second, as a spec has it. `more` is said beside.
  static Trained train(const std::string &link, const Json &more, int steps = 4, const Json &conductor = Json()) {
    DeviceRef device = Device::open(std::string(GetParam()) + ",link=" + link);
    SessionOptions options;
    if (!more.is_null()) {
      Json activation = {{"enabled", true},           {"telemetry_enabled", false}, {"pinned_pool_classes_mb", {1}},
                         {"slabs_per_class", 1},      {"pinned_pool_max_mb", 24},   {"vram_high_watermark_mb", 2.5},
                         {"vram_low_watermark_mb", 2}};
      activation.update(more);
      Json stagehand = {{"activation_stagehand", activation}};
      if (!conductor.is_null())
        stagehand["conductor_config"] = conductor;
      options.config = Config::parse(Json{{"memory", {{"stagehand", stagehand}}}}.dump(), "test");
    }
    Session session(device, {{"deep", binary()}}, options);
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    TensorMap batch;
    batch["x"] = randomTensor(device, {rows, width}, 1);
    Trained run;
    for (int i = 0; i < steps; ++i) {
      run.losses.push_back(session.step(batch, 1e-3).loss);
      if (session.services())
        run.records.push_back(session.services()->activationRecord());
    }
    return run;
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Sims, RehearsalTest,
                         testing::Values("sim:dram=16MiB,pinned=64MiB,latency=1us,threads=1",
                                         "sim:dram=16MiB,pinned=64MiB,latency=1us,threads=1,adversarial=5",
                                         "sim:streams,dram=16MiB,pinned=64MiB,latency=1us,threads=1",
                                         "sim:streams,dram=16MiB,pinned=64MiB,latency=1us,threads=1,adversarial=5"));

// A pool that is too small as written has grown before the first save: no step
// finds too little, and none grows more.
TEST_P(RehearsalTest, TheFirstStepMissesNothing) {
  Trained free = train(fastLink, Json()), run = train(fastLink, Json::object());
  EXPECT_EQ(run.losses, free.losses);
  EXPECT_GT(int64_t(run.records[0]["activations_spilled"]), 1) << run.records[0].dump();
  for (const Json &record : run.records) {
    EXPECT_EQ(record["pool_misses"], 0) << record.dump();
    EXPECT_EQ(record["pool_grown_slabs"], 0) << record.dump();
    EXPECT_GT(int64_t(record["pool_bytes"]), 1 << 20);
    EXPECT_LE(int64_t(record["pool_bytes"]), 24 << 20);
  }
}

// Within pinned_pool_max_mb, and Conductor's leave; not at all without pool_growth.
TEST_P(RehearsalTest, NoMoreThanIsAllowed) {
  Trained free = train(fastLink, Json(), 2);
  Trained capped = train(fastLink, {{"pinned_pool_max_mb", 2}}, 2);
  EXPECT_EQ(capped.losses, free.losses);
  EXPECT_EQ(capped.records[0]["pool_bytes"], 2 << 20);
  EXPECT_GT(int64_t(capped.records[0]["pool_misses"]), 0);
  Trained denied =
      train(fastLink, Json::object(), 2, {{"enabled", true}, {"telemetry_enabled", false}, {"pinned_cap_mb", 1}});
  EXPECT_EQ(denied.losses, free.losses);
  EXPECT_EQ(denied.records[0]["pool_bytes"], 1 << 20);
  Trained fixed = train(fastLink, {{"pool_growth", false}}, 2);
  EXPECT_EQ(fixed.losses, free.losses);
  for (const Json &record : fixed.records) {
    EXPECT_EQ(record["pool_bytes"], 1 << 20);
    EXPECT_EQ(record["pool_grown_slabs"], 0);
    EXPECT_GT(int64_t(record["pool_misses"]), 0);
  }
}

// Over a link that a step would wait for, what can be computed again is, from the
// first step on, and takes no slab.
TEST_P(RehearsalTest, TheChoiceByCostIsMadeBefore) {
  Trained free = train("1MB/s", Json(), 2), run = train("1MB/s", Json::object(), 2);
  EXPECT_EQ(run.losses, free.losses);
  const Json &first = run.records[0];
  EXPECT_GT(int64_t(first["activations_recomputed"]), 0) << first.dump();
  EXPECT_EQ(first["pool_misses"], 0) << first.dump();
  Trained fast = train(fastLink, Json::object(), 1);
  EXPECT_LT(int64_t(fast.records[0]["activations_recomputed"]), int64_t(first["activations_recomputed"]))
      << "a link that nobody waits for";
}
