//===- ActivationCalls.cpp - what logs of activations hold ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ActivationCalls.h"
#include "../../JsonFields.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

void visitFields(CallFields &fields, SaveEvent &event) {
  visitField(fields, "id", event.id);
  visitField(fields, "bytes", event.bytes);
  visitField(fields, "used_mb", event.usedBytes);
  fields.visitSparse("not_owned", event.notOwned);
  fields.visitSparse("storage", event.storage);
  fields.visitSparse("recomputable", event.recomputable);
  std::string plan = event.planRecompute ? "recompute" : "";
  fields.visitSparse("plan", plan);
  event.planRecompute = !plan.empty();
  if (!plan.empty() && plan != "recompute")
    fields.refuse("plan", "recompute is");
}

void visitFields(CallFields &fields, ActivationHints &hints) {
  fields.visitOptional("d2h", hints.maxInflightD2h);
  fields.visitOptional("h2d", hints.maxInflightH2d);
  fields.visitOptional("suppress", hints.suppressSpeculative);
}

Json answerOf(const ActivationStagehand &policy, const SaveDecision &decision) {
  static constexpr std::string_view names[] = {"KEEP", "SHARE", "RECOMPUTE", "SPILL"};
  Json answer = jsonOf({{"decision", names[size_t(decision.kind)]}});
  if (decision.kind == SaveDecision::Kind::Keep)
    answer["reason"] = decision.reason;
  if (decision.kind == SaveDecision::Kind::Spill) {
    auto poolClass = decision.buffer.poolClass;
    answer["class_mb"] = poolClass ? Json(policy.hostBuffers().classBytes(*poolClass) >> 20) : Json();
    answer["pinned"] = poolClass.has_value();
  }
  answer["fin"] = decision.finalized;
  return answer;
}

Json answerOf(const ActivationStagehand &, const TransferDecision &decision) {
  static constexpr std::string_view names[] = {"NONE", "RETRY", "KEEP", "RECOMPUTE", "ABORT"};
  Json answer = jsonOf({{"action", names[size_t(decision.kind)]}, {"issued", decision.issued}});
  if (decision.kind == TransferDecision::Kind::Abort)
    answer["error"] = errorCodeName(ErrorCode::TransferFailed);
  return answer;
}

Json answerOf(const ActivationStagehand &, const NeedDecision &decision) {
  static constexpr std::string_view names[] = {"USE", "WAIT", "RESTORE", "RESCUE", "RECOMPUTE"};
  return jsonOf({{"action", names[size_t(decision.kind)]}, {"fin", decision.finalized}, {"issued", decision.issued}});
}

Json answerOf(const ActivationStagehand &policy, const std::vector<HostBufferBook::Growth> &) {
  return policy.telemetry();
}

static uint32_t checkedClass(const ActivationStagehand &policy, int64_t poolClass) {
  if (poolClass < 0 || size_t(poolClass) >= policy.hostBuffers().classes())
    throw Error(ErrorCode::InvalidArgument, "the pool has no class " + std::to_string(poolClass));
  return uint32_t(poolClass);
}

void activation_calls::growPool(ActivationStagehand &policy, int64_t poolClass, int64_t slabs) {
  policy.poolGrown(checkedClass(policy, poolClass), slabs);
}

void activation_calls::failGrowth(ActivationStagehand &policy, int64_t poolClass, int64_t slabs) {
  policy.growthFailed(checkedClass(policy, poolClass), slabs);
}

} // namespace segue::inline runtime
