//===- ActivationStagehandConfig.h - how activations leave ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section `memory.stagehand.activation_stagehand`. Sizes are MiB in the
// file and in the fields that say so.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHANDCONFIG_H
#define SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHANDCONFIG_H

#include "segue/runtime/Telemetry/TelemetryConfig.h"

namespace segue::inline runtime {

struct ActivationStagehandConfig {
  /// Mode says who decides what leaves: the watermarks, at each save, or a plan made from
  /// the compiled lifetimes before the step.
  enum class Mode { Watermark, Planned };

  bool enabled = false;
  Mode mode = Mode::Watermark;
  double highWatermarkMiB = 20000, lowWatermarkMiB = 16000;
  std::vector<int64_t> poolClassesMiB{1, 4, 16, 64, 256};
  /// The number of slabs of each class.
  std::vector<int64_t> slabsPerClass{512, 2, 2, 2, 2};
  int64_t maxInflightD2h = 1, maxInflightH2d = 1;
  bool debugChecksums = false;
  int64_t recomputeThresholdBytes = 0;
  int64_t minSpillBytes = 4096;
  double unpinnedMaxMiB = 4096;
  bool predictiveRestore = true;
  int64_t restoreWindow = 8;
  bool poolGrowth = true;
  /// The greatest size of the pool, twice the initial pool unless given.
  double pinnedPoolMaxMiB = 2384;
  int64_t transferRetries = 1;
  TelemetryConfig telemetry;

  /// Reads the whole section. Throws ConfigError.
  static ActivationStagehandConfig read(ConfigReader &reader);

  /// Throws ConfigError if the high watermark is above the device's capacity.
  void checkCapacity(uint64_t capacityBytes) const;

  double initialPoolMiB() const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHANDCONFIG_H
