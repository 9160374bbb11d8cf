//===- ConductorConfig.cpp - memory.stagehand.conductor_config ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ConductorConfig.h"
#include "segue/runtime/Mebibytes.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

static constexpr double softShare = 0.90, hardShare = 0.95;
static constexpr int64_t defaultWindow = 3;

ConductorConfig ConductorConfig::read(ConfigReader &reader) {
  static constexpr std::pair<std::string_view, EvaluateOn> evaluateOnNames[] = {{"phase", EvaluateOn::Phase},
                                                                                {"block", EvaluateOn::Block}};
  static constexpr std::pair<std::string_view, Slots> slotsNames[] = {{"fixed", Slots::Fixed}, {"auto", Slots::Auto}};
  const Range cap = Range::aboveUpTo(0, greatestMiB), slots = Range::between(1, 64);

  ConductorConfig config;
  config.enabled = reader.getBool("enabled", config.enabled);
  config.vramSoftCapMiB = reader.getOptionalNumber("vram_soft_cap_mb", cap);
  config.vramHardCapMiB = reader.getOptionalNumber("vram_hard_cap_mb", cap);
  config.pinnedCapMiB = reader.getOptionalNumber("pinned_cap_mb", cap);
  config.slots = reader.getEnum<Slots>("slots", config.slots, slotsNames);
  config.h2dSlots = reader.getInt("h2d_slots", config.h2dSlots, slots);
  config.d2hSlots = reader.getInt("d2h_slots", config.d2hSlots, slots);
  config.prefetchWindowCap = reader.getOptionalInt("prefetch_window_cap", Range::between(1, INT32_MAX));
  config.backwardPressureThreshold =
      reader.getNumber("backward_pressure_threshold", config.backwardPressureThreshold, Range::aboveUpTo(0, 1));
  config.contentionChecks = reader.getInt("contention_checks", config.contentionChecks, Range::between(0, INT32_MAX));
  config.evaluateOn = reader.getEnum<EvaluateOn>("evaluate_on", config.evaluateOn, evaluateOnNames);
  config.reclaimEnabled = reader.getBool("reclaim_enabled", config.reclaimEnabled);
  config.slotWaitTimeoutMs = reader.getNumber("slot_wait_timeout_ms", config.slotWaitTimeoutMs, Range::above(0));
  config.telemetry = TelemetryConfig::read(reader, "conductor_telemetry.jsonl");
  config.telemetryIntervalSteps =
      reader.getInt("telemetry_interval_steps", config.telemetryIntervalSteps, Range::atLeast(1));
  config.debugEventTrace = reader.getBool("debug_event_trace", config.debugEventTrace);
  reader.finish();
  if (config.vramSoftCapMiB && config.vramHardCapMiB && *config.vramSoftCapMiB > *config.vramHardCapMiB)
    reader.fail("vram_soft_cap_mb", "soft cap above hard cap");
  return config;
}

static int64_t capBytes(double mib) { return std::max<int64_t>(1, toBytes(mib)); }

ConductorLimits ConductorConfig::limits(std::optional<uint64_t> capacityBytes,
                                        std::optional<int64_t> weightWindow) const {
  auto fail = [](const char *key, const std::string &rule) {
    throw ConfigError("memory.stagehand.conductor_config", key, rule, rule);
  };
  auto share = [&](double part) {
    return capacityBytes ? capBytes(std::floor(double(*capacityBytes) / bytesPerMiB * part)) : INT64_MAX / 4;
  };
  ConductorLimits limits;
  limits.hardCapBytes = vramHardCapMiB ? capBytes(*vramHardCapMiB) : share(hardShare);
  if (capacityBytes && uint64_t(limits.hardCapBytes) > *capacityBytes)
    fail("vram_hard_cap_mb",
         "hard cap above the device's capacity of " + std::to_string(*capacityBytes / uint64_t(bytesPerMiB)) + " MiB");
  limits.softCapBytes = vramSoftCapMiB ? capBytes(*vramSoftCapMiB) : std::min(share(softShare), limits.hardCapBytes);
  if (limits.softCapBytes > limits.hardCapBytes)
    fail("vram_soft_cap_mb", "soft cap above hard cap");
  limits.pinnedCapBytes = pinnedCapMiB ? capBytes(*pinnedCapMiB) : INT64_MAX / 4;
  limits.h2dSlots = int(h2dSlots);
  limits.d2hSlots = int(d2hSlots);
  limits.prefetchWindow = int(prefetchWindowCap.value_or(std::max<int64_t>(1, weightWindow.value_or(defaultWindow))));
  return limits;
}

} // namespace segue::inline runtime
