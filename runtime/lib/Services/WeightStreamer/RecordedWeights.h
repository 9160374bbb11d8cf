//===- RecordedWeights.h - a policy and its log -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand's calls, each with its line in the log where there is one.
// See WeightStagehand.h for what they mean, and docs/guides/replay-weight.md for
// the lines.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H
#define SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H

#include "../Memory/EventLog.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightStagehand.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

class RecordedWeights {
public:
  using Scope = WeightStagehand::Scope;

  /// `log` may be null; it is told of a policy that begins anew.
  RecordedWeights(WeightStagehandConfig config, const WeightLimits &limits, std::shared_ptr<EventLog> log);
  RecordedWeights(const RecordedWeights &) = delete;

  const WeightStagehand &policy() const { return policy_; }
  BlockState state(std::string_view id) const { return policy_.state(id); }
  int64_t useCount(std::string_view id) const { return policy_.useCount(id); }
  std::string describe() const { return policy_.describe(); }
  Json telemetry() const { return policy_.telemetry(); }
  std::string logLine() const { return policy_.logLine(); }

  void registerBlock(const WeightBlock &block);
  void setOrder(StepPhase phase, std::span<const std::string> ids);
  void setRing(const WeightRing &ring);
  void measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes = {});
  void restate(std::string_view id, int64_t bytes, bool staged);

  void beginStep(int64_t step, bool isTraining = true);
  void enterPhase(StepPhase phase);
  void setHints(const WeightHints &hints);
  /// `allocatedBytes` of the device, for measure().
  BeforeBlock beforeBlock(std::string_view id, int64_t allocatedBytes);
  WeightActions afterBlock(std::string_view id, int64_t allocatedBytes);
  void observe(std::string_view id, const BlockOutput &output);
  void changed(std::string_view id, int64_t bytes);
  WeightActions loaded(std::string_view id, const LoadTimes &times);
  LoadFailure loadFailed(std::string_view id);
  WeightActions loadDenied(std::string_view id);
  WeightActions evicted(std::string_view id);
  WeightActions saveBackFailed(std::string_view id);
  void savedBack(std::string_view id);
  WeightActions drop(std::string_view id);
  WeightActions makeRoom(int64_t bytes);
  void addStall(double milliseconds);
  void inTime(std::string_view id);
  std::string addPoolWait(std::string_view id, double milliseconds);
  void abortStep();
  void abandonUses();
  WeightActions endStep();

  void checkPromotion(std::string_view block, std::string_view input, std::string_view output);
  Scope keepResident(std::span<const std::string> ids);
  Scope reserve(const std::string &model, ResidencyRank rank, int64_t bytes);
  Scope asGuest(const std::string &model);

private:
  template <typename Call, typename Event> auto tell(Call call, Event line);
  void add(Json event, Json answer);
  void addError(Json event, const Error &error);
  Scope note(Scope scope, Json event);

  WeightStagehand policy_;
  std::shared_ptr<EventLog> log_;
  int64_t scopes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_WEIGHTSTREAMER_RECORDEDWEIGHTS_H
