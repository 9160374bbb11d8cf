//===- ConductorConfigTest.cpp - memory.stagehand.conductor_config --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ConductorConfig.h"
#include "Config/ExpectConfigError.h"
#include <nlohmann/json.hpp>

using namespace segue;

static constexpr int64_t MiB = 1048576;

static ConductorConfig read(const char *text) {
  Json object = Json::parse(text);
  ConfigReader reader(object, "memory.stagehand.conductor_config");
  return ConductorConfig::read(reader);
}

// The defaults of docs/specs/conductor.md.
TEST(ConductorConfig, HasTheDefaultsOfTheSpec) {
  ConductorConfig config = read("{}");
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.h2dSlots, 2);
  EXPECT_EQ(config.d2hSlots, 2);
  EXPECT_EQ(config.backwardPressureThreshold, 0.80);
  EXPECT_EQ(config.contentionChecks, 3);
  EXPECT_EQ(config.evaluateOn, ConductorConfig::EvaluateOn::Block);
  EXPECT_EQ(config.slots, ConductorConfig::Slots::Fixed);
  EXPECT_TRUE(config.reclaimEnabled);
  EXPECT_EQ(config.slotWaitTimeoutMs, 30000);
  EXPECT_TRUE(config.telemetry.enabled);
  EXPECT_EQ(config.telemetry.file, "conductor_telemetry.jsonl");
  EXPECT_EQ(config.telemetryIntervalSteps, 10);
  EXPECT_FALSE(config.debugEventTrace);

  // 90 % and 95 % of 24,576 MiB, floored: 22118.4 and 23347.2.
  ConductorLimits limits = config.limits(24576 * MiB);
  EXPECT_EQ(limits.softCapBytes, 22118 * MiB);
  EXPECT_EQ(limits.hardCapBytes, 23347 * MiB);
  EXPECT_EQ(limits.prefetchWindow, 3);
  EXPECT_EQ(config.limits(24576 * MiB, 5).prefetchWindow, 5);
  EXPECT_GT(limits.pinnedCapBytes, int64_t(1) << 60);
}

TEST(ConductorConfig, TakesEveryKey) {
  ConductorConfig config = read(R"({"enabled": true, "vram_soft_cap_mb": 22000, "vram_hard_cap_mb": 23500,
      "pinned_cap_mb": 512.5, "slots": "auto", "h2d_slots": 64, "d2h_slots": 1, "prefetch_window_cap": 7,
      "backward_pressure_threshold": 1, "contention_checks": 0, "evaluate_on": "phase", "reclaim_enabled": false,
      "slot_wait_timeout_ms": 0.5, "telemetry_enabled": false, "telemetry_file": "t.jsonl",
      "telemetry_interval_steps": 1, "debug_event_trace": true})");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.slots, ConductorConfig::Slots::Auto);
  EXPECT_EQ(config.backwardPressureThreshold, 1);
  EXPECT_EQ(config.contentionChecks, 0);
  EXPECT_EQ(config.evaluateOn, ConductorConfig::EvaluateOn::Phase);
  EXPECT_FALSE(config.reclaimEnabled);
  EXPECT_EQ(config.slotWaitTimeoutMs, 0.5);
  EXPECT_FALSE(config.telemetry.enabled);
  EXPECT_EQ(config.telemetry.file, "t.jsonl");
  EXPECT_EQ(config.telemetryIntervalSteps, 1);
  EXPECT_TRUE(config.debugEventTrace);
  ConductorLimits limits = config.limits(24576 * MiB, 2);
  EXPECT_EQ(limits.softCapBytes, 22000 * MiB);
  EXPECT_EQ(limits.hardCapBytes, 23500 * MiB);
  EXPECT_EQ(limits.pinnedCapBytes, 512 * MiB + MiB / 2);
  EXPECT_EQ(limits.h2dSlots, 64);
  EXPECT_EQ(limits.d2hSlots, 1);
  EXPECT_EQ(limits.prefetchWindow, 7);
}

namespace {
struct BadKey {
  const char *text, *key, *message;
};
} // namespace

