//===- StitchOptions.cpp - the config of runtime stitching ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/StitchOptions.h"

namespace segue::inline runtime {

static constexpr std::pair<std::string_view, LossyCasts> lossyCastsNames[] = {
    {"allow", LossyCasts::Allow}, {"warn", LossyCasts::Warn}, {"error", LossyCasts::Error}};
static constexpr std::pair<std::string_view, L1Bounce> l1BounceNames[] = {{"allow", L1Bounce::Allow},
                                                                          {"forbid", L1Bounce::Forbid}};

/// The greatest MiB of a key that ends in _mb: more has no bytes in 64 bits.
static constexpr double greatestCacheMiB = double(INT64_MAX >> 20);

StitchOptions StitchOptions::read(ConfigReader &reader) {
  StitchOptions options;
  options.lossyCasts = reader.getEnum<LossyCasts>("lossy_casts", LossyCasts::Error, lossyCastsNames);
  options.derivedCache = reader.getBool("derived_cache", true);
  options.derivedCacheMaxBytes = uint64_t(reader.getInt("derived_cache_max_mb", 1024, Range::between(0, greatestCacheMiB)))
                                 << 20;
  options.stagingChunkBytes = uint64_t(reader.getInt("staging_chunk_mb", 4, Range::between(1, 256))) << 20;
  options.stagingBuffers = uint32_t(reader.getInt("staging_buffers", 2, Range::between(2, 16)));
  options.l1Bounce = reader.getEnum<L1Bounce>("l1_bounce", L1Bounce::Allow, l1BounceNames);
  options.traceCopies = reader.getBool("trace_copies", false);
  options.telemetry = TelemetryConfig::read(reader, "stitch_telemetry.jsonl");
  reader.finish();
  return options;
}

} // namespace segue::inline runtime
