//===- StitchOptions.h - the config of runtime stitching --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section `memory.stitch` of the config file as a value. Defaults are those
// of a file without the section.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_STITCHOPTIONS_H
#define SEGUE_RUNTIME_TRANSFER_STITCHOPTIONS_H

#include "segue/runtime/Telemetry/TelemetryConfig.h"
#include <cstdint>

namespace segue::inline runtime {

/// LossyCasts says how an implicit conversion that loses bits of the stored value is met.
enum class LossyCasts : uint8_t { Allow, Warn, Error };

enum class L1Bounce : uint8_t { Allow, Forbid };

struct StitchOptions {
  LossyCasts lossyCasts = LossyCasts::Error;
  /// Keep converted copies of parameters.
  bool derivedCache = true;
  uint64_t derivedCacheMaxBytes = uint64_t(1024) << 20;
  /// Pageable memory crosses the link in chunks of so many bytes, through so
  /// many pinned buffers.
  uint64_t stagingChunkBytes = uint64_t(4) << 20;
  uint32_t stagingBuffers = 2;
  L1Bounce l1Bounce = L1Bounce::Allow;
  /// Keep one record per copy.
  bool traceCopies = false;
  TelemetryConfig telemetry{.enabled = true, .file = "stitch_telemetry.jsonl"};

  /// Reads the section `memory.stitch`. Throws ConfigError.
  static StitchOptions read(ConfigReader &reader);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_STITCHOPTIONS_H
