//===- LoopSteps.cpp - steps of a loop on a twin --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LoopSteps.h"
#include "segue/runtime/Device/Device.h"
#include <utility>

namespace segue::inline runtime {

/// Stands for a tensor of the calls: as it lies there, and without values.
static Tensor standIn(const DeviceRef &device, const LoopOrder::Given &given) {
  if (given.isExternal)
    return Tensor::wrap(device, *given.desc, given.address, [] {}, /*writable=*/false, given.desc->layout.space);
  TensorDesc desc = *given.desc;
  desc.layout.offset = 0;
  return Tensor::empty(device, std::move(desc));
}

LoopSteps::LoopSteps(const DeviceRef &device, EventSink &events, const LoopOrder &order, bool ahead)
    : device_(device), order_(order), events_(device, ahead) {
  events_.target = &events;
  for (const LoopOrder::Given &given : order_.tensors())
    tensors_.push_back(standIn(device, given));
  for (const LoopOrder::Call &call : order_.calls()) {
    const Module *module = nullptr;
    if (call.module) {
      const Module &called = *call.module;
      const Program &first = called.binary().programs().front();
      module = &known_.try_emplace({loopProgram(first), called.name()}, device, called.binary(), called.name())
                    .first->second;
    }
    modules_.push_back(module);
  }
  std::vector<Module> all;
  for (const auto &[key, module] : known_)
    all.push_back(module);
  preparePrograms(device, all);
}

TensorMap LoopSteps::tensorsOf(const LoopOrder::Named &names) const {
  TensorMap tensors;
  for (const auto &[name, index] : names)
    tensors[name] = index == LoopOrder::none ? Tensor() : tensors_[index];
  return tensors;
}

void LoopSteps::makeCall(const LoopOrder::Call &call, const Module *module, std::map<size_t, Token> &tokens) {
  using Kind = LoopOrder::Call::Kind;
  switch (call.kind) {
  case Kind::Forward: {
    events_.forward = module->hasBackward() ? module : nullptr;
    ForwardResult result = module->forward(tensorsOf(call.values), &events_);
    events_.forward = nullptr;
    tokens[call.token] = std::move(result.token);
    handOut(device_, std::move(result.outputs));
    return;
  }
  case Kind::Backward: {
    Token token;
    if (auto held = tokens.find(call.token); held != tokens.end()) {
      token = held->second;
      if (!call.isKept)
        tokens.erase(held);
    }
    TensorMap gradients = tensorsOf(call.gradients);
    TensorMap results = call.hasValues
                            ? module->backward(std::move(token), gradients, tensorsOf(call.values), &events_)
                            : module->backward(std::move(token), gradients, &events_);
    for (auto &[name, result] : results)
      result = handOut(device_, std::move(result));
    return;
  }
  case Kind::Infer:
  case Kind::Apart: {
    EventSink::PhasesApart apart(&events_);
    events_.isApart = true;
    if (call.kind == Kind::Infer) {
      handOut(device_, module->infer(tensorsOf(call.values), &events_));
    } else {
      std::vector<Tensor> inputs;
      for (const auto &[name, index] : call.values)
        inputs.push_back(index == LoopOrder::none ? Tensor() : tensors_[index]);
      handOut(device_, submit(device_, *call.apart, std::move(inputs), &events_));
    }
    events_.isApart = false;
    return;
  }
  }
}

void LoopSteps::step() {
  std::map<size_t, Token> tokens;
  for (size_t i = 0; i < order_.calls().size(); ++i) {
    const LoopOrder::Call &call = order_.calls()[i];
    for (size_t token : call.dropped)
      tokens.erase(token);
    makeCall(call, modules_[i], tokens);
  }
  events_.endStep();
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void LoopSteps::Events::on(const event::PhaseBegin &begin) {
  if (!std::exchange(inStep_, true))
    target->enter(Phase::StepBegin);
  target->enter(begin.phase);
}

void LoopSteps::Events::endStep() {
  leavePhase();
  inStep_ = false;
  target->enter(Phase::StepEnd);
}

void LoopSteps::Events::on(const event::Submit &submit) {
  weights_.on(submit);
  if (!forward)
    return tell(submit);
  std::vector<Tensor> lasting = lastingInputs(*forward, submit.inputs);
  tell(event::Submit{submit.program, lasting});
}

void LoopSteps::Events::on(const event::BlockBegin &begin) {
  weights_.on(begin);
  tell(begin);
}

void LoopSteps::Events::on(const event::BlockEnd &end) {
  weights_.on(end);
  tell(end);
}

void LoopSteps::Events::on(const event::Output &output) {
  if (output.program.outputs()[output.output].role == Role::Gradient)
    output.value = handOut(device_, output.value);
}

} // namespace segue::inline runtime
