//===- ShardedStates.cpp - which rank updates which parameter -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ShardedStates.h"
#include "../OptimizerPlan.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/Session.h"
#include <algorithm>
#include <numeric>

namespace segue::inline runtime {

std::string_view name(Sharding sharding) {
  static constexpr std::string_view names[] = {"ddp", "zero1", "zero2", "zero3", "pipeline"};
  return names[uint8_t(sharding)];
}

Sharding parseSharding(const std::string &text) {
  std::string known;
  for (Sharding sharding : shardings) {
    if (name(sharding) == text)
      return sharding;
    known += (known.empty() ? "" : ", ") + std::string(name(sharding));
  }
  throw Error(ErrorCode::InvalidArgument, "there is no strategy \"" + text + "\" of several ranks; there are " + known);
}

ShardedStates::SlotsOfStates ShardedStates::findStates(std::span<const Module> modules, const ParameterTable &table) {
  SlotsOfStates slots;
  for (size_t m = 0; m < modules.size(); ++m) {
    OptimizerPlan plan = planOptimizer(modules[m], m, table);
    std::vector<size_t> &squares = squares_.emplace_back();
    for (const OptimizerValue &input : plan.gradNormInputs)
      if (input.feed == Feed::Gradient)
        squares.push_back(input.slot);
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
      const OptimizerValue &input = plan.optimizerInputs[i];
      if (input.feed != Feed::State)
        continue;
      states_.emplace(input.state, State{plan.optimizer->input(i).desc(), 0});
      slots.emplace_back(input.state, input.slot);
    }
  }
  return slots;
}

void ShardedStates::shareStates(const SlotsOfStates &slots) {
  for (const auto &[key, slot] : slots)
    states_.at(key).rank = rankOf_[slot];
}

ShardedStates::ShardedStates(std::span<const Module> modules, const ParameterTable &table, int ranks)
    : rankOf_(table.size(), 0) {
  SlotsOfStates slotsOfStates = findStates(modules, table);
  std::vector<uint64_t> bytes(table.size());
  for (const auto &[key, slot] : slotsOfStates)
    bytes[slot] += states_.at(key).desc.spanBytes();
  // The first of the slots that one command updates, as small ones are.
  std::vector<size_t> first(table.size());
  std::iota(first.begin(), first.end(), 0);
  for (size_t m = 0; m < modules.size(); ++m) {
    OptimizerPlan plan = planOptimizer(modules[m], m, table);
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i)
      if (const OptimizerValue &input = plan.optimizerInputs[i]; input.feed == Feed::Parameter)
        bytes[input.slot] += plan.optimizer->input(i).desc().spanBytes();
    if (!plan.optimizer || plan.isInBackward)
      continue;
    std::vector<size_t> together = modules[m].binary().outputsMadeTogether("optimizer");
    for (size_t i = 0; i < together.size(); ++i) {
      size_t one = first[plan.optimizerOutputs[i].slot], other = first[plan.optimizerOutputs[together[i]].slot];
      std::ranges::replace(first, std::max(one, other), std::min(one, other));
    }
  }
  for (size_t slot = 0; slot < table.size(); ++slot)
    if (first[slot] != slot)
      bytes[first[slot]] += bytes[slot];
  // The largest first, each to the rank with the least: no rank has more than 4/3 of what the best shares would give
  // the fullest one (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969).
  std::vector<size_t> order;
  for (size_t slot = 0; slot < table.size(); ++slot)
    if (first[slot] == slot)
      order.push_back(slot);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t slot) { return bytes[slot]; });
  std::vector<uint64_t> shares(size_t(ranks), 0);
  for (size_t slot : order) {
    auto least = std::ranges::min_element(shares);
    rankOf_[slot] = int(least - shares.begin());
    *least += bytes[slot];
  }
  for (size_t slot = 0; slot < table.size(); ++slot)
    rankOf_[slot] = rankOf_[first[slot]];
  shareStates(slotsOfStates);
}

ShardedStates::ShardedStates(std::span<const Module> modules, const ParameterTable &table, PipelineStages stages)
    : stages_(std::move(stages)), rankOf_(table.size()), readers_(table.size()) {
  for (size_t m = 0; m < modules.size(); ++m)
    for (const std::vector<Value> *values : {&modules[m].parameters(), &modules[m].frozen()})
      for (const Value &value : *values) {
        size_t slot = table.slotOf(m, value.name);
        int rank = stages_->rankOf(m);
        if (readers_[slot].empty() || table.owner(slot) == m)
          rankOf_[slot] = rank;
        if (!has(rank, slot))
          readers_[slot].push_back(rank);
      }
  shareStates(findStates(modules, table));
}

std::vector<GradientPart> ShardedStates::partsOf(int rank, std::span<const Module> modules,
                                                 const ParameterTable &table) const {
  std::vector<GradientPart> parts;
  for (size_t m = modules.size(); m-- > 0;)
    for (size_t p = 0; p < modules[m].parameters().size(); ++p) {
      const std::string &name = modules[m].parameters()[p].name;
      size_t slot = table.slotOf(m, name);
      int from = stages_->rankOf(m), to = rankOf_[slot];
      bool isGiven = from == rank;
      if (from == to || !(isGiven || to == rank))
        continue;
      if (std::shared_ptr<const TensorDesc> desc = gradientSentOf(modules[m], name))
        parts.push_back({slot, m - stages_->begin(from), p, std::move(desc), isGiven, isGiven ? to : from, Tensor()});
    }
  return parts;
}

/// Returns the binary with a program that makes what `isKept` chooses, and what single commands make with that.
static Binary sliceCommands(const Binary &binary, std::string_view name,
                            const std::function<bool(const Value &)> &isKept) {
  std::span<const Value> outputs = binary.program(name).outputs();
  if (std::ranges::all_of(outputs, isKept))
    return binary;
  std::vector<size_t> together = binary.outputsMadeTogether(name);
  std::vector<bool> keeps(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    if (isKept(outputs[i]))
      keeps[together[i]] = true;
  return binary.slice(name, [&](const Value &output) { return keeps[together[size_t(&output - outputs.data())]]; });
}

Module ShardedStates::shareOf(const Module &module, size_t index, const ParameterTable &table, int rank,
                              Sharding sharding) const {
  if (stages_ && !stages_->has(rank, index))
    return module.elsewhere();
  // In a pipeline what another module updates is left out: it would be fed zeros, as large as the parameter and its
  // states.
  auto isOwn = [&](std::string_view parameter) {
    size_t slot = table.slotOf(index, std::string(parameter));
    return stages_ ? table.owner(slot) == index : rankOf_[slot] == rank;
  };
  auto updatesOwn = [&](const Value &output) {
    return isOwn(output.role == Role::Parameter ? output.name : output.of);
  };
  Binary share = module.binary();
  if (module.find("optimizer"))
    share = sliceCommands(share, "optimizer", updatesOwn);
  const Program *norm = sharding >= Sharding::Gradients ? module.find("grad_norm") : nullptr;
  if (norm && !norm->outputs().empty() && norm->output(0).desc().shape.empty())
    throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\" was compiled before each gradient had a square of "
                                        "its own, which ranks that keep some gradients alone need; compile it again");
  if (norm)
    share = share.slice("grad_norm", [&](const Value &output) {
      return output.name.size() > gradSquaresName.size() && isOwn(output.name.substr(gradSquaresName.size() + 1));
    });
  return Module(module.device(), std::move(share), module.name());
}

} // namespace segue::inline runtime
