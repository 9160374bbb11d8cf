//===- WeightStagehandConfig.cpp - how weights stream ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightStagehandConfig.h"
#include "segue/runtime/Mebibytes.h"
#include <algorithm>
#include <bit>
#include <cmath>

namespace segue::inline runtime {

static constexpr int64_t defaultPoolMiB = 8192, defaultSlabMiB = 256;
static constexpr double defaultHighMiB = 22000, defaultLowMiB = 18000;
static constexpr double highShare = 0.80, lowShare = 0.60;
/// The number of slabs beyond the window: for the block that runs, one that is saved back,
/// and two whose copies are under way.
static constexpr int64_t slabsBeyondWindow = 4;

WeightStagehandConfig WeightStagehandConfig::read(ConfigReader &reader) {
  static constexpr std::pair<std::string_view, Policy> policyNames[] = {{"static", Policy::Static},
                                                                        {"planned", Policy::Planned}};
  const Range poolSize = Range::between(1, greatestMiB), size = Range::between(0, greatestMiB);
  const Range count = Range::between(0, INT32_MAX);

  WeightStagehandConfig config;
  for (std::string_view key : {"stagehand_enabled",        "pinned_pool_mb",          "pinned_slab_mb",
                               "pinned_slab_alignment",    "vram_high_watermark_mb",  "vram_low_watermark_mb",
                               "max_inflight_transfers",   "copy_stream_priority",    "policy",
                               "prefetch_window_blocks",   "eviction_cooldown_steps", "strict_bf16",
                               "fail_on_dtype_promotion",  "nan_inf_check",           "telemetry_enabled",
                               "telemetry_interval_steps", "telemetry_file",          "debug_trace",
                               "squareq_slab_path",        "squareq_manifest_path"})
    config.isGiven |= reader.has(key);
  config.enabled = reader.getBool("stagehand_enabled", config.enabled);
  config.pinnedPoolMiB = reader.getOptionalInt("pinned_pool_mb", poolSize);
  config.pinnedSlabMiB = reader.getOptionalInt("pinned_slab_mb", poolSize);
  config.pinnedSlabAlignment =
      reader.getInt("pinned_slab_alignment", config.pinnedSlabAlignment, Range::between(1, 1 << 30));
  config.highWatermarkMiB = reader.getOptionalNumber("vram_high_watermark_mb", size);
  config.lowWatermarkMiB = reader.getOptionalNumber("vram_low_watermark_mb", size);
  config.maxInflightTransfers =
      reader.getInt("max_inflight_transfers", config.maxInflightTransfers, Range::between(1, 64));
  config.copyStreamPriority =
      reader.getInt("copy_stream_priority", config.copyStreamPriority, Range::between(INT32_MIN, INT32_MAX));
  config.policy = reader.getEnum<Policy>("policy", config.policy, policyNames);
  config.prefetchWindowBlocks = reader.getInt("prefetch_window_blocks", config.prefetchWindowBlocks, count);
  config.evictionCooldownSteps = reader.getInt("eviction_cooldown_steps", config.evictionCooldownSteps, count);
  config.strictBf16 = reader.getBool("strict_bf16", config.strictBf16);
  config.failOnDtypePromotion = reader.getBool("fail_on_dtype_promotion", config.failOnDtypePromotion);
  config.nanInfCheck = reader.getBool("nan_inf_check", config.nanInfCheck);
  config.telemetry = TelemetryConfig::read(reader, "stagehand_telemetry.jsonl");
  config.telemetryIntervalSteps =
      reader.getInt("telemetry_interval_steps", config.telemetryIntervalSteps, Range::atLeast(1));
  config.debugTrace = reader.getBool("debug_trace", config.debugTrace);
  config.squareqSlab = reader.getInputFile("squareq_slab_path");
  config.squareqManifest = reader.getInputFile("squareq_manifest_path");
  reader.finish();

  int64_t slab = config.pinnedSlabMiB.value_or(defaultSlabMiB), pool = config.pinnedPoolMiB.value_or(defaultPoolMiB);
  if ((config.pinnedPoolMiB || config.pinnedSlabMiB) && pool % slab != 0)
    reader.fail(config.pinnedPoolMiB ? "pinned_pool_mb" : "pinned_slab_mb",
                "pool must be a multiple of slab: " + std::to_string(pool) + " and " + std::to_string(slab) + " MiB");
  if (!std::has_single_bit(uint64_t(config.pinnedSlabAlignment)))
    reader.failValue("pinned_slab_alignment", "a power of two");
  if (config.highWatermarkMiB || config.lowWatermarkMiB) {
    double high = config.highWatermarkMiB.value_or(defaultHighMiB);
    if (high <= config.lowWatermarkMiB.value_or(std::min(defaultLowMiB, high - 1)))
      reader.fail(config.highWatermarkMiB ? "vram_high_watermark_mb" : "vram_low_watermark_mb",
                  "high must be greater than low");
  }
  if (config.squareqSlab.has_value() != config.squareqManifest.has_value())
    reader.fail(config.squareqSlab ? "squareq_manifest_path" : "squareq_slab_path",
                "slab and manifest are given both or not at all");
  return config;
}

WeightLimits WeightStagehandConfig::limits(const WeightSizes &sizes) const {
  WeightLimits limits{};
  bool isAutomatic = !pinnedPoolMiB && !pinnedSlabMiB && sizes.largestBlockBytes > 0;
  int64_t slabMiB = pinnedSlabMiB.value_or(defaultSlabMiB);
  if (isAutomatic) {
    uint64_t blockMiB = (uint64_t(sizes.largestBlockBytes) + uint64_t(bytesPerMiB) - 1) / uint64_t(bytesPerMiB);
    slabMiB = int64_t(std::bit_ceil(blockMiB));
  }
  int64_t align = pinnedSlabAlignment;
  limits.slabBytes = (toBytes(double(slabMiB)) + align - 1) / align * align;
  limits.slabs = pinnedPoolMiB.value_or(defaultPoolMiB) / slabMiB;
  if (isAutomatic) {
    limits.slabs = prefetchWindowBlocks + slabsBeyondWindow;
    if (sizes.hostBudgetBytes)
      limits.slabs = std::clamp<int64_t>(*sizes.hostBudgetBytes / limits.slabBytes, 1, limits.slabs);
  }
  double high = defaultHighMiB, low = defaultLowMiB;
  if (sizes.vramBudgetBytes) {
    high = double(*sizes.vramBudgetBytes) / bytesPerMiB * highShare;
    low = double(*sizes.vramBudgetBytes) / bytesPerMiB * lowShare;
    if (std::floor(low) < std::floor(high)) { // else a budget of a few MiB, where it matters
      high = std::floor(high);
      low = std::floor(low);
    }
  }
  high = highWatermarkMiB.value_or(high);
  low = lowWatermarkMiB.value_or(std::min(low, highWatermarkMiB ? high * lowShare / highShare : low));
  if (high <= low)
    throw ConfigError(std::string(section), highWatermarkMiB ? "vram_high_watermark_mb" : "vram_low_watermark_mb",
                      "high must be greater than low", "high must be greater than low");
  limits.highBytes = toBytes(high);
  limits.lowBytes = toBytes(low);
  return limits;
}

int64_t WeightStagehandConfig::copyPriority(int64_t mostUrgent, int64_t leastUrgent, std::string *warning) const {
  int64_t clamped = std::clamp(copyStreamPriority, mostUrgent, leastUrgent);
  if (clamped != copyStreamPriority && warning)
    *warning = std::string(section) + ".copy_stream_priority: " + std::to_string(copyStreamPriority) +
               " is outside of the device's range, " + std::to_string(mostUrgent) + " to " +
               std::to_string(leastUrgent) + "; " + std::to_string(clamped) + " is used";
  return clamped;
}

} // namespace segue::inline runtime
