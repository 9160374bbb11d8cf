//===- WeightCalls.h - what logs of weights hold ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of Weight Stagehand as events of a log; docs/guides/replay-weight.md has
// them as a table.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTCALLS_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTCALLS_H

#include "segue/runtime/Replay/PolicyCall.h"
#include "segue/runtime/Services/WeightStagehand.h"
#include <map>
#include <memory>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<ResidencyRank>();

/// Weight Stagehand as logs know it: it may start anew with other limits, and its
/// scopes have names.
class LoggedWeights {
public:
  /// Takes the config of a log that people write; the blocks that are registered first start the policy.
  explicit LoggedWeights(WeightStagehandConfig config) : config_(std::move(config)) {}
  LoggedWeights(WeightStagehandConfig config, const WeightLimits &limits) : LoggedWeights(std::move(config)) {
    start(limits);
  }

  const WeightStagehandConfig &config() const { return config_; }
  bool isStarted() const { return policy_ != nullptr; }
  void start(const WeightLimits &limits);
  /// Throw StateTransition before it has started.
  operator WeightStagehand &();
  operator const WeightStagehand &() const { return const_cast<LoggedWeights &>(*this); }

  /// Make claims that release() undoes.
  void keep(const std::string &id, std::span<const std::string> blocks);
  void reserve(const std::string &id, const std::string &model, std::optional<ResidencyRank> rank, int64_t bytes);
  void guest(const std::string &id, const std::string &model);
  void release(const std::string &id);

private:
  WeightStagehandConfig config_;
  std::unique_ptr<WeightStagehand> policy_;
  std::map<std::string, WeightStagehand::Scope> scopes_;
};

namespace weight_calls {

struct Registration {
  std::string model;
  std::vector<WeightBlock> blocks;
  /// Fields that a log which people write gives beside the first blocks: budgets in the
  /// place of limits, and the ring.
  std::optional<int64_t> vramBudgetBytes, hostBudgetBytes, slots, slotBytes, openAtOnce;
};
/// Changes the ring; a field that is left out stays as it is.
struct RingChange {
  int64_t slots = 0;
  std::optional<int64_t> most, slotBytes, openAtOnce;
  std::optional<bool> isKept = {};
};

} // namespace weight_calls

void visitFields(CallFields &fields, WeightLimits &limits);
void visitFields(CallFields &fields, WeightHints &hints);
void visitFields(CallFields &fields, BlockOutput &output);
void visitFields(CallFields &fields, LoadTimes &times);
namespace weight_calls {
void visitFields(CallFields &fields, Registration &registration);
void visitFields(CallFields &fields, RingChange &change);
} // namespace weight_calls
Json answerOf(const WeightStagehand &policy, const WeightActions &actions);
Json answerOf(const WeightStagehand &policy, const BeforeBlock &before);
Json answerOf(const WeightStagehand &policy, const LoadFailure &failure);