// One row per row of the table that can be wrong.
TEST(ConductorConfig, RefusesWhatTheTableForbids) {
  for (const BadKey &bad : std::initializer_list<BadKey>{
           {R"({"enabled": 1})", "enabled", "true or false"},
           {R"({"vram_soft_cap_mb": 0})", "vram_soft_cap_mb", "above 0"},
           {R"({"vram_hard_cap_mb": -1})", "vram_hard_cap_mb", "above 0"},
           {R"({"pinned_cap_mb": 0})", "pinned_cap_mb", "above 0"},
           {R"({"h2d_slots": 0})", "h2d_slots", "from 1 to 64"},
           {R"({"d2h_slots": 65})", "d2h_slots", "from 1 to 64"},
           {R"({"h2d_slots": 1.5})", "h2d_slots", "a whole number"},
           {R"({"slots": "some"})", "slots", "fixed or auto"},
           {R"({"prefetch_window_cap": 0})", "prefetch_window_cap", "from 1"},
           {R"({"backward_pressure_threshold": 0})", "backward_pressure_threshold", "above 0 and at most 1"},
           {R"({"backward_pressure_threshold": 1.01})", "backward_pressure_threshold", "above 0 and at most 1"},
           {R"({"contention_checks": -1})", "contention_checks", "from 0"},
           {R"({"evaluate_on": "step"})", "evaluate_on", "phase or block"},
           {R"({"reclaim_enabled": "no"})", "reclaim_enabled", "true or false"},
           {R"({"slot_wait_timeout_ms": 0})", "slot_wait_timeout_ms", "above 0"},
           {R"({"telemetry_enabled": 0})", "telemetry_enabled", "true or false"},
           {R"({"telemetry_file": "no/such/folder/t.jsonl"})", "telemetry_file",
            "the folder \"no/such/folder\" does not exist"},
           {R"({"telemetry_interval_steps": 0})", "telemetry_interval_steps", "at least 1"},
           {R"({"debug_event_trace": null})", "debug_event_trace", "true or false"},
       }) {
    try {
      read(bad.text);
      ADD_FAILURE() << bad.text << " was accepted";
    } catch (const ConfigError &error) {
      EXPECT_EQ(error.key(), bad.key);
      EXPECT_NE(std::string(error.what()).find(bad.message), std::string::npos) << error.what();
    }
  }
  EXPECT_CONFIG_ERROR(read(R"({"vram_soft_cap_mb": 2, "vram_hard_cap_mb": 1})"), "vram_soft_cap_mb",
                      "soft cap above hard cap", "soft cap above hard cap");
  EXPECT_CONFIG_ERROR(read(R"({"evaluate": "block"})"), "evaluate", "evaluate_on", "unknown key");
}

TEST(ConductorConfig, FitsTheDevice) {
  std::string rule = "hard cap above the device's capacity of 24576 MiB";
  EXPECT_CONFIG_ERROR(read(R"({"vram_hard_cap_mb": 24577})").limits(24576 * MiB), "vram_hard_cap_mb", rule, rule);
  EXPECT_EQ(read(R"({"vram_hard_cap_mb": 24576})").limits(24576 * MiB).hardCapBytes, 24576 * MiB);
  // A soft cap alone may exceed what the hard cap comes to.
  EXPECT_CONFIG_ERROR(read(R"({"vram_soft_cap_mb": 24000})").limits(24576 * MiB), "vram_soft_cap_mb",
                      "soft cap above hard cap", "soft cap above hard cap");
  // A hard cap alone takes the soft cap down with it.
  EXPECT_EQ(read(R"({"vram_hard_cap_mb": 1000})").limits(24576 * MiB).softCapBytes, 1000 * MiB);
  // Without a capacity nothing binds that is not given.
  ConductorLimits limits = read("{}").limits(std::nullopt);
  EXPECT_GT(limits.softCapBytes, int64_t(1) << 60);
  EXPECT_EQ(limits.softCapBytes, limits.hardCapBytes);
}
