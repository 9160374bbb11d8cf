//===- OptimizerPlan.h - what feeds a module's optimizer --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `@optimizer` and `@grad_norm` of a module name parameters, gradients, states
// and hypers; the plan says, decided once, which tensor of the session each of
// them is. A tied parameter belongs to one module; in the others it is fed
// zeros that nobody reads, so that it is counted and updated once.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_OPTIMIZERPLAN_H
#define SEGUE_RUNTIME_LIB_SESSION_OPTIMIZERPLAN_H

#include "ParameterTable.h"

namespace segue::inline runtime {

/// The kind of a value. Other is what a backward that updates parameters reads for its own work.
enum class Feed : int8_t { Parameter, Gradient, State, Scratch, LearningRate, Step, Clip, Other };

/// One input or output of a program of the optimizer phase.
struct OptimizerValue {
  Feed feed = Feed::Scratch;
  /// The slot of a Parameter or Gradient; the group of a LearningRate.
  size_t slot = 0;
  /// The key in the session of a State.
  std::string state;
};

struct OptimizerPlan {
  /// The programs; null if the module has none. `optimizer` is what updates parameters: the
  /// program of that name, or backward where that does so.
  const Program *optimizer = nullptr, *gradNorm = nullptr;
  /// True if `optimizer` is backward. There is no `gradNorm` then: backward gives squares of gradients itself.
  bool isInBackward = false;
  /// True if updates wait for the next forward, which makes them (Module::forwardUpdating); "optimizer" is there, too.
  bool isInForward = false;
  /// True if the module trains a parameter that no earlier one trains.
  bool ownsParameters = false;
  std::vector<OptimizerValue> optimizerInputs, optimizerOutputs, gradNormInputs;
};

/// Returns the plan of `module`. Throws FileCorrupt where the programs name a parameter
/// that forward does not have, Unsupported for an unknown hyper, and for a parameter that
/// backward updates and another module trains, too.
OptimizerPlan planOptimizer(const Module &module, size_t index, const ParameterTable &table);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_OPTIMIZERPLAN_H
