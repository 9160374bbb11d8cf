//===- DeferredUpdates.cpp - updates that wait for the next forward -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Modules that are compiled with in-forward update each parameter right before the next
// forward reads it: what the update moves then travels beside the products of the blocks
// before, and all gradients were known when they were clipped. Whoever reads parameters
// or states between two steps has the updates made first, by the programs of the optimizer.
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

Tensor &SessionState::gradientFor(size_t slot) {
  return deferred ? deferred->gradients[slot] : tape.gradient(GradientTape::ValueId(slot));
}

void SessionState::deferUpdates(const LearningRates &rates, double clip) {
  if (std::ranges::none_of(plans, &OptimizerPlan::isInForward))
    return;
  Waiting next{std::vector<Tensor>(table.size()), rates, clip};
  for (const OptimizerPlan &plan : plans)
    for (const OptimizerValue &input : plan.optimizerInputs)
      if (plan.isInForward && input.feed == Feed::Gradient)
        next.gradients[input.slot] = std::move(tape.gradient(GradientTape::ValueId(input.slot)));
  deferred = std::move(next);
}

std::vector<Tensor> SessionState::deferredInputs(size_t m) {
  const OptimizerPlan &plan = plans[m];
  std::vector<Tensor> all = deferredTensors(plan), inputs;
  for (size_t i = 0; i < all.size(); ++i)
    if (plan.optimizer->input(i).role != Role::Parameter)
      inputs.push_back(std::move(all[i]));
  return inputs;
}

std::vector<Tensor> SessionState::deferredTensors(const OptimizerPlan &plan) {
  std::vector<Tensor> tensors = optimizerTensors(*plan.optimizer, plan.optimizerInputs, deferred->rates, deferred->clip,
                                                 GivesGradients::None);
  // They are given away once all have arrived: a failure until here leaves the update as it waits.
  for (const OptimizerValue &input : plan.optimizerInputs)
    if (input.feed == Feed::Gradient)
      deferred->gradients[input.slot] = Tensor();
  return tensors;
}

void SessionState::makeDeferred() {
  if (!deferred)
    return;
  EventSink::PhasesApart apart(options.events);
  bool isWriting = false;
  try {
    if (services)
      services->beginEvaluation();
    for (const OptimizerPlan &plan : plans) {
      if (!plan.isInForward || !plan.ownsParameters)
        continue;
      std::vector<Tensor> tensors = deferredTensors(plan);
      isWriting = true;
      runOptimizer(plan, std::move(tensors));
    }
    if (services)
      services->endEvaluation();
  } catch (const std::exception &error) {
    if (services)
      services->abortEvaluation();
    if (!isWriting)
      throw;
    deferred.reset();
    tear(step, std::string("its optimizer failed midway (") + error.what() + ")");
  }
  deferred.reset();
  plannedFor.clear(); // a plan begins again, with a step that has no update to make
}

void Session::finishUpdates() {
  state_->makeDeferred();
  if (!state_->device->hasBytes())
    return;
  state_->settle();
  state_->requireWhole();
}

} // namespace segue::inline runtime
