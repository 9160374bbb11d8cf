//===- ShardedStates.cpp - which rank updates which parameter -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ShardedStates.h"
#include "OptimizerPlan.h"
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
    : stages_(std::move(stages)), rankOf_(table.size(), -1) {
  auto share = [&](size_t m, const Value &value) {
    size_t slot = table.slotOf(m, value.name);
    int rank = stages_->rankOf(m);
    if (rankOf_[slot] != -1 && rankOf_[slot] != rank)
      throw Error(ErrorCode::Unsupported,
                  "parameter \"" + table.infos()[slot].key + "\" is tied between modules of rank " +
                      std::to_string(rankOf_[slot]) + " and of rank " + std::to_string(rank) + ", \"" + modules[m].name() +
                      "\" among them, and a parameter lives in one stage of a pipeline: give these modules one stage, do "
                      "not tie them, or train with zero1");
    rankOf_[slot] = rank;
  };
  for (size_t m = 0; m < modules.size(); ++m) {
    for (const Value &value : modules[m].parameters())
      share(m, value);
    for (const Value &value : modules[m].frozen())
      share(m, value);
  }
  shareStates(findStates(modules, table));
}

Module ShardedStates::shareOf(const Module &module, size_t index, const ParameterTable &table, int rank,
                              Sharding sharding) const {
  if (stages_ && !stages_->has(rank, index))
    return module.elsewhere();
  auto isOwn = [&](std::string_view parameter) { return rankOf_[table.slotOf(index, std::string(parameter))] == rank; };
  Binary share = module.binary();
  if (module.find("optimizer") && !stages_)
    share = share.slice("optimizer", [&](const Value &output) {
      return isOwn(output.role == Role::Parameter ? output.name : output.of);
    });
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
