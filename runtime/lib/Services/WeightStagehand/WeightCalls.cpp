//===- WeightCalls.cpp - what logs of weights hold ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightCalls.h"
#include "../../JsonFields.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include <algorithm>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<ResidencyRank>() {
  static constexpr std::string_view names[] = {"PRIMARY", "SECONDARY"};
  return names;
}

//===----------------------------------------------------------------------===//
// The policy of a log
//===----------------------------------------------------------------------===//

void LoggedWeights::start(const WeightLimits &limits) {
  scopes_.clear();
  policy_ = std::make_unique<WeightStagehand>(config_, limits);
}

LoggedWeights::operator WeightStagehand &() {
  if (!policy_)
    throw Error(ErrorCode::StateTransition, "no block is registered yet: a \"register\" comes first");
  return *policy_;
}

void LoggedWeights::keep(const std::string &id, std::span<const std::string> blocks) {
  scopes_[id] = static_cast<WeightStagehand &>(*this).keepResident(blocks);
}

void LoggedWeights::reserve(const std::string &id, const std::string &model, std::optional<ResidencyRank> rank,
                            int64_t bytes) {
  scopes_[id] = static_cast<WeightStagehand &>(*this).reserve(model, rank.value_or(ResidencyRank::Primary), bytes);
}

void LoggedWeights::guest(const std::string &id, const std::string &model) {
  scopes_[id] = static_cast<WeightStagehand &>(*this).asGuest(model);
}

void LoggedWeights::release(const std::string &id) { scopes_[id].release(); }

//===----------------------------------------------------------------------===//
// Fields
//===----------------------------------------------------------------------===//

void visitFields(CallFields &fields, WeightLimits &limits) {
  visitField(fields, "slab_bytes", limits.slabBytes);
  visitField(fields, "slabs", limits.slabs);
  visitField(fields, "high_bytes", limits.highBytes);
  visitField(fields, "low_bytes", limits.lowBytes);
}

void visitFields(CallFields &fields, WeightHints &hints) {
  fields.visitOptional("h2d", hints.maxInflightH2d);
  fields.visitOptional("window", hints.windowCap);
  fields.visitOptional("suppress", hints.suppressSpeculative);
}

void visitFields(CallFields &fields, BlockOutput &output) {
  fields.visitSparse("nans", output.nans);
  fields.visitSparse("infs", output.infs);
  visitField(fields, "compute_ms", output.computeMs);
}

void visitFields(CallFields &fields, LoadTimes &times) {
  fields.visitOptional("copy_ms", times.copyMs);
  fields.visitOptional("file_read_ms", times.fileReadMs);
}

void weight_calls::visitFields(CallFields &fields, RingChange &change) {
  visitField(fields, "slots", change.slots);
  visitField(fields, "most", change.most);
  visitField(fields, "slot_bytes", change.slotBytes);
  visitField(fields, "open", change.openAtOnce);
  visitField(fields, "kept", change.isKept);
}

/// Reads [id, MiB, optional backing, optional staged]; `allowed` says what is wrong with `row`.
static WeightBlock readBlock(CallFields &fields, const Json &row) {
  if (!row.is_array() || row.size() < 2 || !row[0].is_string() || !row[1].is_number() ||
      (row.size() > 2 && !row[2].is_string()) || (row.size() > 3 && !row[3].is_boolean()))
    fields.refuse("blocks", "a list of [id, MiB, optional backing, optional staged] is");
  WeightBlock block;
  block.id = row[0].get<std::string>();
  double bytes = row[1].get<double>() * bytesPerMiB;
  if (!(bytes >= -0x1p60 && bytes <= 0x1p60))
    fields.refuse("blocks", "up to an exbibyte is");
  block.bytes = int64_t(bytes);
  if (row.size() > 2) {
    auto backing = fromName<WeightBacking>(row[2].get<std::string>());
    if (!backing)
      fields.refuse("blocks", "resident_source, file, slab, file + mutable are");
    block.backing = *backing;
  }
  block.staged = row.size() > 3 ? row[3].get<bool>() : block.backing != WeightBacking::ResidentSource;
  return block;
}

void weight_calls::visitFields(CallFields &fields, Registration &registration) {
  fields.visitSparse("model", registration.model);
  Json rows = Json::array();
  for (const WeightBlock &block : registration.blocks)
    rows.push_back(Json::array({block.id, toMiB(block.bytes), nameOf(block.backing), block.staged}));
  visitField(fields, "blocks", rows);
  if (!rows.is_array())
    fields.refuse("blocks", "a list is");
  registration.blocks.clear();
  for (const Json &row : rows) {
    registration.blocks.push_back(readBlock(fields, row));
    registration.blocks.back().model = registration.model;
  }
  visitField(fields, "vram_budget_mb", registration.vramBudgetBytes);
  visitField(fields, "host_budget_mb", registration.hostBudgetBytes);
  visitField(fields, "ring", registration.slots);
  visitField(fields, "slot_mb", registration.slotBytes);
  visitField(fields, "open", registration.openAtOnce);
}

