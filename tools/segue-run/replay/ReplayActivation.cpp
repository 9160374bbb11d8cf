//===- ReplayActivation.cpp - logs of Activation Stagehand ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Events and answers are those of docs/specs/replay.md.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Services/ActivationStagehand.h"
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
class ActivationReplayer : public Replayer {
public:
  explicit ActivationReplayer(const ReplayLog &log) : log_(log), stagehand_(read(log)) {}

  Json apply(EventReader &event) override;

private:
  static ActivationStagehandConfig read(const ReplayLog &log) {
    ConfigReader reader = log.readConfig();
    return ActivationStagehandConfig::read(reader);
  }
  Json save(EventReader &event);
  Json transferFailed(EventReader &event);
  Json need(EventReader &event);
  static std::optional<int64_t> optionalUsed(EventReader &event) {
    return event.has("used_mb") ? std::optional(event.bytesOfMiB("used_mb")) : std::nullopt;
  }

  ReplayLog log_;
  ActivationStagehand stagehand_;
};
} // namespace

Json ActivationReplayer::save(EventReader &event) {
  static constexpr std::string_view names[] = {"KEEP", "SHARE", "RECOMPUTE", "SPILL"};
  SaveEvent save;
  save.id = event.text("id");
  save.bytes = event.bytesOrMiB();
  save.usedBytes = event.bytesOfMiB("used_mb");
  save.notOwned = event.boolean("not_owned", false);
  save.storage = event.text("storage", "");
  save.recomputable = event.boolean("recomputable", false);
  if (event.has("plan")) {
    if (event.text("plan") != "recompute")
      event.refuse("plan", "recompute");
    save.planRecompute = true;
  }
  SaveDecision decision = stagehand_.save(save);
  Json answer = {{"decision", names[size_t(decision.kind)]}};
  if (decision.kind == SaveDecision::Kind::Keep)
    answer["reason"] = decision.reason;
  if (decision.kind == SaveDecision::Kind::Spill) {
    auto poolClass = decision.buffer.poolClass;
    answer["class_mb"] = poolClass ? Json(stagehand_.hostBuffers().classBytes(*poolClass) >> 20) : Json();
    answer["pinned"] = poolClass.has_value();
  }
  answer["fin"] = decision.finalized;
  return answer;
}

Json ActivationReplayer::transferFailed(EventReader &event) {
  using Kind = TransferDecision::Kind;
  static constexpr std::string_view names[] = {"NONE", "RETRY", "KEEP", "RECOMPUTE", "ABORT"};
  TransferDecision decision = stagehand_.transferFailed(event.text("id"), optionalUsed(event));
  Json answer = {{"action", names[size_t(decision.kind)]}, {"issued", decision.issued}};
  if (decision.kind == Kind::Abort)
    answer["error"] = errorCodeName(ErrorCode::TransferFailed);
  return answer;
}

Json ActivationReplayer::need(EventReader &event) {
  static constexpr std::string_view names[] = {"USE", "WAIT", "RESTORE", "RESCUE", "RECOMPUTE"};
  NeedDecision decision = stagehand_.need(event.text("id"), event.bytesOfMiB("used_mb"));
  return {{"action", names[size_t(decision.kind)]}, {"fin", decision.finalized}, {"issued", decision.issued}};
}

Json ActivationReplayer::apply(EventReader &event) {
  const std::string &op = event.op();
  if (op == "step_begin") {
    stagehand_.stepBegin(event.integer("step"));
    return Json::object();
  }
  if (op == "hints") {
    ActivationHints hints;
    hints.maxInflightD2h = event.integer("d2h", hints.maxInflightD2h);
    hints.maxInflightH2d = event.integer("h2d", hints.maxInflightH2d);
    hints.suppressSpeculative = event.boolean("suppress", false);
    stagehand_.setHints(hints);
    return Json::object();
  }
  if (op == "save")
    return save(event);
  if (op == "transfer_done")
    return {{"issued", stagehand_.transferDone(event.text("id"), optionalUsed(event)).issued}};
  if (op == "transfer_failed")
    return transferFailed(event);
  if (op == "backward_begin") {
    std::vector<std::string> order = event.texts("order");
    return {{"issued", stagehand_.backwardBegin(order, event.bytesOfMiB("used_mb"))}};
  }
  if (op == "need")
    return need(event);
  if (op == "release")
    return {{"issued", stagehand_.release(event.text("id"), event.bytesOfMiB("used_mb"))}};
  if (op == "drop_restored")
    return {{"dropped", stagehand_.dropRestored(event.integer("bytes"))}};
  if (op == "checksum_failed")
    return {{"recovered", stagehand_.checksumFailed(event.text("id"))}};
  if (op == "pool_grown") {
    int64_t poolClass = event.integer("class");
    if (poolClass < 0 || size_t(poolClass) >= stagehand_.hostBuffers().classes())
      event.refuse("class", "index of a class of the pool");
    stagehand_.poolGrown(uint32_t(poolClass), event.integer("slabs"));
    return Json::object();
  }
  if (op == "growth_failed") {
    stagehand_.growthFailed(uint32_t(event.integer("class")), event.integer("slabs"));
    return Json::object();
  }
  if (op == "pool") {
    Json free = Json::array();
    for (size_t i = 0; i < stagehand_.hostBuffers().classes(); ++i)
      free.push_back(stagehand_.hostBuffers().freeSlabs(i));
    return {{"free", free}};
  }
  if (op == "abort_step") {
    stagehand_.abortStep();
    return Json::object();
  }
  if (op == "step_end") {
    stagehand_.stepEnd();
    return stagehand_.telemetry();
  }
  if (op == "config_case")
    return answerConfigCase(log_, event, [](ConfigReader &reader) { ActivationStagehandConfig::read(reader); });
  event.unknownOp({"step_begin", "hints", "save", "transfer_done", "transfer_failed", "backward_begin", "need",
                   "release", "drop_restored", "checksum_failed", "pool_grown", "growth_failed", "pool", "abort_step",
                   "step_end", "config_case"});
}

std::unique_ptr<Replayer> createActivationReplayer(const ReplayLog &log) {
  return std::make_unique<ActivationReplayer>(log);
}

} // namespace segue::tool
