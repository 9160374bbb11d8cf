//===- SessionTrained.cpp - other parameters are trained from here on -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Programs change, values do not: each parameter keeps its memory, and so does each
// state, whether a program reads it now or not.
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

void Session::setTrained(std::vector<SessionModule> given, std::vector<int64_t> stepLags) {
  State &s = *state_;
  s.requireWhole();
  if (s.services || s.options.residency || s.options.weights)
    throw Error(ErrorCode::Unsupported, "memory services plan for one set of trained parameters; with them, what is "
                                        "trained is settled when the session is made");
  clearGradients();
  s.flush();

  std::vector<Module> modules = makeModules(s.device, std::move(given));
  if (!std::ranges::equal(modules, s.modules, {}, &Module::name, &Module::name))
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
  TensorMap fresh;
  for (size_t m = 0; m < modules.size(); ++m) {
    const OptimizerPlan &plan = plans.emplace_back(planOptimizer(modules[m], m, table));
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
      if (plan.optimizerInputs[i].feed != Feed::State)
        continue;
      const std::string &key = plan.optimizerInputs[i].state;
      const TensorDesc &desc = plan.optimizer->input(i).desc();
      if (auto known = s.optimizerState.find(key); known != s.optimizerState.end())
        checkSame("optimizer state \"" + key + "\"", known->second, desc);
      else
        fresh[key] = zerosNamed(s.device, desc, key, name(Role::State));
    }
  }

  s.modules = std::move(modules);
  s.ports.clear();
  for (const Module &module : s.modules)
    s.ports.push_back({module.name(), module.inputs(), module.outputs()});
  s.otherSizes.clear();
  s.evaluationSizes.clear();
  s.sizes = nullptr;
  s.table = std::move(table);
  s.plans = std::move(plans);
  s.values = std::move(values);
  s.optimizerState.merge(fresh);
  s.tape = GradientTape(s.table.size());
  s.stepLags = std::move(stepLags);
  s.streamed.emplace(nullptr, nullptr, /*hasPlan=*/true, s.modules, s.plans, s.table, s.values);
}

} // namespace segue::inline runtime
