//===- GradientTape.cpp - forwards, played back in reverse ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientTape.h"
#include "GradientSum.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

GradientTape::ValueId GradientTape::newValue() {
  gradients_.emplace_back();
  producers_.emplace_back();
  return ValueId(gradients_.size() - 1);
}

void GradientTape::record(Step step) {
  for (uint32_t i = 0; i < step.outputs.size(); ++i)
    producers_[step.outputs[i]] = {uint32_t(steps_.size()), i};
  steps_.push_back(std::move(step));
}

const GradientTape::Step *GradientTape::producer(ValueId value) const {
  return producers_[value].step == UINT32_MAX ? nullptr : &steps_[producers_[value].step];
}

bool GradientTape::isTaken(ValueId value) const {
  const Step *step = producer(value);
  return !step || step->module->takesGradientOf(step->module->outputs()[producers_[value].output].name);
}

void GradientTape::add(ValueId value, Tensor gradient, EventSink *events) {
  Tensor &sum = gradients_[value];
  if (!events || !sum || value >= kept_)
    return addGradient(sum, std::move(gradient));
  events->receive(event::Accumulate{sum, gradient});
  addGradient(sum, std::move(gradient));
  events->receive(event::Accumulated{sum});
}

void GradientTape::play(Play which, EventSink *events) {
  for (size_t i = steps_.size(); i-- > 0;) {
    Step &step = steps_[i];
    const Module &module = *step.module;
    if (step.played || !module.hasBackward())
      continue;
    TensorMap given;
    for (size_t o = 0; o < step.outputs.size(); ++o)
      if (gradients_[step.outputs[o]] && isTaken(step.outputs[o]))
        given[module.outputs()[o].name] = std::exchange(gradients_[step.outputs[o]], Tensor());
    if (given.empty() && which == Play::Reached)
      continue;
    step.played = true;
    TensorMap results =
        module.backward(std::move(step.token), given, std::exchange(step.given, {}), events, &step.updated);
    given.clear();
    auto addResult = [&](const std::string &name, ValueId value) {
      // A sink may have taken a gradient.
      if (auto found = results.find(name); found != results.end() && found->second && isTaken(value))
        add(value, std::move(found->second), events);
    };
    for (size_t p = 0; p < step.parameters.size(); ++p)
      addResult(module.parameters()[p].name, step.parameters[p]);
    for (size_t k = 0; k < step.inputs.size(); ++k)
      addResult(module.inputs()[k].name, step.inputs[k]);
  }
}

GradientTape::Recording GradientTape::takeSteps() {
  auto from = ptrdiff_t(kept_);
  Recording taken{std::exchange(steps_, {}),
                  {std::make_move_iterator(gradients_.begin() + from), std::make_move_iterator(gradients_.end())},
                  {producers_.begin() + from, producers_.end()}};
  dropSteps();
  return taken;
}

void GradientTape::putSteps(Recording recording) {
  dropSteps();
  steps_ = std::move(recording.steps);
  std::ranges::move(recording.gradients, std::back_inserter(gradients_));
  std::ranges::copy(recording.producers, std::back_inserter(producers_));
}

void GradientTape::dropSteps() {
  steps_.clear();
  gradients_.resize(kept_);
  producers_.assign(kept_, {});
}

void GradientTape::drop() {
  dropSteps();
  std::ranges::fill(gradients_, Tensor());
}

} // namespace segue::inline runtime
