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

  Json json;
  json["step_id"] = step;
  json["phase_durations"] = std::move(durations);
  json["vram_allocated_mb"] = toMiB(book.allocated());
  json["vram_headroom_mb"] = toMiB(book.hardCap() - book.allocated());
  json["vram_reserved_uncommitted_mb"] = toMiB(book.uncommitted());
  json["pinned_granted_mb"] = toMiB(book.used(BudgetResource::Pinned));
  json["runtime_snapshots"] = std::move(snapshots);
  json["h2d_inflight"] = slots.inflight(LinkDirection::H2d);
  json["d2h_inflight"] = slots.inflight(LinkDirection::D2h);
  json["h2d_peak"] = counters.peak[size_t(LinkDirection::H2d)];
  json["d2h_peak"] = counters.peak[size_t(LinkDirection::D2h)];
  json["h2d_denied"] = counters.tokenDenials[size_t(LinkDirection::H2d)];
  json["d2h_denied"] = counters.tokenDenials[size_t(LinkDirection::D2h)];
  json["slot_overruns"] = counters.slotOverruns;
  json["grant_count"] = counters.grants;
  json["deny_count"] = counters.denies;
  json["partial_count"] = counters.partials;
  json["deny_reasons"] = std::move(reasons);
  json["pressure_max"] = counters.pressureMax;
  json["suppressed_at"] = counters.suppressedAt.empty() ? Json() : Json(counters.suppressedAt);
  json["reclaimed_mb"] = toMiB(counters.reclaimedBytes);
  json["ceiling_exceeded"] = counters.ceilingExceeded;
  json["adapter_errors"] = counters.adapterErrors;
  json["h2d_gbps"] = numberOrNull(gigabytesPerSecond[size_t(LinkDirection::H2d)]);
  json["d2h_gbps"] = numberOrNull(gigabytesPerSecond[size_t(LinkDirection::D2h)]);
  json["aborted"] = counters.aborted;
  return json;
}

} // namespace segue::inline runtime
