//===- ActivationRecord.h - a line of activation telemetry ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_ACTIVATIONRECORD_H
#define SEGUE_RUNTIME_SERVICES_ACTIVATIONRECORD_H

#include "segue/runtime/Json.h"
#include <cstdint>
#include <map>
#include <string_view>

namespace segue::inline runtime {

/// The counts and times of one step's saved activations, in either mode.
struct ActivationRecord {
  int64_t step = 0;
  int64_t saved = 0, kept = 0, spilled = 0, restored = 0, shared = 0, recomputed = 0, rescued = 0, leaked = 0;
  int64_t spillBytes = 0, restoreBytes = 0;
  double stallMs = 0;
  int64_t stalls = 0, poolHits = 0, poolMisses = 0;
  int64_t prefetchHits = 0, prefetchLate = 0, finalizeWaits = 0;
  int64_t retries = 0, checksumRecovered = 0;
  /// The number of tensors that were kept, by reason; the keys are literals.
  std::map<std::string_view, int64_t> keptReasons;
  /// The most bytes of device memory, and of unpinned host memory, that were in use.
  int64_t peakUsedBytes = 0, unpinnedPeakBytes = 0;
  int64_t poolBytes = 0, poolGrownSlabs = 0;
  bool aborted = false;

  /// Returns the record with the keys of activation-stagehand.md.
  Json json() const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_ACTIVATIONRECORD_H
