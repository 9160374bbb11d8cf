//===- GradientTape.h - forwards, played back in reverse --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// GradientTape is what a Session and a Stitcher have in common: a list of
// forwards with their tokens, and values by number, whose gradients are summed
// wherever two readers meet. The owner of the tape says which number a value
// has when it records: a session by its wiring, a stitcher by the memory that
// the value lies in.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_GRADIENTTAPE_H
#define SEGUE_RUNTIME_LIB_SESSION_GRADIENTTAPE_H

#include "segue/runtime/Program/Module.h"
#include <utility>

namespace segue::inline runtime {

class GradientTape {
public:
  using ValueId = uint32_t;

  /// One forward. The module outlives the step.
  struct Step {
    const Module *module = nullptr;
    Token token;
    /// Each lists values by position in Module::parameters(), inputs() and outputs().
    std::vector<ValueId> parameters, inputs, outputs;
    bool played = false;
    /// The inputs, by name, that a backward which updates parameters is given besides; and its
    /// results besides gradients, by position.
    TensorMap given;
    std::vector<Tensor> updated;
  };

  /// The step and the output that a value comes from.
  struct Producer {
    uint32_t step = UINT32_MAX, output = 0;
  };

  /// Makes a tape whose values 0 to `kept` - 1 are parameters: their gradients stay until drop().
  explicit GradientTape(size_t kept = 0) : kept_(kept), gradients_(kept), producers_(kept) {}

  ValueId newValue();
  void record(Step step);
  const std::vector<Step> &steps() const { return steps_; }
  /// Takes the results besides gradients of a step's backward.
  std::vector<Tensor> takeUpdated(size_t step) { return std::exchange(steps_[step].updated, {}); }
  /// Returns the forward that made a value, or null.
  const Step *producer(ValueId value) const;

  /// Adds to the sum of a value; `events` may be null.
  void add(ValueId value, Tensor gradient, EventSink *events = nullptr);
  /// Returns the sum so far; null if there is none.
  Tensor &gradient(ValueId value) { return gradients_[value]; }
  size_t valueCount() const { return gradients_.size(); }

  enum class Play {
    /// Plays the steps one of whose outputs has a gradient.
    Reached,
    /// Plays all steps; an output without gradient counts as zeros.
    All
  };
  /// Runs the backwards of steps that were not played, the last one first, and
  /// adds what they give to the sums of their parameters and inputs; takes the
  /// gradients of their outputs. Throws what Module::backward throws.
  void play(Play which, EventSink *events);

  /// The steps of a batch, and the values that are not kept, while another batch has the tape.
  struct Recording {
    std::vector<Step> steps;
    std::vector<Tensor> gradients;
    std::vector<Producer> producers;
  };
  /// Takes them off the tape; and puts them back, on a tape without steps.
  Recording takeSteps();
  void putSteps(Recording recording);
  /// Forgets steps, and the values that are not kept.
  void dropSteps();
  /// Forgets everything, sums of kept values too.
  void drop();

private:
  /// Returns true if backward of the step that makes the value takes a gradient of it.
  bool isTaken(ValueId value) const;

  size_t kept_;
  std::vector<Step> steps_;
  std::vector<Tensor> gradients_;
  std::vector<Producer> producers_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_GRADIENTTAPE_H
