//===- ActivationRecord.cpp - a line of activation telemetry --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ActivationRecord.h"
#include "../../JsonFields.h"
#include "segue/runtime/Mebibytes.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

Json ActivationRecord::json() const {
  Json reasons = Json::object();
  for (const auto &[reason, count] : keptReasons)
    reasons[std::string(reason)] = count;
  return jsonOf({{"step", step},
                 {"activations_saved", saved},
                 {"activations_kept", kept},
                 {"activations_spilled", spilled},
                 {"activations_restored", restored},
                 {"spill_bytes", spillBytes},
                 {"restore_bytes", restoreBytes},
                 {"stall_time_ms", stallMs},
                 {"stall_count", stalls},
                 {"pool_hits", poolHits},
                 {"pool_misses", poolMisses},
                 {"vram_peak_mb", toMiB(peakUsedBytes)},
                 {"activations_shared", shared},
                 {"activations_recomputed", recomputed},
                 {"activations_rescued", rescued},
                 {"activations_leaked", leaked},
                 {"prefetch_hits", prefetchHits},
                 {"prefetch_late", prefetchLate},
                 {"finalize_waits", finalizeWaits},
                 {"kept_reasons", reasons},
                 {"unpinned_peak_mb", toMiB(unpinnedPeakBytes)},
                 {"pool_bytes", poolBytes},
                 {"pool_grown_slabs", poolGrownSlabs},
                 {"transfer_retries", retries},
                 {"checksum_recovered", checksumRecovered},
                 {"aborted", aborted}});
}

} // namespace segue::inline runtime
