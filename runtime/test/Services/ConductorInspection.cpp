//===- ConductorInspection.cpp - all that Conductor decides by ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorInspection.h"
#include "../../lib/Services/Conductor/ConductorManager.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static Json hintsJson(const RuntimeLimitHints &hints) {
  Json json{{"h2d", hints.maxInflightH2d},
            {"d2h", hints.maxInflightD2h},
            {"window", hints.prefetchWindowCap},
            {"suppress", hints.suppressSpeculative},
            {"precision", nullptr}};
  if (hints.blockPrecision)
    json["precision"] = *hints.blockPrecision;
  return json;
}

static Json countersJson(const StepCounters &c) {
  return {{"entered", c.entered},
          {"seconds", c.seconds},
          {"grants", c.grants},
          {"partials", c.partials},
          {"denies", c.denies},
          {"reasons", c.reasons},
          {"peak", c.peak},
          {"token_denials", c.tokenDenials},
          {"slot_overruns", c.slotOverruns},
          {"ceiling_exceeded", c.ceilingExceeded},
          {"adapter_errors", c.adapterErrors},
          {"reclaimed", c.reclaimedBytes},
          {"pressure_max", c.pressureMax},
          {"suppressed_at", c.suppressedAt},
          {"aborted", c.aborted}};
}

Json ConductorInspection::state(const Conductor &conductor) {
  if (!conductor.manager_)
    return Json();
  const Conductor::Manager &manager = *conductor.manager_;
  auto owner = [&](ServiceId service) { return manager.attached[size_t(service)].name; };
  Json json{{"phase", nameOf(manager.phase)},
            {"step", manager.step},
            {"block", manager.block},
            {"hints", hintsJson(manager.policy.pushed())},
            {"base", hintsJson(manager.policy.base())},
            {"contention", manager.policy.contention()},
            {"next_precision", nullptr},
            {"planned_next", manager.order.next()},
            {"allocated", manager.book.allocated()},
            {"sequence", manager.book.nextSequence()},
            {"reservations", Json::array()},
            {"token_sequence", manager.slots.nextSequence()},
            {"tokens", Json::array()},
            {"waiting", Json::array()},
            {"gbps", Json::array()},
            {"counters", countersJson(manager.counters)}};
  if (manager.nextPrecision)
    json["next_precision"] = *manager.nextPrecision;
  for (const Reservation &r : manager.book.reservations())
    json["reservations"].push_back({{"id", r.id},
                                    {"sequence", r.sequence},
                                    {"owner", owner(r.owner)},
                                    {"mode", nameOf(r.mode)},
                                    {"resource", nameOf(r.resource)},
                                    {"priority", nameOf(r.priority)},
                                    {"scope", nameOf(r.scope)},
                                    {"phase", nameOf(r.phase)},
                                    {"granted", r.granted},
                                    {"committed", r.committed},
                                    {"ceiling", r.ceiling}});
  for (const Token &t : manager.slots.tokens())
    json["tokens"].push_back(
        {{"id", t.id}, {"owner", owner(t.owner)}, {"direction", nameOf(t.direction)}, {"completed", t.completed}});
  for (const TokenWaiter &w : manager.slots.waiters())
    json["waiting"].push_back({{"id", w.id},
                               {"sequence", w.sequence},
                               {"owner", owner(w.owner)},
                               {"direction", nameOf(w.direction)},
                               {"priority", nameOf(w.priority)}});
  for (const std::optional<double> &speed : manager.gigabytesPerSecond)
    json["gbps"].push_back(speed ? Json(*speed) : Json());
  return json;
}

} // namespace segue::inline runtime
