//===- SessionTrained.cpp - other parameters are trained from here on -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Programs change, values do not: each parameter keeps its memory, and so does each
// state, whether a program reads it now or not. Where services move them, one that
// comes by block now, and did not before, gets a home on the host, and the other way round.
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

void Session::setTrained(std::vector<SessionModule> given, std::vector<int64_t> stepLags) {
  SessionState &s = *state_;
  s.requireWhole();
  if (s.precision || s.options.residency || s.options.weights || (s.services && s.services->weights()))
    throw Error(ErrorCode::Unsupported,
                (s.precision ? std::string("Selective Precision has") : std::string("a ring of weights has")) +
                    " blocks with one set of trained parameters; with it, what is trained is settled when the session "
                    "is made. A budget with a plan or watermarks moves whatever is trained");
  if (s.ranks && s.ranks->shards())
    throw Error(ErrorCode::Unsupported, "ranks have states of some parameters alone, which were shared out when the session "
                                        "was made: what is trained stays as it is. Train with all states on every rank (ddp) to "
                                        "freeze and thaw in mid-run");
  clearGradients();
  s.flush();

  std::vector<Module> modules = makeModules(s.device, std::move(given));
  if (!std::ranges::equal(modules, s.modules, [](const Module &a, const Module &b) { return a.name() == b.name(); }))
    throw Error(ErrorCode::InvalidArgument, "the modules given are not those of the session, by their names and order");
  for (const Module &module : modules)
    s.checkHypers(module);
  s.checkPhases(modules);
  ParameterTable table(modules, s.options.tied);
  std::vector<Tensor> values;
  for (const ParameterInfo &info : table.infos()) {
    values.push_back(s.values[s.table.require(info.key)]);
    if (values.back())
      checkSame("parameter \"" + info.key + "\"", values.back(), info.desc);
  }
  if (table.size() != s.table.size())
    throw Error(ErrorCode::InvalidArgument, "the modules given have " + std::to_string(table.size()) +
                                                " parameters, and those of the session " +
                                                std::to_string(s.table.size()));
  std::vector<OptimizerPlan> plans;
  for (size_t m = 0; m < modules.size(); ++m)
    plans.push_back(planOptimizer(modules[m], m, table));
  bool isPlanned = !s.services || s.services->wantsPlan();
  // A value that comes by block lives in a home on the host between its uses; another one lives on the device.
  StreamedParameters next(nullptr, s.residency, isPlanned, modules, plans, table, values);
  auto isAway = [&](const Tensor &tensor) { return tensor.desc().layout.space != Space::DeviceDram; };
  auto moved = [](const Tensor &from, Tensor to) {
    copyInto(from, to);
    wait(to);
    return to;
  };
  for (size_t slot = 0; next.arePlanned() && slot < values.size(); ++slot) {
    const ParameterInfo &info = table.infos()[slot];
    Tensor &value = values[slot];
    if (value && next.has(slot) != isAway(value))
      value = moved(value, next.has(slot) ? next.allocate(s.device, slot)
                                          : emptyNamed(s.device, info.desc, info.key, name(Role::Parameter)));
  }
  TensorMap states = s.optimizerState;
  for (const OptimizerPlan &plan : plans)
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
      if (plan.optimizerInputs[i].feed != Feed::State)
        continue;
      const std::string &key = plan.optimizerInputs[i].state;
      const TensorDesc &desc = plan.optimizer->input(i).desc();
      Tensor &state = states[key];
      if (state)
        checkSame("optimizer state \"" + key + "\"", state, desc);
      bool comes = next.comesByBlock(*plan.optimizer, i);
      if (!state)
        state = comes ? s.stateHome(desc, key) : zerosNamed(s.device, desc, key, name(Role::State));
      else if (s.residency && comes != isAway(state))
        state = moved(state, comes ? s.stateHome(desc, key) : zerosNamed(s.device, desc, key, name(Role::State)));
    }
  if (s.sealer) // what is trained from now on may be sealed, and is written over
    s.sealer->takeRoom(sealRoomOf(table, values, states));

  s.modules = std::move(modules);
  if (s.ranks)
    s.ranks->programsChanged();
  s.ports.clear();
  for (const Module &module : s.modules)
    s.ports.push_back({module.name(), module.inputs(), module.outputs()});
  s.otherSizes.clear();
  s.evaluationSizes.clear();
  s.sizes = nullptr;
  s.plannedFor.clear();
  s.certifiedFor.clear();
  s.known.clear();
  s.table = std::move(table);
  s.plans = std::move(plans);
  s.values = std::move(values);
  s.optimizerState = std::move(states);
  s.tape = GradientTape(s.table.size());
  s.stepLags = std::move(stepLags);
  s.streamed.emplace(nullptr, s.residency, isPlanned, s.modules, s.plans, s.table, s.values);
  if (!s.services)
    return;
  s.services->beginAgain();
  if (s.residency)
    s.residency->forgetOwners();
  if (s.services->statesLeave() == StatesLeave::Always)
    s.holdGradients();
}

} // namespace segue::inline runtime
