//===- TransferCounters.h - what stitching has cost -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Running sums of a device's transfers, and the record of one step made of
// them. Sums only grow; work on queues adds to them too. The invariant
// inputs = elided + converted + cache hits holds between submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_TRANSFERCOUNTERS_H
#define SEGUE_RUNTIME_TRANSFER_TRANSFERCOUNTERS_H

#include "segue/runtime/Json.h"
#include <atomic>
#include <cstdint>

namespace segue::inline runtime {

/// Sums since the device was opened. Bytes are counted when a hop is queued, nanoseconds when it has run.
struct TransferCounters {
  using Sum = std::atomic<uint64_t>;

  Sum submits{0}, inputs{0}, inputsElided{0}, inputsConverted{0}, cacheHits{0};
  Sum h2dBytes{0}, d2hBytes{0}, d2dBytes{0}, hostBytes{0};
  Sum bounces{0}, donations{0}, donationsIgnored{0}, lossyCasts{0};
  /// The time that the host was blocked in wait and toHost, and the time that queues spent in relayouts.
  Sum waitNanoseconds{0}, alignNanoseconds{0};
  Sum l1Fallbacks{0};

  // None of the sums from here on is in the telemetry of a step.
  /// Copies of any kind; those tried twice; those that failed twice; those made
  /// without staging because no pinned memory was to be had.
  Sum copies{0}, retries{0}, failures{0}, pageableCopies{0};
  /// Copies over the link that ran, as the device counts them: each chunk, and
  /// each second try.
  Sum h2dCopies{0}, d2hCopies{0};
  Sum cacheEvictions{0};
  /// The bytes that the link has carried and the time it was at work, which give its speed.
  Sum h2dCarriedBytes{0}, h2dCarriedNanoseconds{0}, d2hCarriedBytes{0}, d2hCarriedNanoseconds{0};
  /// Of a disk below the host's memory: bytes queued in each direction, and copies that ran.
  Sum diskReadBytes{0}, diskWriteBytes{0}, diskCopies{0};
};

/// One line of `stitch_telemetry.jsonl`; the members are its keys.
struct StitchTelemetry {
  int64_t step = 0;
  uint64_t submits = 0, inputs = 0, inputs_elided = 0, inputs_converted = 0, cache_hits = 0;
  uint64_t h2d_bytes = 0, d2h_bytes = 0, d2d_bytes = 0, host_bytes = 0;
  uint64_t bounces = 0, donations_ignored = 0, lossy_casts = 0;
  double wait_ms = 0, align_ms = 0;
  uint64_t l1_compactions = 0, l1_fallbacks = 0;

  Json json() const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TRANSFERCOUNTERS_H
