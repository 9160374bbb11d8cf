//===- OptimizerPlan.cpp - what feeds a module's optimizer ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "OptimizerPlan.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <charconv>

namespace segue::inline runtime {

/// The compiler takes no more, either.
static constexpr size_t kMostRateGroups = 1024;

/// Returns the key of a state: "m.weight" of "weight" becomes "m.<key>".
static std::string stateKey(const Value &value, const std::string &key) {
  std::string_view name = value.name;
  if (name.ends_with(value.of))
    return std::string(name.substr(0, name.size() - value.of.size())) + key;
  return value.name + "." + key;
}

/// "lr" is the learning rate of group 0, and "lr.2" that of group 2; "step" and "step.2" are their steps.
static OptimizerValue hyperValue(const Module &module, const Value &value) {
  if (value.name == "clip")
    return {Feed::Clip, 0, {}};
  std::string_view name = value.name;
  static constexpr std::pair<std::string_view, Feed> byGroup[] = {{"lr", Feed::LearningRate}, {"step", Feed::Step}};
  for (auto [prefix, feed] : byGroup) {
    if (name == prefix)
      return {feed, 0, {}};
    size_t group = 0;
    if (name.starts_with(prefix) && name[prefix.size()] == '.')
      if (auto [end, code] = std::from_chars(name.data() + prefix.size() + 1, name.data() + name.size(), group);
          code == std::errc() && end == name.data() + name.size() && group < kMostRateGroups)
        return {feed, group, {}};
  }
  throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\": the optimizer wants \"" + value.name +
                                          "\", but a session gives lr, step and clip only");
}

static OptimizerValue resolve(const Module &module, size_t index, const ParameterTable &table, const Value &value) {
  if (value.role == Role::Hyper)
    return hyperValue(module, value);
  const std::string &parameter = value.role == Role::Parameter ? value.name : value.of;
  bool known = false;
  for (const Value &trained : module.parameters())
    known |= trained.name == parameter;
  if (!known)
    throw Error(ErrorCode::FileCorrupt, "module \"" + module.name() + "\": the optimizer names the parameter \"" +
                                            parameter + "\", which forward does not have; compile the module again");
  size_t slot = table.slotOf(index, parameter);
  if (table.owner(slot) != index)
    return {Feed::Scratch, slot, {}};
  switch (value.role) {
  case Role::Parameter:
    return {Feed::Parameter, slot, {}};
  case Role::Gradient:
    return {Feed::Gradient, slot, {}};
  case Role::State:
    return {Feed::State, slot, stateKey(value, table.infos()[slot].key)};
  default:
    throw Error(ErrorCode::FileCorrupt, "module \"" + module.name() + "\": the optimizer has a value \"" + value.name +
                                            "\" of role " + std::string(name(value.role)) +
                                            "; compile the module again");
  }
}

/// One input or output of a backward that updates parameters.
static OptimizerValue resolveInBackward(const Module &module, size_t index, const ParameterTable &table,
                                        const Value &value) {
  bool isForwards = value.role == Role::Hyper && std::ranges::any_of(module.hypers(), [&](const Value &hyper) {
                      return hyper.name == value.name;
                    });
  if (isForwards || (value.role != Role::Parameter && value.role != Role::State && value.role != Role::Hyper))
    return {Feed::Other, 0, {}};
  OptimizerValue resolved = resolve(module, index, table, value);
  bool isTied = value.role != Role::Hyper && table.infos()[resolved.slot].members.size() > 1;
  if (isTied)
    throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\" updates \"" +
                                            table.infos()[resolved.slot].key +
                                            "\" in backward, but other modules have gradients of it, too; compile it "
                                            "without in-backward");
  return resolved;
}

OptimizerPlan planOptimizer(const Module &module, size_t index, const ParameterTable &table) {
  OptimizerPlan plan;
  if (module.isElsewhere()) // its rank makes its updates
    return plan;
  plan.isInBackward = module.updatesInBackward();
  plan.optimizer = module.find(plan.isInBackward ? "backward" : "optimizer");
  plan.gradNorm = plan.isInBackward ? nullptr : module.find("grad_norm");
  plan.isInForward = module.updatesInForward();
  auto resolveValue = plan.isInBackward ? resolveInBackward : resolve;
  for (const Value &value : module.parameters())
    plan.ownsParameters |= table.owner(table.slotOf(index, value.name)) == index;
  if (plan.optimizer) {
    for (const Value &value : plan.optimizer->inputs())
      plan.optimizerInputs.push_back(resolveValue(module, index, table, value));
    for (const Value &value : plan.optimizer->outputs()) // each is an input, too: verified when the file was loaded
      plan.optimizerOutputs.push_back(resolveValue(module, index, table, value));
  }
  for (const OptimizerValue &input : plan.optimizerInputs)
    if (plan.isInForward && input.feed == Feed::Parameter && table.infos()[input.slot].members.size() > 1)
      throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\" updates \"" + table.infos()[input.slot].key +
                                              "\" in its forward, but other modules read it, too; compile it without "
                                              "in-forward");
  if (plan.gradNorm)
    for (const Value &value : plan.gradNorm->inputs())
      plan.gradNormInputs.push_back(resolveValue(module, index, table, value));
  return plan;
}

} // namespace segue::inline runtime
