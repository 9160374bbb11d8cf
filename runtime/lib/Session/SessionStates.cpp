//===- SessionStates.cpp - states of optimizers, and where they live ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On the device, or on the host where a plan or State Stagehand brings them.
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

void SessionState::allocateStates(std::span<const std::pair<size_t, size_t>> inputs) {
  for (auto [m, i] : inputs) {
    const OptimizerPlan &plan = plans[m];
    TensorDesc desc = plan.optimizer->input(i).desc();
    auto [entry, isNew] = optimizerState.try_emplace(plan.optimizerInputs[i].state);
    if (!isNew) // two names of state may come to one key
      throw Error(ErrorCode::FileCorrupt, "module \"" + modules[m].name() + "\": two optimizer states are called \"" +
                                              entry->first + "\"; give one of their parameters another name");
    Tensor &state = entry->second;
    bool comes = streamed->comesByBlock(*plan.optimizer, i);
    if (!comes) {
      try {
        state = zerosNamed(device, desc, plan.optimizerInputs[i].state, name(Role::State));
        continue;
      } catch (const OutOfMemory &error) {
        comes = letStatesLeave() && streamed->comesByBlock(*plan.optimizer, i);
        if (!comes)
          refuseTooSmall(error);
        if (!comes)
          throw;
      }
    }
    state = stateHome(std::move(desc), entry->first);
  }
}

Tensor SessionState::stateHome(TensorDesc desc, const std::string &key) {
  bool isGranted = !services || services->reserveHome(desc.spanBytes());
  OwnerId owner = device->memory().intern({.value = key, .role = std::string(name(Role::State))});
  Tensor home = emptyHome(device, std::move(desc), isGranted, owner);
  device->transfer().fillZero(home);
  return home;
}

/// Returns the gradients of parameters that every program of the optimizer reads by block.
std::vector<GradientOutput> SessionState::gradientsByBlock(const std::vector<Module> &modules) const {
  std::set<size_t> slots, elsewhere;
  for (const OptimizerPlan &plan : plans)
    for (auto [program, inputs] : {std::pair(plan.optimizer, &plan.optimizerInputs),
                                   std::pair(plan.gradNorm, &plan.gradNormInputs)})
      for (size_t i = 0; program && i < inputs->size(); ++i)
        if ((*inputs)[i].feed == Feed::Gradient)
          (streamed->comesByBlock(*program, i) ? slots : elsewhere).insert((*inputs)[i].slot);
  std::vector<GradientOutput> gradients;
  for (size_t m = 0; m < modules.size(); ++m) {
    const Program *backward = modules[m].find("backward");
    std::set<std::string_view> parameters;
    for (const Value &parameter : modules[m].parameters())
      parameters.insert(parameter.name);
    for (size_t i = 0; backward && i < backward->outputs().size(); ++i) {
      const Value &output = backward->outputs()[i];
      if (output.role != Role::Gradient || !parameters.contains(output.of))
        continue;
      size_t slot = table.slotOf(m, output.of);
      if (slots.contains(slot) && !elsewhere.contains(slot))
        gradients.push_back({*backward, uint32_t(i), table.infos()[slot].key});
    }
  }
  return gradients;
}

void SessionState::holdGradients() {
  services->letStatesLeave(gradientsByBlock(modules));
  for (const auto &other : otherSizes)
    services->letStatesLeave(gradientsByBlock(other->modules));
}

bool SessionState::letStatesLeave() {
  if (!services || services->statesLeave() != StatesLeave::IfNeeded)
    return false;
  services->letStatesLeave({});
  residency = services->residency();
  streamed->bringStates(*residency, modules, plans);
  holdGradients();
  for (const OptimizerPlan &plan : plans)
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
      if (plan.optimizerInputs[i].feed != Feed::State || !streamed->comesByBlock(*plan.optimizer, i))
        continue;
      auto entry = optimizerState.find(plan.optimizerInputs[i].state);
      if (entry == optimizerState.end() || !entry->second)
        continue;
      Tensor home = stateHome(entry->second.desc(), entry->first);
      copyInto(entry->second, home);
      wait(home);
      entry->second = std::move(home);
    }
  dropCaches(*device);
  statesLeaveUntold = true;
  return true;
}

void SessionState::tellStatesLeave() {
  if (std::exchange(statesLeaveUntold, false) && options.log)
    options.log("optimizer states and gradients do not fit on the device and leave it between their uses");
}

} // namespace segue::inline runtime
