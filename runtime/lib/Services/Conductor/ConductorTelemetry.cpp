//===- ConductorTelemetry.cpp - the record of a step ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Exactly the keys of docs/specs/conductor.md.
//
//===----------------------------------------------------------------------===//

#include "ConductorManager.h"
#include "../../JsonFields.h"
#include "segue/runtime/Mebibytes.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static Json numberOrNull(const std::optional<double> &number) { return number ? Json(*number) : Json(); }

Json Conductor::Manager::record() {
  Json durations = Json::object(), snapshots = Json::object(), reasons = Json::object();
  // Spelled as in the record that was published. STEP_END has no duration yet when
  // the record is written.
  static constexpr std::pair<StepPhase, const char *> timed[] = {{StepPhase::StepBegin, "step_begin"},
                                                                 {StepPhase::Forward, "forward"},
                                                                 {StepPhase::Backward, "backward"},
                                                                 {StepPhase::Optimizer, "optimizer"}};
  for (const auto &[phase, key] : timed)
    if (counters.entered[size_t(phase)])
      durations[key] = counters.seconds[size_t(phase)];
  forEachAdapter([&](ConductorAdapter &adapter) { snapshots[adapter.owner()] = adapter.knobs(); });
  for (size_t reason = 0; reason < denyReasonCount; ++reason)
    if (counters.reasons[reason])
      reasons[std::string(nameOf(DenyReason(reason)))] = counters.reasons[reason];

  return jsonOf({{"step_id", step},
                 {"phase_durations", durations},
                 {"vram_allocated_mb", toMiB(book.allocated())},
                 {"vram_headroom_mb", toMiB(book.hardCap() - book.allocated())},
                 {"vram_reserved_uncommitted_mb", toMiB(book.uncommitted())},
                 {"pinned_granted_mb", toMiB(book.used(BudgetResource::Pinned))},
                 {"runtime_snapshots", snapshots},
                 {"h2d_inflight", slots.inflight(LinkDirection::H2d)},
                 {"d2h_inflight", slots.inflight(LinkDirection::D2h)},
                 {"h2d_peak", counters.peak[size_t(LinkDirection::H2d)]},
                 {"d2h_peak", counters.peak[size_t(LinkDirection::D2h)]},
                 {"h2d_denied", counters.tokenDenials[size_t(LinkDirection::H2d)]},
                 {"d2h_denied", counters.tokenDenials[size_t(LinkDirection::D2h)]},
                 {"slot_overruns", counters.slotOverruns},
                 {"grant_count", counters.grants},
                 {"deny_count", counters.denies},
                 {"partial_count", counters.partials},
                 {"deny_reasons", reasons},
                 {"pressure_max", counters.pressureMax},
                 {"suppressed_at", counters.suppressedAt.empty() ? Json() : Json(counters.suppressedAt)},
                 {"reclaimed_mb", toMiB(counters.reclaimedBytes)},
                 {"ceiling_exceeded", counters.ceilingExceeded},
                 {"adapter_errors", counters.adapterErrors},
                 {"h2d_gbps", numberOrNull(gigabytesPerSecond[size_t(LinkDirection::H2d)])},
                 {"d2h_gbps", numberOrNull(gigabytesPerSecond[size_t(LinkDirection::D2h)])},
                 {"aborted", counters.aborted}});
}

} // namespace segue::inline runtime
