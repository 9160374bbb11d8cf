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

/// LossyCasts says what happens at an implicit conversion that loses bits of the stored value.
enum class LossyCasts : uint8_t { Allow, Warn, Error };

enum class L1Bounce : uint8_t { Allow, Forbid };

struct StitchOptions {
  LossyCasts lossyCasts = LossyCasts::Error;
  /// Whether converted copies of parameters are kept.
  bool derivedCache = true;
  uint64_t derivedCacheMaxBytes = uint64_t(1024) << 20;
  /// The bytes of a chunk in which pageable memory crosses the link, and the number of
  /// pinned buffers through which chunks go.
  uint64_t stagingChunkBytes = uint64_t(4) << 20;
  uint32_t stagingBuffers = 2;
  L1Bounce l1Bounce = L1Bounce::Allow;
  /// Whether one record per copy is kept.
  bool traceCopies = false;
  TelemetryConfig telemetry{.enabled = true, .file = "stitch_telemetry.jsonl"};

  /// Reads the section `memory.stitch`. Throws ConfigError.
  static StitchOptions read(ConfigReader &reader);
  bool operator==(const StitchOptions &) const = default;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_STITCHOPTIONS_H
