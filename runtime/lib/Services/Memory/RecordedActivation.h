//===- RecordedActivation.h - a policy and its log --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Activation Stagehand's calls, each with its line in the log where there is
// one. See ActivationStagehand.h for what they mean.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_RECORDEDACTIVATION_H
#define SEGUE_LIB_SERVICES_MEMORY_RECORDEDACTIVATION_H

#include "EventLog.h"
#include "segue/runtime/Services/ActivationStagehand.h"
#include <memory>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

class RecordedActivation {
public:
  /// `log` may be null.
  RecordedActivation(ActivationStagehandConfig config, std::unique_ptr<EventLog> log)
      : policy_(std::move(config)), log_(std::move(log)) {}

  const ActivationStagehandConfig &config() const { return policy_.config(); }
  const HostBufferBook &hostBuffers() const { return policy_.hostBuffers(); }
  Json telemetry() const { return policy_.telemetry(); }
  void addStall(double milliseconds) { policy_.addStall(milliseconds); }

  void stepBegin(int64_t step);
  void setHints(const ActivationHints &hints);
  SaveDecision save(const SaveEvent &event);
  TransferDecision transferDone(const std::string &id, int64_t usedBytes);
  TransferDecision transferFailed(const std::string &id, int64_t usedBytes);
  bool checksumFailed(const std::string &id);
  std::vector<std::string> backwardBegin(const std::vector<std::string> &order, int64_t usedBytes);
  NeedDecision need(const std::string &id, int64_t usedBytes);
  std::vector<std::string> release(const std::string &id, int64_t usedBytes);
  std::vector<std::string> dropRestored(int64_t bytes);
  void abortStep();
  std::vector<HostBufferBook::Growth> stepEnd();
  void poolGrown(uint32_t poolClass, int64_t count);
  void growthFailed(uint32_t poolClass, int64_t count);

private:
  ActivationStagehand policy_;
  std::unique_ptr<EventLog> log_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_RECORDEDACTIVATION_H
