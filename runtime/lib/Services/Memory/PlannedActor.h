//===- PlannedActor.h - saved tensors leave by a plan -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `mode: planned` of Activation Stagehand as an actor: PlannedActivations in the
// place of the watermarks. Without a plan nothing leaves.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_PLANNEDACTOR_H
#define SEGUE_LIB_SERVICES_MEMORY_PLANNEDACTOR_H

#include "ServiceActor.h"
#include "segue/runtime/Services/PlannedActivations.h"
#include <optional>

namespace segue::inline runtime {

class PlannedActor final : public ServiceActor {
public:
  explicit PlannedActor(ServiceContext &context) : context_(context) {}

  /// From the next step on.
  void follow(const StepProfile &profile, const ResidencyPlan &plan) {
    activations_.emplace(context_.device, profile, plan);
  }

  void onPhase(Phase phase) override {
    if (activations_)
      activations_->onPhase(phase);
  }
  void onBlockBegin(const Program &program, std::string_view block) override {
    if (activations_)
      activations_->onBlockBegin(program, block);
  }
  void onBlockEnd(const Program &program) override {
    if (activations_)
      activations_->onBlockEnd(program);
  }
  void onSave(const Program &program, uint32_t output, Tensor &saved) override {
    if (activations_)
      activations_->onSave(program, output, saved);
  }
  void onRestore(const Program &program, uint32_t input, Tensor &saved) override {
    if (activations_)
      activations_->onRestore(program, input, saved);
  }
  void beginStep(int64_t) override { onPhase(Phase::StepBegin); }
  void abortStep() override {
    if (activations_)
      activations_->forget();
  }

private:
  ServiceContext &context_;
  std::optional<PlannedActivations> activations_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_PLANNEDACTOR_H
