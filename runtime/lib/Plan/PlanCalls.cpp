//===- PlanCalls.cpp - what logs of plans hold ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/PlanCalls.h"
#include "../JsonFields.h"

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<StepEvent::Kind>() {
  static const auto names = [] {
    std::array<std::string_view, size_t(StepEvent::Kind::Accumulated) + 1> all;
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = name(StepEvent::Kind(i));
    return all;
  }();
  return names;
}

/// An element of `row` that is a whole number below `end`.
static uint64_t countIn(CallFields &fields, const char *key, const Json &row, size_t at, uint64_t end) {
  if (!row.is_array() || row.size() <= at || !row[at].is_number_unsigned() || row[at].get<uint64_t>() >= end)
    fields.refuse(key, "lists with a number below " + std::to_string(end) + " at " + std::to_string(at) + " are");
  return row[at].get<uint64_t>();
}

static std::string textIn(CallFields &fields, const char *key, const Json &row, size_t at) {
  if (!row.is_array() || row.size() <= at || !row[at].is_string())
    fields.refuse(key, "lists with a text at " + std::to_string(at) + " are");
  return row[at].get<std::string>();
}

static void visitEvents(CallFields &fields, std::vector<StepEvent> &events) {
  Json rows = Json::array();
  for (const StepEvent &event : events)
    rows.push_back(Json::array({nameOf(event.kind), event.label}));
  visitField(fields, "events", rows);
  events.clear();
  for (const Json &row : rows) {
    auto kind = fromName<StepEvent::Kind>(textIn(fields, "events", row, 0));
    if (!kind)
      fields.refuse("events", "kinds of events are");
    events.push_back({.kind = *kind, .label = textIn(fields, "events", row, 1)});
  }
}

static void visitGaps(CallFields &fields, std::vector<ResidencyGap> &gaps, size_t events) {
  Json rows = Json::array();
  for (const ResidencyGap &gap : gaps)
    rows.push_back(Json::array({gap.tensor, gap.bytes, gap.leaves, gap.needed}));
  visitField(fields, "gaps", rows);
  gaps.clear();
  for (const Json &row : rows)
    gaps.push_back({.tensor = textIn(fields, "gaps", row, 0),
                    .bytes = countIn(fields, "gaps", row, 1, uint64_t(1) << 60),
                    .leaves = uint32_t(countIn(fields, "gaps", row, 2, events)),
                    .needed = uint32_t(countIn(fields, "gaps", row, 3, events))});
}

void visitFields(CallFields &fields, PlanOfStep &plan) {
  visitEvents(fields, plan.profile.events);
  visitGaps(fields, plan.profile.gaps, plan.profile.events.size());
  Json rows = Json::array();
  for (const Departure &departure : plan.plan.away)
    rows.push_back(departure.isRemade ? Json::array({departure.gap, departure.returns, "remade"})
                                      : Json::array({departure.gap, departure.returns}));
  visitField(fields, "away", rows);
  plan.plan.away.clear();
  for (const Json &row : rows) {
    Departure departure{uint32_t(countIn(fields, "away", row, 0, plan.profile.gaps.size())),
                        uint32_t(countIn(fields, "away", row, 1, plan.profile.events.size()))};
    if (!plan.plan.away.empty() && departure.returns < plan.plan.away.back().returns)
      fields.refuse("away", "returns in the order of their events are");
    departure.isRemade = row.size() > 2 && textIn(fields, "away", row, 2) == "remade";
    plan.plan.away.push_back(departure);
  }
}

Json answerOf(const PlanFollower &follower, const PlanFollower::Decisions &decisions) {
  Json answer = jsonOf({{"leaves", decisions.leaves}, {"returns", decisions.returns}});
  if (!decisions.drops.empty())
    answer["drops"] = decisions.drops;
  if (follower.hasDiverged())
    answer["diverged"] = follower.divergence();
  return answer;
}

} // namespace segue::inline runtime
