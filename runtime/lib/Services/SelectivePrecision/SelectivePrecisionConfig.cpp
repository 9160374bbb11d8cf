//===- SelectivePrecisionConfig.cpp - how precision is chosen -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SelectivePrecisionConfig.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

static constexpr char sectionPath[] = "memory.stagehand.selective_precision";

std::string_view name(Precision precision) {
  static constexpr std::string_view names[] = {"bf16", "int8", "fp8_e4m3"};
  return names[uint8_t(precision)];
}

SelectivePrecisionConfig SelectivePrecisionConfig::read(ConfigReader &reader) {
  static constexpr std::pair<std::string_view, Mode> modeNames[] = {
      {"off", Mode::Off}, {"static", Mode::Static}, {"dynamic", Mode::Dynamic}};
  static constexpr std::pair<std::string_view, Precision> ambiguousNames[] = {{"bf16", Precision::Bf16},
                                                                              {"int8", Precision::Int8}};
  static constexpr std::pair<std::string_view, Uncalibrated> uncalibratedNames[] = {
      {"drop_term", Uncalibrated::DropTerm}, {"renormalize", Uncalibrated::Renormalize}};
  static constexpr std::pair<std::string_view, Granularity> granularityNames[] = {{"block", Granularity::Block},
                                                                                  {"layer", Granularity::Layer}};
  const Range count = Range::between(0, INT32_MAX), positive = Range::between(1, INT32_MAX);
  const Range finite = Range::between(0, 1e300), above = {.low = 0, .high = 1e300, .lowOpen = true};

  SelectivePrecisionConfig config;
  config.enabled = reader.getBool("enabled", config.enabled);
  config.mode = reader.getEnum<Mode>("mode", config.mode, modeNames);
  config.bf16Threshold = reader.getNumber("bf16_threshold", config.bf16Threshold, Range::aboveUpTo(0, 1));
  config.int8Threshold = reader.getNumber("int8_threshold", config.int8Threshold, Range::aboveUpTo(0, 1));
  config.ambiguousDefault = reader.getEnum<Precision>("ambiguous_default", config.ambiguousDefault, ambiguousNames);
  config.hysteresisMargin = reader.getNumber("hysteresis_margin", config.hysteresisMargin, finite);
  config.gradWeight = reader.getNumber("grad_weight", config.gradWeight, finite);
  config.errorWeight = reader.getNumber("error_weight", config.errorWeight, finite);
  config.gradSensitivityThreshold =
      reader.getNumber("grad_sensitivity_threshold", config.gradSensitivityThreshold, above);
  config.quantErrorThreshold = reader.getNumber("quant_error_threshold", config.quantErrorThreshold, above);
  config.runCalibration = reader.getBool("run_calibration", config.runCalibration);
  config.calibrationSamples = reader.getInt("calibration_samples", config.calibrationSamples, positive);
  // Written if it can be: a cache that cannot is a warning at its time.
  config.calibrationCache = reader.getString("calibration_cache", "");
  config.warmupSteps = reader.getInt("warmup_steps", config.warmupSteps, count);
  config.historyWindow = reader.getInt("history_window", config.historyWindow, positive);
  config.updateIntervalSteps = reader.getInt("update_interval_steps", config.updateIntervalSteps, positive);
  config.minStepsBetweenSwitches = reader.getInt("min_steps_between_switches", config.minStepsBetweenSwitches, count);
  config.forceBf16 = reader.getStrings("force_bf16_blocks", {});
  config.forceInt8 = reader.getStrings("force_int8_blocks", {});
  config.uncalibratedScore =
      reader.getEnum<Uncalibrated>("uncalibrated_score", config.uncalibratedScore, uncalibratedNames);
  config.granularity = reader.getEnum<Granularity>("granularity", config.granularity, granularityNames);
  std::vector<std::string> low = reader.getStrings("low_precisions", {"int8"});
  config.fp8SlabPath = reader.getInputFile("fp8_slab_path");
  config.lossFeedback = reader.getBool("loss_feedback", config.lossFeedback);
  config.lossWindow = reader.getInt("loss_window", config.lossWindow, Range::between(5, INT32_MAX));
  config.lossSigma = reader.getNumber("loss_sigma", config.lossSigma, above);
  config.lossMinRel = reader.getNumber("loss_min_rel", config.lossMinRel, above);
  config.lossPatience = reader.getInt("loss_patience", config.lossPatience, positive);
  config.quarantineSteps = reader.getInt("quarantine_steps", config.quarantineSteps, positive);
  config.logDecisions = reader.getBool("log_decisions", config.logDecisions);
  config.telemetry = TelemetryConfig::read(reader, "selective_precision_telemetry.jsonl");
  reader.finish();

  if (config.int8Threshold >= config.bf16Threshold)
    reader.fail(reader.has("int8_threshold") ? "int8_threshold" : "bf16_threshold",
                "int8_threshold must be below bf16_threshold");
  if (config.hysteresisMargin >= config.int8Threshold)
    reader.fail(reader.has("hysteresis_margin") ? "hysteresis_margin" : "int8_threshold",
                "no unit could ever switch to int8");
  if (config.gradWeight + config.errorWeight <= 0)
    reader.fail("grad_weight", "the sum of grad_weight and error_weight must be above 0");
  config.lowPrecisions.clear();
  for (size_t i = 0; i < low.size(); ++i) {
    Precision precision = low[i] == "fp8_e4m3" ? Precision::Fp8E4M3 : Precision::Int8;
    std::string key = "low_precisions[" + std::to_string(i) + "]";
    if (low[i] != name(precision))
      reader.fail(key, "one of int8, fp8_e4m3");
    if (std::ranges::find(config.lowPrecisions, precision) != config.lowPrecisions.end())
      reader.fail(key, "each form once");
    config.lowPrecisions.push_back(precision);
  }
  if (low.empty())
    reader.fail("low_precisions", "at least one of int8, fp8_e4m3");
  for (const std::string &id : config.forceInt8)
    if (std::ranges::find(config.forceBf16, id) != config.forceBf16.end())
      reader.fail("force_int8_blocks", "\"" + id + "\" is in both lists");
  return config;
}

void SelectivePrecisionConfig::checkUnits(std::span<const std::string> units) const {
  std::vector<std::string_view> known(units.begin(), units.end());
  auto check = [&](const char *key, const std::vector<std::string> &ids) {
    for (const std::string &id : ids)
      if (std::ranges::find(units, id) == units.end())
        throw ConfigError(sectionPath, key, "there is no unit \"" + id + "\"" + nearestHint(id, known),
                          std::string(nearestName(id, known)));
  };
  check("force_bf16_blocks", forceBf16);
  check("force_int8_blocks", forceInt8);
}

} // namespace segue::inline runtime
