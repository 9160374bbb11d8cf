//===- RecordedActivation.cpp - a policy and its log ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Events and answers are those of docs/specs/replay.md, which ReplayActivation.cpp
// reads back. A call that throws has changed nothing, and is no event.
//
//===----------------------------------------------------------------------===//

#include "RecordedActivation.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {


void RecordedActivation::stepBegin(int64_t step) {
  policy_.stepBegin(step);
  if (log_)
    log_->add({{"op", "step_begin"}, {"step", step}});
}

void RecordedActivation::setHints(const ActivationHints &hints) {
  policy_.setHints(hints);
  if (log_)
    log_->add({{"op", "hints"},
               {"d2h", hints.maxInflightD2h},
               {"h2d", hints.maxInflightH2d},
               {"suppress", hints.suppressSpeculative}});
}

SaveDecision RecordedActivation::save(const SaveEvent &event) {
  static constexpr std::string_view names[] = {"KEEP", "SHARE", "RECOMPUTE", "SPILL"};
  SaveDecision decision = policy_.save(event);
  if (!log_)
    return decision;
  Json line = {{"op", "save"}, {"id", event.id}, {"bytes", event.bytes}, {"used_mb", toMiB(event.usedBytes)}};
  if (event.notOwned)
    line["not_owned"] = true;
  if (!event.storage.empty())
    line["storage"] = event.storage;
  if (event.recomputable)
    line["recomputable"] = true;
  if (event.planRecompute)
    line["plan"] = "recompute";
  Json answer = {{"decision", names[size_t(decision.kind)]}, {"fin", decision.finalized}};
  if (decision.kind == SaveDecision::Kind::Keep)
    answer["reason"] = decision.reason;
  if (decision.kind == SaveDecision::Kind::Spill) {
    auto poolClass = decision.buffer.poolClass;
    answer["class_mb"] = poolClass ? Json(policy_.hostBuffers().classBytes(*poolClass) >> 20) : Json();
    answer["pinned"] = poolClass.has_value();
  }
  log_->add(std::move(line), std::move(answer));
  return decision;
}

TransferDecision RecordedActivation::transferDone(const std::string &id, int64_t usedBytes) {
  TransferDecision decision = policy_.transferDone(id, usedBytes);
  if (log_)
    log_->add({{"op", "transfer_done"}, {"id", id}, {"used_mb", toMiB(usedBytes)}}, {{"issued", decision.issued}});
  return decision;
}

TransferDecision RecordedActivation::transferFailed(const std::string &id, int64_t usedBytes) {
  static constexpr std::string_view names[] = {"NONE", "RETRY", "KEEP", "RECOMPUTE", "ABORT"};
  TransferDecision decision = policy_.transferFailed(id, usedBytes);
  if (log_)
    log_->add({{"op", "transfer_failed"}, {"id", id}, {"used_mb", toMiB(usedBytes)}},
              {{"action", names[size_t(decision.kind)]}, {"issued", decision.issued}});
  return decision;
}

bool RecordedActivation::checksumFailed(const std::string &id) {
  bool recovered = policy_.checksumFailed(id);
  if (log_)
    log_->add({{"op", "checksum_failed"}, {"id", id}}, {{"recovered", recovered}});
  return recovered;
}

std::vector<std::string> RecordedActivation::backwardBegin(const std::vector<std::string> &order, int64_t usedBytes) {
  std::vector<std::string> issued = policy_.backwardBegin(order, usedBytes);
  if (log_)
    log_->add({{"op", "backward_begin"}, {"order", order}, {"used_mb", toMiB(usedBytes)}}, {{"issued", issued}});
  return issued;
}

NeedDecision RecordedActivation::need(const std::string &id, int64_t usedBytes) {
  static constexpr std::string_view names[] = {"USE", "WAIT", "RESTORE", "RESCUE", "RECOMPUTE"};
  NeedDecision decision = policy_.need(id, usedBytes);
  if (log_)
    log_->add({{"op", "need"}, {"id", id}, {"used_mb", toMiB(usedBytes)}},
              {{"action", names[size_t(decision.kind)]}, {"fin", decision.finalized}, {"issued", decision.issued}});
  return decision;
}

std::vector<std::string> RecordedActivation::release(const std::string &id, int64_t usedBytes) {
  std::vector<std::string> issued = policy_.release(id, usedBytes);
  if (log_)
    log_->add({{"op", "release"}, {"id", id}, {"used_mb", toMiB(usedBytes)}}, {{"issued", issued}});
  return issued;
}

std::vector<std::string> RecordedActivation::dropRestored(int64_t bytes) {
  std::vector<std::string> dropped = policy_.dropRestored(bytes);
  if (log_ && !dropped.empty())
    log_->add({{"op", "drop_restored"}, {"bytes", bytes}}, {{"dropped", dropped}});
  return dropped;
}

void RecordedActivation::abortStep() {
  policy_.abortStep();
  if (log_) {
    log_->add(Json{{"op", "abort_step"}});
    log_->flush();
  }
}

std::vector<HostBufferBook::Growth> RecordedActivation::stepEnd() {
  std::vector<HostBufferBook::Growth> growth = policy_.stepEnd();
  if (log_) {
    Json record = policy_.telemetry();
    record.erase("stall_time_ms"); // measured, not decided
    log_->add({{"op", "step_end"}}, std::move(record));
    log_->flush();
  }
  return growth;
}

void RecordedActivation::poolGrown(uint32_t poolClass, int64_t count) {
  policy_.poolGrown(poolClass, count);
  if (log_)
    log_->add(Json{{"op", "pool_grown"}, {"class", poolClass}, {"slabs", count}});
}

void RecordedActivation::growthFailed(uint32_t poolClass, int64_t count) {
  policy_.growthFailed(poolClass, count);
  if (log_)
    log_->add(Json{{"op", "growth_failed"}, {"class", poolClass}, {"slabs", count}});
}

} // namespace segue::inline runtime
