//===- TelemetryConfig.h - the telemetry keys of a service ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TELEMETRY_TELEMETRYCONFIG_H
#define SEGUE_RUNTIME_TELEMETRY_TELEMETRYCONFIG_H

#include "segue/runtime/Config/ConfigReader.h"

namespace segue::inline runtime {

/// The keys `telemetry_enabled` and `telemetry_file`, which every service has.
struct TelemetryConfig {
  bool enabled = true;
  std::filesystem::path file;
  bool operator==(const TelemetryConfig &) const = default;

  /// Reads both keys. Refuses a file in a folder that does not exist, unless telemetry is off.
  static TelemetryConfig read(ConfigReader &reader, std::string_view defaultFile) {
    TelemetryConfig config;
    config.enabled = reader.getBool("telemetry_enabled", true);
    if (config.enabled)
      config.file = reader.getOutputFile("telemetry_file", defaultFile);
    else
      config.file = reader.getString("telemetry_file", defaultFile);
    return config;
  }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TELEMETRY_TELEMETRYCONFIG_H
