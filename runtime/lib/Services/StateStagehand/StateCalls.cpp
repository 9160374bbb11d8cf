//===- StateCalls.cpp - what logs of State Stagehand hold -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/StateCalls.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<StateEvent::Kind>() {
  static constexpr std::string_view names[] = {"step_begin", "program", "block",  "know",   "forget",
                                               "watch",      "block_begin", "block_end", "need", "pressure",
                                               "left",       "stayed",  "denied", "abort_step", "step_end"};
  return names;
}

void visitFields(CallFields &fields, StateEvent &event) {
  visitField(fields, "kind", event.kind);
  fields.visitSparse("id", event.id);
  fields.visitSparse("number", event.number);
  fields.visitSparse("bytes", event.bytes);
  fields.visitSparse("used_mb", event.usedBytes);
  fields.visitSparse("state", event.isState);
  fields.visitSparse("on_device", event.isOnDevice);
  fields.visitSparse("first", event.first);
  fields.visitSparse("last", event.last);
}

Json answerOf(const StateStagehand &policy, const StateStagehand::Moves &moves) {
  Json answer = moves.hasEnded ? policy.telemetry() : Json::object();
  if (!moves.leaves.empty())
    answer["leaves"] = moves.leaves;
  if (!moves.fetches.empty())
    answer["fetches"] = moves.fetches;
  return answer;
}

StateLimits limitsOf(const StateStagehandConfig &config) {
  StateLimits limits{.windowBlocks = config.windowBlocks};
  if (config.highWatermarkMiB) {
    limits.highBytes = int64_t(*config.highWatermarkMiB * 1048576);
    limits.lowBytes = int64_t(*config.lowWatermarkMiB * 1048576);
  }
  return limits;
}

} // namespace segue::inline runtime