namespace weight_calls {

/// Registers blocks, and makes a policy for them if none has started.
void registerBlocks(LoggedWeights &weights, const Registration &registration);
void changeRing(WeightStagehand &policy, const RingChange &change);
void restateBlock(WeightStagehand &policy, std::string_view id, int64_t bytes, std::optional<bool> staged);
void begin(WeightStagehand &policy, int64_t step, std::optional<bool> isTraining);
/// Make the calls of a block, and measure `usedBytes` of the device first.
BeforeBlock before(WeightStagehand &policy, std::string_view id, std::optional<int64_t> usedBytes,
                   std::optional<bool> isBeside);
WeightActions after(WeightStagehand &policy, std::string_view id, std::optional<int64_t> usedBytes,
                    const BlockOutput &output);
Json windowOf(const WeightStagehand &policy);
Json wantsSlot(const WeightStagehand &policy);
Json headroomOf(const LoggedWeights &weights);
Json recordOf(const WeightStagehand &policy);
/// Returns what leaves between steps, and the record of the step.
Json endOf(const WeightStagehand &policy, const WeightActions &actions);

using W = WeightStagehand;
inline constexpr PolicyCall start("start", &LoggedWeights::start, NoAnswer(), "");
inline constexpr PolicyCall registered("register", &registerBlocks, NoAnswer(), "");
inline constexpr PolicyCall ring("ring", &changeRing, NoAnswer(), "");
inline constexpr PolicyCall restate("restate", &restateBlock, NoAnswer(), "id", "bytes", "staged");
inline constexpr PolicyCall order("order", &W::setOrder, NoAnswer(), "phase", "ids");
inline constexpr PolicyCall beginStep("begin_step", &begin, NoAnswer(), "step", "training");
inline constexpr PolicyCall phase("phase", &W::enterPhase, NoAnswer(), "phase");
inline constexpr PolicyCall hints("hints", &W::setHints, &windowOf, "");
inline constexpr PolicyCall measure("measure", &W::measure, &wantsSlot, "vram_allocated_mb", "vram_reserved_mb");
inline constexpr PolicyCall beforeBlock("before_block", &before, AnswerOf(), "id", "used_mb", "beside");
inline constexpr PolicyCall afterBlock("after_block", &after, AnswerOf(), "id", "used_mb", "");
inline constexpr PolicyCall observe("observe", &W::observe, NoAnswer(), "id", "");
inline constexpr PolicyCall promotion("promotion", &W::checkPromotion, NoAnswer(), "id", "takes", "gives");
inline constexpr PolicyCall changed("changed", &W::changed, NoAnswer(), "id", "bytes");
inline constexpr PolicyCall loaded("loaded", &W::loaded, AnswerOf(), "id", "");
inline constexpr PolicyCall loadFailed("load_failed", &W::loadFailed, AnswerOf(), "id");
inline constexpr PolicyCall loadDenied("load_denied", &W::loadDenied, AnswerOf(), "id");
inline constexpr PolicyCall evicted("evicted", &W::evicted, AnswerOf(), "id");
inline constexpr PolicyCall saveBackFailed("save_back_failed", &W::saveBackFailed, AnswerOf(), "id");
inline constexpr PolicyCall rescued("rescued", &W::rescued, AnswerOf(), "id");
inline constexpr PolicyCall savedBack("saved_back", &W::savedBack, NoAnswer(), "id");
inline constexpr PolicyCall drop("drop", &W::drop, AnswerOf(), "id");
inline constexpr PolicyCall makeRoom("make_room", &W::makeRoom, AnswerOf(), "bytes");
inline constexpr PolicyCall stall("stall", &W::addStall, NoAnswer(), "ms");
inline constexpr PolicyCall inTime("in_time", &W::inTime, NoAnswer(), "id");
inline constexpr PolicyCall poolWait("pool_wait", &W::addPoolWait, AnswerAs{"warning"}, "id", "ms");
inline constexpr PolicyCall abandonUses("abandon_uses", &W::abandonUses, NoAnswer());
inline constexpr PolicyCall abortStep("abort_step", &W::abortStep, &recordOf);
inline constexpr PolicyCall endStep("end_step", &W::endStep, &endOf);
inline constexpr PolicyCall keep("keep", &LoggedWeights::keep, NoAnswer(), "id", "ids");
inline constexpr PolicyCall reserve("reserve", &LoggedWeights::reserve, NoAnswer(), "id", "model", "rank", "bytes");
inline constexpr PolicyCall guest("guest", &LoggedWeights::guest, &headroomOf, "id", "model");
inline constexpr PolicyCall release("release", &LoggedWeights::release, &headroomOf, "id");

inline constexpr std::tuple all{
    start,      registered, ring,       restate, order,          beginStep, phase, hints,    measure,  beforeBlock, afterBlock,
    observe,    promotion,  changed,    loaded,  loadFailed,     loadDenied, evicted, saveBackFailed, rescued, savedBack, drop,
    makeRoom,   stall,      inTime,     poolWait, abandonUses,   abortStep, endStep, keep,   reserve,  guest,       release};

} // namespace weight_calls

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTCALLS_H
