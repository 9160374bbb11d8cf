//===- SelectivePrecisionConfig.h - how precision is chosen -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section `memory.stagehand.selective_precision`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISIONCONFIG_H
#define SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISIONCONFIG_H

#include "segue/runtime/Telemetry/TelemetryConfig.h"

namespace segue::inline runtime {

enum class Precision : uint8_t { Bf16, Int8, Fp8E4M3 };

/// Returns "bf16", "int8" or "fp8_e4m3".
std::string_view name(Precision precision);

struct SelectivePrecisionConfig {
  enum class Mode { Off, Static, Dynamic };
  /// The weight of the error's share in the score while no error is known.
  enum class Uncalibrated { DropTerm, Renormalize };
  enum class Granularity { Block, Layer };

  bool enabled = false;
  Mode mode = Mode::Dynamic;
  double bf16Threshold = 0.6, int8Threshold = 0.3;
  Precision ambiguousDefault = Precision::Bf16;
  double hysteresisMargin = 0.1;
  double gradWeight = 0.7, errorWeight = 0.3;
  double gradSensitivityThreshold = 2.0, quantErrorThreshold = 0.05;
  bool runCalibration = true;
  int64_t calibrationSamples = 4;
  /// The path of the cache; empty for one beside the slab.
  std::filesystem::path calibrationCache;
  int64_t warmupSteps = 10, historyWindow = 5, updateIntervalSteps = 10, minStepsBetweenSwitches = 20;
  std::vector<std::string> forceBf16, forceInt8;
  Uncalibrated uncalibratedScore = Uncalibrated::DropTerm;
  Granularity granularity = Granularity::Block;
  /// Forms in the order of preference.
  std::vector<Precision> lowPrecisions{Precision::Int8};
  /// A second slab, for fp8_e4m3, with its manifest beside it. The key is Segue's own.
  std::optional<std::filesystem::path> fp8SlabPath;
  bool lossFeedback = true;
  int64_t lossWindow = 20;
  double lossSigma = 3.0, lossMinRel = 0.01;
  int64_t lossPatience = 3, quarantineSteps = 200;
  bool logDecisions = true;
  TelemetryConfig telemetry;

  /// Reads the whole section. Throws ConfigError.
  static SelectivePrecisionConfig read(ConfigReader &reader);

  /// Throws ConfigError for a forced id that is no unit, naming the nearest,
  /// or that is in both lists.
  void checkUnits(std::span<const std::string> units) const;

  bool isOff() const { return !enabled || mode == Mode::Off; }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISIONCONFIG_H
