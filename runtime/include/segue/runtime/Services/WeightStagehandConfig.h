//===- WeightStagehandConfig.h - how weights stream -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The keys of `memory.stagehand` itself, beside the sections of the services
// that lie in it, and the sizes that they mean for a model: what is not given
// follows from the largest block and from the budgets.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHANDCONFIG_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHANDCONFIG_H

#include "segue/runtime/Telemetry/TelemetryConfig.h"

namespace segue::inline runtime {

/// Figures from which sizes that are not given are computed.
struct WeightSizes {
  int64_t largestBlockBytes = 0;
  /// The budgets of the device and of the host; without one, the defaults of the table hold.
  std::optional<int64_t> vramBudgetBytes, hostBudgetBytes;
};

/// The config in the numbers that decisions are made with.
struct WeightLimits {
  int64_t slabBytes, slabs;
  int64_t highBytes, lowBytes;
};

struct WeightStagehandConfig {
  /// Static: the window of the file holds. Planned: window and resident blocks are chosen
  /// from the measured times between steps.
  enum class Policy { Static, Planned };

  /// The key `stagehand_enabled`, which is true by itself. The section also holds the
  /// sections of other services: `isGiven` is true if it has any key of this one.
  bool enabled = true, isGiven = false;
  std::optional<int64_t> pinnedPoolMiB, pinnedSlabMiB;
  int64_t pinnedSlabAlignment = 512;
  std::optional<double> highWatermarkMiB, lowWatermarkMiB;
  /// The most transfers in flight per direction.
  int64_t maxInflightTransfers = 2;
  /// A priority as CUDA counts: the lower, the more urgent.
  int64_t copyStreamPriority = -1;
  Policy policy = Policy::Static;
  int64_t prefetchWindowBlocks = 3;
  int64_t evictionCooldownSteps = 2;
  bool strictBf16 = true, failOnDtypePromotion = true, nanInfCheck = true;
  TelemetryConfig telemetry;
  int64_t telemetryIntervalSteps = 10;
  bool debugTrace = false;
  std::optional<std::filesystem::path> squareqSlab, squareqManifest;

  static constexpr std::string_view section = "memory.stagehand";

  /// Reads the section; the reader has been told of the sections within it.
  /// Throws ConfigError.
  static WeightStagehandConfig read(ConfigReader &reader);

  /// Returns the sizes for a model. What the file gives is taken; the rest follows from
  /// `sizes`: a slab is the power of two in MiB that holds the largest block, the pool has
  /// window + 4 slabs within the host's budget (one at least), the watermarks are 80 % and
  /// 60 % of the device's. Throws ConfigError for a watermark of the file that does not go
  /// with the other one.
  WeightLimits limits(const WeightSizes &sizes) const;

  /// Returns the priority within the device's range, most urgent first: -5 to 0. Sets
  /// `warning` if it had to be clamped.
  int64_t copyPriority(int64_t mostUrgent, int64_t leastUrgent, std::string *warning = nullptr) const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHANDCONFIG_H
