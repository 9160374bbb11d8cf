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
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Services/PlannedActivations.h"

namespace segue::inline runtime {

class PlannedActor final : public ForwardEvents<ServiceActor> {
public:
  explicit PlannedActor(ServiceContext &context) : activations_(context.device) { target = &activations_; }

  PlannedActivations &activations() { return activations_; }

  void beginStep(int64_t) override { onPhase(Phase::StepBegin); }
  void abortStep() override { activations_.forget(); }

private:
  PlannedActivations activations_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_PLANNEDACTOR_H
