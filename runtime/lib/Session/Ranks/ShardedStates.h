//===- ShardedStates.h - which rank updates which parameter -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Where optimizer states are sharded, each trained parameter has one rank that has its
// states and makes its updates: the optimizers of this rank's modules are sliced to those
// of its own parameters. Where gradients are, too, it alone has the sum of the gradient, and
// the programs of the norm are sliced in the same way. In a pipeline a rank has all of this of
// the modules of its stage; of a parameter that modules of several stages share, the rank of the
// first that trains it, and the others have its value. All ranks come to the same shares, as they
// train the same.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_SHARDEDSTATES_H
#define SEGUE_RUNTIME_LIB_SESSION_SHARDEDSTATES_H

#include "../ParameterTable.h"
#include "PipelineStages.h"
#include "segue/runtime/Session/Session.h"
#include <algorithm>
#include <map>

namespace segue::inline runtime {

class ShardedStates {
public:
  /// Shares the parameters out over `ranks`, by the bytes of their states and of themselves.
  ShardedStates(std::span<const Module> modules, const ParameterTable &table, int ranks);
  /// Gives each rank the parameters, frozen ones too, of its stage.
  ShardedStates(std::span<const Module> modules, const ParameterTable &table, PipelineStages stages);

  /// Returns the rank that updates a trained parameter.
  int rankOf(size_t slot) const { return rankOf_[slot]; }
  /// Returns the ranks whose stages read a parameter, in their order; of a pipeline.
  std::span<const int> readers(size_t slot) const { return readers_[slot]; }
  /// Returns true if a rank has the parameter, where not every rank has all.
  bool has(int rank, size_t slot) const {
    return stages_ ? std::ranges::count(readers_[slot], rank) > 0 : rankOf_[slot] == rank;
  }
  /// Returns what a rank of a pipeline and others send each other of gradients of parameters, for a batch that these
  /// modules run, in the order in which one rank adds it up.
  std::vector<GradientPart> partsOf(int rank, std::span<const Module> modules, const ParameterTable &table) const;
  /// Returns the stages of a pipeline; null where every rank has all modules.
  const PipelineStages *stages() const { return stages_ ? &*stages_ : nullptr; }
  /// Returns a module of these whose optimizer updates the parameters of `rank` alone, and from Sharding::Gradients on
  /// whose norm is that of their gradients.
  Module shareOf(const Module &module, size_t index, const ParameterTable &table, int rank, Sharding sharding) const;
  /// Returns for each module the slots of the gradients whose squares its norm adds up, in this order.
  const std::vector<std::vector<size_t>> &squares() const { return squares_; }

  /// A State has its description and the rank that has it.
  struct State {
    TensorDesc desc;
    int rank;
  };
  /// Returns the states of all ranks by their keys in the session.
  const std::map<std::string, State> &states() const { return states_; }

private:
  /// The states of all modules, by whose parameters they are of; no rank has them yet.
  using SlotsOfStates = std::vector<std::pair<std::string, size_t>>;
  SlotsOfStates findStates(std::span<const Module> modules, const ParameterTable &table);
  void shareStates(const SlotsOfStates &slots);

  std::optional<PipelineStages> stages_;
  std::vector<int> rankOf_;
  std::vector<std::vector<int>> readers_;
  std::vector<std::vector<size_t>> squares_;
  std::map<std::string, State> states_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_SHARDEDSTATES_H
