//===- RecordedWeights.h - a policy and its log -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand with its log, if there is one. Each call is described in
// WeightCalls.h; see WeightStagehand.h for what they mean.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H
#define SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H

#include "../../Replay/Recorded.h"
#include "segue/runtime/Services/WeightCalls.h"

namespace segue::inline runtime {

class RecordedWeights {
public:
  using Scope = WeightStagehand::Scope;

  /// `log` may be null; it is told of a policy that begins anew.
  RecordedWeights(WeightStagehandConfig config, const WeightLimits &limits, std::shared_ptr<EventLog> log)
      : recorded_(std::move(log), std::move(config), limits) {
    recorded_.note(weight_calls::start, limits);
  }

  const WeightStagehand &policy() const { return *recorded_; }
  BlockState state(std::string_view id) const { return policy().state(id); }
  int64_t useCount(std::string_view id) const { return policy().useCount(id); }
  std::string describe() const { return policy().describe(); }
  Json telemetry() const { return policy().telemetry(); }
  std::string logLine() const { return policy().logLine(); }

  template <typename Call, typename... Given> typename Call::Result tell(const Call &call, Given &&...given) {
    return recorded_.tell(call, std::forward<Given>(given)...);
  }

  void registerBlock(const WeightBlock &block) {
    tell(weight_calls::registered, weight_calls::Registration{.model = block.model, .blocks = {block}});
  }
  void setOrder(StepPhase phase, std::span<const std::string> ids) { tell(weight_calls::order, phase, ids); }
  void setRing(const WeightRing &ring) {
    tell(weight_calls::ring, weight_calls::RingChange{ring.slots, ring.most, ring.slotBytes, ring.openAtOnce});
  }
  void measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes = {}) {
    tell(weight_calls::measure, allocatedBytes, reservedBytes);
  }
  void restate(std::string_view id, int64_t bytes, bool staged) { tell(weight_calls::restate, id, bytes, staged); }

  void beginStep(int64_t step, bool isTraining = true) { tell(weight_calls::beginStep, step, isTraining); }
  void enterPhase(StepPhase phase) { tell(weight_calls::phase, phase); }
  void setHints(const WeightHints &hints) { tell(weight_calls::hints, hints); }
  /// `allocatedBytes` of the device, for measure().
  BeforeBlock beforeBlock(std::string_view id, int64_t allocatedBytes) {
    return tell(weight_calls::beforeBlock, id, allocatedBytes);
  }
  WeightActions afterBlock(std::string_view id, int64_t allocatedBytes) {
    return tell(weight_calls::afterBlock, id, allocatedBytes, BlockOutput());
  }
  void observe(std::string_view id, const BlockOutput &output) { tell(weight_calls::observe, id, output); }
  void changed(std::string_view id, int64_t bytes) { tell(weight_calls::changed, id, bytes); }
  WeightActions loaded(std::string_view id, const LoadTimes &times) { return tell(weight_calls::loaded, id, times); }
  LoadFailure loadFailed(std::string_view id) { return tell(weight_calls::loadFailed, id); }
  WeightActions loadDenied(std::string_view id) { return tell(weight_calls::loadDenied, id); }
  WeightActions evicted(std::string_view id) { return tell(weight_calls::evicted, id); }
  WeightActions saveBackFailed(std::string_view id) { return tell(weight_calls::saveBackFailed, id); }
  void savedBack(std::string_view id) { tell(weight_calls::savedBack, id); }
  WeightActions drop(std::string_view id) { return tell(weight_calls::drop, id); }
  WeightActions makeRoom(int64_t bytes) { return tell(weight_calls::makeRoom, bytes); }
  void addStall(double milliseconds) { tell(weight_calls::stall, milliseconds); }
  void inTime(std::string_view id) { tell(weight_calls::inTime, id); }
  std::string addPoolWait(std::string_view id, double milliseconds) {
    return tell(weight_calls::poolWait, id, milliseconds);
  }
  void abortStep() {
    tell(weight_calls::abortStep);
    recorded_.flush();
  }
  void abandonUses() { tell(weight_calls::abandonUses); }
  WeightActions endStep() {
    WeightActions actions = tell(weight_calls::endStep);
    recorded_.flush();
    return actions;
  }
  void checkPromotion(std::string_view block, std::string_view input, std::string_view output) {
    tell(weight_calls::promotion, block, input, output);
  }

  Scope keepResident(std::span<const std::string> ids) { return scope(weight_calls::keep, ids); }
  Scope reserve(const std::string &model, ResidencyRank rank, int64_t bytes) {
    return scope(weight_calls::reserve, model, rank, bytes);
  }
  Scope asGuest(const std::string &model) { return scope(weight_calls::guest, model); }

private:
  /// A scope must not outlive this.
  template <typename Call, typename... Given> Scope scope(const Call &call, const Given &...given) {
    std::string id = "scope " + std::to_string(++scopes_);
    tell(call, id, given...);
    return Scope([this, id] { tell(weight_calls::release, id); });
  }

  Recorded<LoggedWeights> recorded_;
  int64_t scopes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H
