//===- ServiceForecastTest.cpp - a forecast is what the run does ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `segue-run fit --config`: services of a config on the twin of a device, compared
// with those of a run on the device itself.
//
//===----------------------------------------------------------------------===//

#include "DeepModel.h"
#include "ErrorOf.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Reports/ServiceForecast.h"
#include "segue/runtime/Services/MemoryServices.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;
using segue::test::DeepModel;

namespace {

/// Eight saved tensors of 256 KiB; weights of 64 KiB.
const Binary &deep() {
  static const Binary binary = DeepModel{.layers = 8, .rows = 512, .width = 128}.compiled();
  return binary;
}

Config config(const char *activations, double capMiB, const char *weights = "") {
  std::string cap = std::to_string(capMiB);
  return Config::parse(R"({"memory": {"stagehand": {)" + std::string(weights) + R"("conductor_config": {"enabled": true,
      "vram_hard_cap_mb": )" + cap + R"(, "vram_soft_cap_mb": )" + cap + R"(, "telemetry_enabled": false},
      "activation_stagehand": {"enabled": true, "telemetry_enabled": false, )" + activations + "}}}}",
                       "test");
}

const char *const watermarks = R"("vram_high_watermark_mb": 1.5, "vram_low_watermark_mb": 1, "min_spill_bytes": 0,
    "recompute_threshold_bytes": 0)";
const char *const device = "sim:dram=16MiB,pinned=2GiB,link=2GB/s";

Json forecast(const Config &config) {
  return forecastServices(device, {{"deep", deep()}}, {}, 1, config);
}

/// The record of the third step on the device itself.
Json recordOfRun(const Config &config) {
  DeviceRef opened = Device::open(device);
  SessionOptions options;
  options.config = config;
  Session session(opened, {{"deep", deep()}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(opened, info.desc.shape, uint32_t(info.key.back())));
  TensorMap batch{{"x", randomTensor(opened, {512, 128}, 7)}};
  for (int step = 0; step < 3; ++step)
    session.step(batch, 1e-3);
  return session.services()->activationRecord();
}

TEST(ServiceForecast, WatermarksMoveWhatTheRunMoves) {
  Json found = forecast(config(watermarks, 8));
  const Json &record = found["activation_stagehand"];
  EXPECT_EQ(record["mode"], "watermark");
  EXPECT_GT(record["activations_spilled"], 2);
  EXPECT_GE(found["out_bytes"], record["spill_bytes"]);
  EXPECT_GE(found["in_bytes"], record["restore_bytes"]);
  EXPECT_LE(found["peak_bytes"], 8 << 20);
  EXPECT_EQ(found["cap_bytes"], 8 << 20);
  EXPECT_GT(found["conductor"]["grant_count"], 0);
  // Which of them are computed again depends on times, and those of a device are its own.
  Json run = recordOfRun(config(watermarks, 8));
  EXPECT_EQ(record["activations_saved"], run["activations_saved"]);
  auto moved = [](const Json &of) { return of["activations_spilled"].get<int>() + of["activations_recomputed"].get<int>(); };
  EXPECT_EQ(moved(record), moved(run));
}

TEST(ServiceForecast, AllStaysBelowTheWatermark) {
  Json found = forecast(config(R"("vram_high_watermark_mb": 15, "vram_low_watermark_mb": 14)", 16));
  const Json &record = found["activation_stagehand"];
  EXPECT_EQ(record["activations_spilled"], 0);
  EXPECT_EQ(record["activations_kept"], record["activations_saved"]);
  EXPECT_LE(found["out_bytes"], 64); // a loss
  EXPECT_EQ(record["stall_time_ms"], 0);
}

TEST(ServiceForecast, APlanIsNoSlowerAndNoLarger) {
  Json free = forecast(config(watermarks, 8));
  Json planned = forecast(config(R"("mode": "planned")", double(free["peak_bytes"]) / bytesPerMiB));
  EXPECT_EQ(planned["activation_stagehand"]["mode"], "planned");
  EXPECT_LE(planned["peak_bytes"], planned["certified_bytes"]);
  EXPECT_LE(planned["certified_bytes"], free["certified_bytes"]);
  EXPECT_LE(planned["seconds"].get<double>(), 1.001 * free["seconds"].get<double>());
}

TEST(ServiceForecast, KeepsToTheCapBesideARing) {
  const char *ring = R"("vram_high_watermark_mb": 2.5, "vram_low_watermark_mb": 2, "telemetry_enabled": false,)";
  Json found = forecast(config(R"("mode": "planned")", 3, ring));
  EXPECT_LE(found["peak_bytes"], found["certified_bytes"]);
  EXPECT_LE(found["certified_bytes"], 3 << 20);
  EXPECT_EQ(found["weight_stagehand"]["blocks"], 8);
  EXPECT_GT(found["weight_stagehand"]["slots"], 0);
  std::string text = textOfServices(found);
  EXPECT_NE(text.find("Weight Stagehand: a ring of "), std::string::npos) << text;
}

TEST(ServiceForecast, SaysWhatLeavesOfGradientsAndStates) {
  const char *low = R"("vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.4, "min_spill_bytes": 0)";
  Json found = forecast(config(low, 2.2));
  ASSERT_TRUE(found.contains("state_stagehand"));
  EXPECT_GT(found["state_stagehand"]["left"], 8);
  EXPECT_NE(textOfServices(found).find("State Stagehand: gradients and optimizer states leave"), std::string::npos);
  EXPECT_FALSE(forecast(config(low, 8)).contains("state_stagehand"));
}

TEST(ServiceForecast, RefusesWhatTheRunRefuses) {
  for (const char *mode : {R"("vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.4)", R"("mode": "planned")"})
    EXPECT_EQ(errorOf([&] { forecast(config(mode, 0.6)); }).first, ErrorCode::BudgetInfeasible) << mode;
}

} // namespace
