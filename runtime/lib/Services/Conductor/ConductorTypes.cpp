//===- ConductorTypes.cpp - the words of Conductor ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ConductorTypes.h"
#include "segue/runtime/Mebibytes.h"
#include "../../JsonFields.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<StepPhase>() {
  static constexpr std::string_view names[] = {"IDLE", "STEP_BEGIN", "FORWARD", "BACKWARD", "OPTIMIZER", "STEP_END"};
  return names;
}

template <> std::span<const std::string_view> namesOf<BudgetResource>() {
  static constexpr std::string_view names[] = {"vram", "pinned"};
  return names;
}

template <> std::span<const std::string_view> namesOf<BudgetMode>() {
  static constexpr std::string_view names[] = {"HARD", "SOFT", "BURST", "FLOOR", "CEILING"};
  return names;
}

template <> std::span<const std::string_view> namesOf<Priority>() {
  static constexpr std::string_view names[] = {"BACKGROUND", "SPECULATIVE", "REQUIRED", "CRITICAL"};
  return names;
}

template <> std::span<const std::string_view> namesOf<BudgetScope>() {
  static constexpr std::string_view names[] = {"manual", "phase", "step"};
  return names;
}

template <> std::span<const std::string_view> namesOf<LinkDirection>() {
  static constexpr std::string_view names[] = {"h2d", "d2h"};
  return names;
}

template <> std::span<const std::string_view> namesOf<GrantStatus>() {
  static constexpr std::string_view names[] = {"GRANTED", "PARTIAL", "DENIED"};
  return names;
}

template <> std::span<const std::string_view> namesOf<TokenStatus>() {
  static constexpr std::string_view names[] = {"ACQUIRED", "DENIED", "WAITING"};
  return names;
}

template <> std::span<const std::string_view> namesOf<DenyReason>() {
  static constexpr std::string_view names[denyReasonCount] = {"",
                                                              "INVALID_REQUEST",
                                                              "UNKNOWN_OWNER",
                                                              "NOT_IN_STEP",
                                                              "PHASE_RULE_SUPPRESSED_SPECULATIVE",
                                                              "OWNER_CEILING_EXCEEDED",
                                                              "VRAM_SOFT_CAP_EXCEEDED",
                                                              "VRAM_HARD_CAP_EXCEEDED",
                                                              "PINNED_CAP_EXCEEDED",
                                                              "H2D_SLOTS_EXHAUSTED",
                                                              "D2H_SLOTS_EXHAUSTED"};
  return names;
}

Json toJson(const RuntimeLimitHints &hints) {
  Json json = jsonOf({{"window", hints.prefetchWindowCap},
                      {"suppress", hints.suppressSpeculative},
                      {"h2d", hints.maxInflightH2d},
                      {"d2h", hints.maxInflightD2h}});
  if (hints.blockPrecision && !hints.blockPrecision->empty()) {
    json["block_precision_map"] = Json::object();
    for (const auto &[block, precision] : *hints.blockPrecision)
      json["block_precision_map"][block] = precision;
  }
  return json;
}

Json toJson(const Grant &grant) {
  Json json = jsonOf({{"status", nameOf(grant.status)}, {"granted_mb", toMiB(grant.bytes)}});
  if (grant.reason != DenyReason::None)
    json["reason"] = nameOf(grant.reason);
  json["reclaimed"] = Json::array();
  for (auto [id, bytes] : grant.reclaimed)
    json["reclaimed"].push_back(Json::array({std::to_string(id), toMiB(bytes)}));
  return json;
}

Json toJson(const TokenAnswer &answer) {
  Json json = jsonOf({{"status", nameOf(answer.status)}});
  if (answer.reason != DenyReason::None)
    json["reason"] = nameOf(answer.reason);
  return json;
}

} // namespace segue::inline runtime
