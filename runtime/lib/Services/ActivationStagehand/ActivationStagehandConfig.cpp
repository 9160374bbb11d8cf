//===- ActivationStagehandConfig.cpp - how activations leave --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Mebibytes.h"

namespace segue::inline runtime {

static constexpr char sectionPath[] = "memory.stagehand.activation_stagehand";
static constexpr double greatestCount = 1 << 20;

ActivationStagehandConfig ActivationStagehandConfig::read(ConfigReader &reader) {
  static constexpr std::pair<std::string_view, Mode> modeNames[] = {{"watermark", Mode::Watermark},
                                                                    {"planned", Mode::Planned}};
  const Range slots = Range::between(1, 64), size = Range::between(0, greatestMiB);

  ActivationStagehandConfig config;
  config.enabled = reader.getBool("enabled", config.enabled);
  config.mode = reader.getEnum<Mode>("mode", config.mode, modeNames);
  config.highWatermarkMiB = reader.getNumber("vram_high_watermark_mb", config.highWatermarkMiB, size);
  config.lowWatermarkMiB = reader.getNumber("vram_low_watermark_mb", config.lowWatermarkMiB, size);
  config.poolClassesMiB =
      reader.getInts("pinned_pool_classes_mb", config.poolClassesMiB, Range::between(1, greatestMiB / greatestCount));
  size_t classes = config.poolClassesMiB.size();
  if (!reader.has("slabs_per_class")) {
    // The defaults belong to the default classes; others start with two each.
    if (config.poolClassesMiB != ActivationStagehandConfig().poolClassesMiB)
      config.slabsPerClass.assign(classes, 2);
  } else if (reader.isList("slabs_per_class")) {
    config.slabsPerClass = reader.getInts("slabs_per_class", {}, Range::between(0, greatestCount));
  } else {
    config.slabsPerClass.assign(classes, reader.getInt("slabs_per_class", 0, Range::between(0, greatestCount)));
  }
  config.maxInflightD2h = reader.getInt("max_inflight_d2h", config.maxInflightD2h, slots);
  config.maxInflightH2d = reader.getInt("max_inflight_h2d", config.maxInflightH2d, slots);
  config.debugChecksums = reader.getBool("debug_checksums", config.debugChecksums);
  config.recomputeThresholdBytes =
      reader.getInt("recompute_threshold_bytes", config.recomputeThresholdBytes, Range::atLeast(0));
  config.minSpillBytes = reader.getInt("min_spill_bytes", config.minSpillBytes, Range::atLeast(0));
  config.unpinnedMaxMiB = reader.getNumber("unpinned_max_mb", config.unpinnedMaxMiB, size);
  config.predictiveRestore = reader.getBool("predictive_restore", config.predictiveRestore);
  config.restoreWindow = reader.getInt("restore_window", config.restoreWindow, Range::between(1, INT32_MAX));
  config.poolGrowth = reader.getBool("pool_growth", config.poolGrowth);
  auto poolMax = reader.getOptionalNumber("pinned_pool_max_mb", size);
  config.transferRetries = reader.getInt("transfer_retries", config.transferRetries, Range::between(0, 10));
  config.telemetry = TelemetryConfig::read(reader, "activation_telemetry.jsonl");
  reader.finish();

  if (config.highWatermarkMiB <= config.lowWatermarkMiB)
    reader.fail(reader.has("vram_high_watermark_mb") ? "vram_high_watermark_mb" : "vram_low_watermark_mb",
                "high must be greater than low");
  for (size_t i = 1; i < classes; ++i)
    if (config.poolClassesMiB[i] <= config.poolClassesMiB[i - 1])
      reader.fail("pinned_pool_classes_mb[" + std::to_string(i) + "]", "classes must be strictly ascending");
  if (config.slabsPerClass.size() != classes)
    reader.fail("slabs_per_class",
                std::to_string(classes) + " classes, " + std::to_string(config.slabsPerClass.size()) + " counts");
  config.pinnedPoolMaxMiB = poolMax.value_or(2 * config.initialPoolMiB());
  if (config.pinnedPoolMaxMiB < config.initialPoolMiB())
    reader.fail("pinned_pool_max_mb",
                "at least the initial pool of " + std::to_string(int64_t(config.initialPoolMiB())) + " MiB");
  return config;
}

void ActivationStagehandConfig::checkCapacity(uint64_t capacityBytes) const {
  double capacityMiB = double(capacityBytes) / (1 << 20);
  if (highWatermarkMiB <= capacityMiB)
    return;
  std::string rule = "at most the device's capacity of " + std::to_string(int64_t(capacityMiB)) + " MiB";
  throw ConfigError(sectionPath, "vram_high_watermark_mb", rule, rule);
}

double ActivationStagehandConfig::initialPoolMiB() const {
  double total = 0;
  for (size_t i = 0; i < poolClassesMiB.size() && i < slabsPerClass.size(); ++i)
    total += double(poolClassesMiB[i]) * double(slabsPerClass[i]);
  return total;
}

} // namespace segue::inline runtime
