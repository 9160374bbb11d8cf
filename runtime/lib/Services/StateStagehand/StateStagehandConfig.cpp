//===- StateStagehandConfig.cpp - whether states may leave ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/StateStagehandConfig.h"

namespace segue::inline runtime {

StateStagehandConfig StateStagehandConfig::read(ConfigReader &reader) {
  static constexpr std::pair<std::string_view, Mode> modeNames[] = {
      {"off", Mode::Off}, {"auto", Mode::Auto}, {"on", Mode::On}};
  static constexpr double greatestMiB = 1 << 30;
  StateStagehandConfig config;
  config.mode = reader.getEnum<Mode>("mode", config.mode, modeNames);
  config.windowBlocks = reader.getInt("window_blocks", config.windowBlocks, Range::between(0, 1 << 20));
  config.highWatermarkMiB = reader.getOptionalNumber("vram_high_watermark_mb", Range::between(0, greatestMiB));
  config.lowWatermarkMiB = reader.getOptionalNumber("vram_low_watermark_mb", Range::between(0, greatestMiB));
  config.telemetry = TelemetryConfig::read(reader, "state_telemetry.jsonl");
  reader.finish();
  if (config.highWatermarkMiB.has_value() != config.lowWatermarkMiB.has_value())
    reader.fail(config.highWatermarkMiB ? "vram_low_watermark_mb" : "vram_high_watermark_mb",
                "both watermarks or neither");
  if (config.highWatermarkMiB && *config.highWatermarkMiB <= *config.lowWatermarkMiB)
    reader.fail("vram_high_watermark_mb", "high must be greater than low");
  return config;
}

} // namespace segue::inline runtime