//===----------------------------------------------------------------------===//
// Answers
//===----------------------------------------------------------------------===//

static Json pairOf(const std::string &block, Json what) { return Json::array({block, std::move(what)}); }

/// Loads and evictions stand in the order in which they are to start.
Json answerOf(const WeightStagehand &policy, const WeightActions &actions) {
  Json issued = Json::array(), evict = Json::array();
  int64_t given = 0;
  for (const WeightAction &action : actions)
    if (action.kind == WeightAction::Kind::Load)
      issued.push_back(pairOf(action.block, nameOf(action.priority)));
    else if (action.kind == WeightAction::Kind::Evict)
      evict.push_back(pairOf(action.block, action.saveBack));
    else
      ++given;
  return jsonOf({{"issued", std::move(issued)},
                 {"evict", std::move(evict)},
                 {"given_slots", given},
                 {"resident", policy.resident()}});
}

Json answerOf(const WeightStagehand &policy, const BeforeBlock &before) {
  static constexpr std::string_view names[] = {"HIT", "LATE", "MISS"};
  Json answer = answerOf(policy, before.actions);
  answer["use"] = names[size_t(before.use)];
  return answer;
}

Json answerOf(const WeightStagehand &policy, const LoadFailure &failure) {
  Json answer = answerOf(policy, failure.actions);
  answer["action"] = failure.retry ? "RETRY" : "FAIL";
  if (!failure.retry)
    answer["error"] = errorCodeName(ErrorCode::TransferFailed);
  return answer;
}

Json weight_calls::windowOf(const WeightStagehand &policy) { return jsonOf({{"window", policy.window()}}); }
Json weight_calls::wantsSlot(const WeightStagehand &policy) { return jsonOf({{"wants_slot", policy.wantsSlot()}}); }
Json weight_calls::recordOf(const WeightStagehand &policy) { return policy.telemetry(); }

Json weight_calls::headroomOf(const LoggedWeights &weights) {
  return jsonOf({{"headroom_mb", toMiB(static_cast<const WeightStagehand &>(weights).headroomBytes())}});
}

Json weight_calls::endOf(const WeightStagehand &policy, const WeightActions &actions) {
  Json answer = answerOf(policy, actions);
  answer.update(policy.telemetry());
  answer.update(jsonOf({{"rolling", Json(policy.rolling())},
                        {"line", policy.logLine()},
                        {"window", Json(policy.window())}}));
  return answer;
}

//===----------------------------------------------------------------------===//
// Calls of several parts
//===----------------------------------------------------------------------===//

void weight_calls::registerBlocks(LoggedWeights &weights, const Registration &registration) {
  if (!weights.isStarted()) {
    WeightSizes sizes;
    for (const WeightBlock &block : registration.blocks)
      sizes.largestBlockBytes = std::max(sizes.largestBlockBytes, block.bytes);
    if (registration.vramBudgetBytes)
      sizes.vramBudgetBytes = *registration.vramBudgetBytes;
    if (registration.hostBudgetBytes)
      sizes.hostBudgetBytes = *registration.hostBudgetBytes;
    weights.start(weights.config().limits(sizes));
  }
  WeightStagehand &policy = weights;
  for (const WeightBlock &block : registration.blocks)
    policy.registerBlock(block);
  if (registration.slots)
    policy.setRing({.slots = *registration.slots,
                    .most = *registration.slots,
                    .slotBytes = registration.slotBytes.value_or(0),
                    .openAtOnce = registration.openAtOnce.value_or(1)});
}

void weight_calls::changeRing(WeightStagehand &policy, const RingChange &change) {
  WeightRing ring = policy.ring();
  ring.slots = change.slots;
  ring.most = change.most.value_or(ring.most);
  ring.slotBytes = change.slotBytes.value_or(ring.slotBytes);
  ring.openAtOnce = change.openAtOnce.value_or(ring.openAtOnce);
  ring.isKept = change.isKept.value_or(ring.isKept);
  policy.setRing(ring);
}

void weight_calls::restateBlock(WeightStagehand &policy, std::string_view id, int64_t bytes,
                                std::optional<bool> staged) {
  policy.restate(id, bytes, staged.value_or(false));
}

void weight_calls::begin(WeightStagehand &policy, int64_t step, std::optional<bool> isTraining) {
  policy.beginStep(step, isTraining.value_or(true));
}

BeforeBlock weight_calls::before(WeightStagehand &policy, std::string_view id, std::optional<int64_t> usedBytes,
                                 std::optional<bool> isBeside) {
  if (usedBytes)
    policy.measure(*usedBytes);
  return policy.beforeBlock(id, isBeside.value_or(false));
}

WeightActions weight_calls::after(WeightStagehand &policy, std::string_view id, std::optional<int64_t> usedBytes,
                                  const BlockOutput &output) {
  if (usedBytes)
    policy.measure(*usedBytes);
  return policy.afterBlock(id, output);
}

} // namespace segue::inline runtime
