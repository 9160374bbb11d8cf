//===- StateStagehandConfig.h - whether states may leave --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section `memory.stagehand.state_stagehand`; docs/specs/state-stagehand.md has
// the keys as a table.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_STATESTAGEHANDCONFIG_H
#define SEGUE_RUNTIME_SERVICES_STATESTAGEHANDCONFIG_H

#include "segue/runtime/Config/ConfigReader.h"
#include "segue/runtime/Telemetry/TelemetryConfig.h"
#include <optional>

namespace segue::inline runtime {

struct StateStagehandConfig {
  /// Off: gradients and optimizer states stay on the device. On: they live on the host.
  /// Auto: they live on the host if a trial has shown that a step does not fit otherwise.
  enum class Mode { Off, Auto, On };

  static constexpr const char *section = "memory.stagehand.state_stagehand";

  Mode mode = Mode::Auto;
  /// The number of blocks of the optimizer ahead of the current one whose items are brought.
  int64_t windowBlocks = 2;
  /// The watermarks; if not given, those of the service that has watermarks, or none.
  std::optional<double> highWatermarkMiB, lowWatermarkMiB;
  TelemetryConfig telemetry;

  /// Reads the whole section. Throws ConfigError.
  static StateStagehandConfig read(ConfigReader &reader);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_STATESTAGEHANDCONFIG_H
