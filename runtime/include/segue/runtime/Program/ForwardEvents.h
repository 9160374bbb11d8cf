//===- ForwardEvents.h - a sink that hands events on ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Hands every event to a sink that can be exchanged, or to none: for owners of a
// sink whose receiver changes from step to step. `Base` is EventSink, or a class
// with its functions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H
#define SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H

#include "segue/runtime/Program/Events.h"

namespace segue::inline runtime {

template <typename Base = EventSink> class ForwardEvents : public Base {
public:
  /// The sink that is told, which is not owned; null for none.
  EventSink *target = nullptr;

  void onPhase(Phase phase) override {
    if (target)
      target->onPhase(phase);
  }
  void onSubmit(const Program &program, std::span<const Tensor> inputs) override {
    if (target)
      target->onSubmit(program, inputs);
  }
  void onBlockBegin(const Program &program, std::string_view block) override {
    if (target)
      target->onBlockBegin(program, block);
  }
  void onBlockEnd(const Program &program) override {
    if (target)
      target->onBlockEnd(program);
  }
  void onSave(const Program &program, uint32_t output, Tensor &saved) override {
    if (target)
      target->onSave(program, output, saved);
  }
  void onRestore(const Program &program, uint32_t input, Tensor &saved) override {
    if (target)
      target->onRestore(program, input, saved);
  }
  void onFree(const Program &program, uint32_t input) override {
    if (target)
      target->onFree(program, input);
  }
  void onOutput(const Program &program, uint32_t output, Tensor &value) override {
    if (target)
      target->onOutput(program, output, value);
  }
  void onAccumulate(Tensor &sum, Tensor &gradient) override {
    if (target)
      target->onAccumulate(sum, gradient);
  }
  void onAccumulated(Tensor &sum) override {
    if (target)
      target->onAccumulated(sum);
  }
  bool defersInput(const Program &program, uint32_t input, const Tensor &value) override {
    return target && target->defersInput(program, input, value);
  }
  void onBlockInput(const Program &program, uint32_t input, Tensor &value) override {
    if (target)
      target->onBlockInput(program, input, value);
  }
  bool watchesResults(const Program &program) override { return target && target->watchesResults(program); }
  void onBlockResult(const Program &program, uint32_t result, const Tensor &value) override {
    if (target)
      target->onBlockResult(program, result, value);
  }
  void onStatistics(const Program &program, uint32_t output, const Tensor &statistics) override {
    if (target)
      target->onStatistics(program, output, statistics);
  }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H
