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
  static constexpr std::string_view names[] = {"ddp", "zero1", "zero2", "zero3"};
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

ShardedStates::ShardedStates(std::span<const Module> modules, const ParameterTable &table, int ranks)
    : rankOf_(table.size(), 0) {
  std::vector<uint64_t> bytes(table.size());
  std::vector<std::pair<std::string, size_t>> slotOfState;
  // The first of the slots that one command updates, as small ones are.
  std::vector<size_t> first(table.size());
  std::iota(first.begin(), first.end(), 0);
  for (size_t m = 0; m < modules.size(); ++m) {
    OptimizerPlan plan = planOptimizer(modules[m], m, table);
    std::vector<size_t> &squares = squares_.emplace_back();
    for (const OptimizerValue &input : plan.gradNormInputs)
      if (input.feed == Feed::Gradient)
        squares.push_back(input.slot);
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
      const OptimizerValue &input = plan.optimizerInputs[i];
      if (input.feed != Feed::State && input.feed != Feed::Parameter)
        continue;
      const TensorDesc &desc = plan.optimizer->input(i).desc();
      bytes[input.slot] += desc.spanBytes();
      if (input.feed != Feed::State)
        continue;
      states_.emplace(input.state, State{desc, 0});
      slotOfState.emplace_back(input.state, input.slot);
    }
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
  for (const auto &[key, slot] : slotOfState)
    states_.at(key).rank = rankOf_[slot];
}

Module ShardedStates::shareOf(const Module &module, size_t index, const ParameterTable &table, int rank,
                              Sharding sharding) const {
  auto isOwn = [&](std::string_view parameter) { return rankOf_[table.slotOf(index, std::string(parameter))] == rank; };
  Binary share = module.binary();
  if (module.find("optimizer"))
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
