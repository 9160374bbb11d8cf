//===- Module.cpp - a compiled module and its calls -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// At construction the inputs of backward are joined to the outputs and inputs
// of forward by name, once; a call then only moves handles.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Module.h"
#include "../Tensor/NullHandles.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

Module::Module(DeviceRef device, Binary binary, std::string name)
    : device_(requireGiven(device, "Module")), binary_(std::move(binary)), name_(std::move(name)) {
  if (name_.empty())
    name_ = binary_.name();
  const Program *forward = find("forward");
  if (!forward)
    forward = find("inference");
  if (!forward)
    throw Error(ErrorCode::NameUnknown, "module \"" + name_ + "\": the binary has neither a program \"forward\" nor " +
                                            "\"inference\"; it is not the file of a module");
  for (const Value &value : forward->inputs()) {
    switch (value.role) {
    case Role::Parameter:
      parameters_.push_back(value);
      break;
    case Role::Frozen:
      frozen_.push_back(value);
      break;
    case Role::Hyper:
      hypers_.push_back(value);
      break;
    default:
      inputs_.push_back(value);
    }
  }
  for (const Value &value : forward->outputs())
    if (value.role == Role::Output)
      outputs_.push_back(value);
  if (hasBackward())
    joinBackward();
}

Module Module::elsewhere() const {
  Module shown = *this;
  shown.isElsewhere_ = true;
  return shown;
}

const Program *Module::inFile(std::string_view program) const {
  for (const Program &candidate : binary_.programs())
    if (candidate.name() == program)
      return &candidate;
  return nullptr;
}

void Module::joinBackward() {
  const Program *forward = find("forward");
  auto corrupt = [&](const std::string &sentence) {
    return Error(ErrorCode::FileCorrupt, "module \"" + name_ + "\": " + sentence + "; compile the module again");
  };
  if (!forward)
    throw corrupt("there is a program \"backward\", but no \"forward\"");
  for (const Value &value : find("backward")->inputs()) {
    std::string what = "input \"" + value.name + "\" of backward";
    const Value *source = nullptr;
    if (value.role == Role::Gradient) {
      size_t index = 0;
      while (index < outputs_.size() && outputs_[index].name != value.of)
        ++index;
      if (index == outputs_.size())
        throw corrupt(what + " is the gradient of \"" + value.of + "\", which forward does not give");
      source = &outputs_[index];
      backwardInputs_.push_back({Source::Gradient, index});
    } else if (value.role == Role::Saved) {
      int index = forward->findOutput(value.name);
      if (index < 0)
        throw corrupt(what + " is not among the saved values of forward");
      source = &forward->output(index);
      backwardInputs_.push_back({Source::SavedOutput, size_t(index)});
    } else {
      int index = forward->findInput(value.name);
      bool isHyper = value.role == Role::Hyper && (index < 0 || forward->input(index).role != Role::Hyper);
      if (updatesInBackward() && (value.role == Role::State || isHyper)) {
        backwardInputs_.push_back({Source::Optimizer, 0});
        continue;
      }
      if (index < 0)
        throw corrupt(what + " is not an input of forward");
      source = &forward->input(index);
      backwardInputs_.push_back({Source::ForwardInput, size_t(index)});
    }
    if (source->desc().shape != value.desc().shape || source->desc().element != value.desc().element)
      throw corrupt(what + " is " + value.desc().str() + ", but " + source->desc().str() + " in forward");
  }
}

bool Module::updatesInBackward() const {
  const Program *backward = inFile("backward");
  return backward && std::ranges::any_of(backward->outputs(), [](const Value &value) { return value.role == Role::Parameter; });
}

bool Module::takesGradientOf(std::string_view output) const {
  const Program *backward = inFile("backward");
  if (backward)
    for (const Value &value : backward->inputs())
      if (value.role == Role::Gradient && value.of == output)
        return true;
  return false;
}

bool Module::givesGradientOf(std::string_view name) const {
  const Program *backward = inFile("backward");
  if (backward)
    for (const Value &value : backward->outputs())
      if (value.of == name)
        return true;
  return false;
}

std::vector<Tensor> Module::gather(std::span<const Value> wanted, const Lookup &values) const {
  requireGiven(values, "module \"" + name_ + "\"");
  std::vector<Tensor> inputs;
  inputs.reserve(wanted.size());
  for (const Value &value : wanted) {
    Tensor tensor = values(value);
    if (!tensor)
      throw Error(ErrorCode::MissingInput, "module \"" + name_ + "\": no tensor was given for " +
                                               std::string(runtime::name(value.role)) + " \"" + value.name + "\" (" +
                                               value.desc().str() + ")");
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

static Module::Lookup lookupIn(const TensorMap &values) {
  return [&values](const Value &value) {
    auto it = values.find(value.name);
    return it == values.end() ? Tensor() : it->second;
  };
}

std::vector<Tensor> Module::infer(const TensorMap &values, EventSink *events) const {
  return infer(lookupIn(values), events);
}

ForwardResult Module::forward(const TensorMap &values, EventSink *events) const {
  return forward(lookupIn(values), events);
}

/// The results of role output, in order; the others are dropped.
static std::vector<Tensor> outputsOf(const Program &program, const std::vector<Tensor> &results) {
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < results.size(); ++i)
    if (program.outputs()[i].role == Role::Output)
      outputs.push_back(results[i]);
  return outputs;
}

std::vector<Tensor> Module::infer(const Lookup &values, EventSink *events) const {
  const Program *program = find("inference");
  if (!program)
    program = find("forward");
  return outputsOf(*program, submit(device_, *program, gather(program->inputs(), values), events));
}

ForwardResult Module::forward(const Lookup &values, EventSink *events) const {
  const Program *program = find("forward");
  if (!program)
    throw Error(ErrorCode::InvalidArgument,
                "module \"" + name_ + "\" was compiled for inference only; compile it for training");
  return forwardBy(*program, gather(program->inputs(), values), events, nullptr);
}

ForwardResult Module::forwardUpdating(const Lookup &values, std::vector<Tensor> updates, std::vector<Tensor> &updated,
                                      EventSink *events) const {
  const Program *program = find(updatingForward);
  if (!program)
    throw Error(ErrorCode::InvalidArgument, "module \"" + name_ + "\" was compiled without in-forward");
  std::vector<Tensor> inputs = gather(find("forward")->inputs(), values);
  std::ranges::move(updates, std::back_inserter(inputs));
  return forwardBy(*program, std::move(inputs), events, &updated);
}

ForwardResult Module::forwardBy(const Program &program, std::vector<Tensor> inputs, EventSink *events,
                                std::vector<Tensor> *others) const {
  ForwardResult result;
  size_t own = find("forward")->outputs().size();
  if (!hasBackward()) {
    result.outputs = outputsOf(program, submit(device_, program, std::move(inputs), events));
    return result;
  }
  // Keep only what backward reads again; the executor may free the rest.
  Token &token = result.token;
  token.held_ = std::make_shared<Token::Tensors>(backwardInputs_.size());
  Token::Tensors &held = *token.held_;
  for (size_t i = 0; i < backwardInputs_.size(); ++i)
    if (backwardInputs_[i].source == Source::ForwardInput)
      held[i] = inputs[backwardInputs_[i].index];
  std::vector<Tensor> results = submit(device_, program, std::move(inputs), events);
  if (others)
    others->assign(std::make_move_iterator(results.begin() + own), std::make_move_iterator(results.end()));
  results.resize(own);
  for (size_t i = 0; i < backwardInputs_.size(); ++i) {
    if (backwardInputs_[i].source != Source::SavedOutput)
      continue;
    const Tensor &saved = results[backwardInputs_[i].index];
    held[i] = saved;
    token.savedBytes_ += saved.desc().spanBytes();
  }
  result.outputs = outputsOf(program, results);
  return result;
}

TensorMap Module::backward(Token token, const TensorMap &outputGradients, EventSink *events) const {
  if (!token && hasBackward())
    throw Error(ErrorCode::InvalidArgument,
                "module \"" + name_ + "\": backward needs the token of a forward, and each token serves once");
  return backward(std::move(token), outputGradients, TensorMap(), events);
}

TensorMap Module::backward(Token token, const TensorMap &outputGradients, const TensorMap &values, EventSink *events,
                           std::vector<Tensor> *others) const {
  const Program *program = find("backward");
  if (!program)
    throw Error(ErrorCode::InvalidArgument,
                "module \"" + name_ + "\" has no program \"backward\"; compile it for training");
  Token::Tensors inputs;
  if (token) // its tensors are a copy's, too, where there is one
    inputs = token.held_.use_count() == 1 ? std::move(*token.held_) : *token.held_;
  inputs.resize(backwardInputs_.size());
  for (const auto &[name, gradient] : outputGradients) {
    std::vector<std::string_view> known;
    for (const Value &output : outputs_)
      known.push_back(output.name);
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(ErrorCode::NameUnknown, "module \"" + name_ + "\": a gradient was given for \"" + name +
                                              "\", which is not an output" + nearestHint(name, known));
  }
  for (size_t i = 0; i < backwardInputs_.size(); ++i) {
    const Value &wanted = program->inputs()[i];
    if (backwardInputs_[i].source != Source::Gradient) {
      if (auto given = values.find(wanted.name); given != values.end())
        inputs[i] = given->second;
      if (!inputs[i] && backwardInputs_[i].source == Source::Optimizer)
        throw Error(ErrorCode::MissingInput,
                    "module \"" + name_ + "\" was compiled with its optimizer in backward, which needs the " +
                        std::string(runtime::name(wanted.role)) + " \"" + wanted.name +
                        "\": a session trains it; compile it without in-backward for gradients");
      if (!inputs[i])
        throw Error(ErrorCode::MissingInput, "module \"" + name_ + "\": backward reads \"" + wanted.name + "\" (" +
                                                 wanted.desc().str() +
                                                 ") again, but neither the token nor the values given have it");
      continue;
    }
    auto it = outputGradients.find(wanted.of);
    if (it == outputGradients.end() || !it->second) {
      inputs[i] = Tensor::zeros(device_, wanted.desc());
      continue;
    }
    if (it->second.shape() != wanted.desc().shape)
      throw Error(ErrorCode::LayoutMismatch, "module \"" + name_ + "\", gradient of output \"" + wanted.of +
                                                 "\": " + it->second.desc().str() + " given, " + wanted.desc().str() +
                                                 " declared");
    // Gradients that were summed over several readers arrive in f32.
    inputs[i] = toLayout(device_, it->second, wanted.desc());
  }
  // A sink that hears nothing has memory for gradients taken late (Executor::run), when much of what forward saved is
  // free. If there is not enough, the program has begun by then: no harm where it updates nothing.
  EventSink nobody;
  EventSink *sink = events || updatesInBackward() ? events : &nobody;
  std::vector<Tensor> results = submit(device_, *program, std::move(inputs), sink);
  TensorMap gradients;
  if (others)
    others->assign(results.size(), Tensor());
  for (size_t i = 0; i < results.size(); ++i) {
    const Value &output = program->outputs()[i];
    if (output.role == Role::Gradient)
      gradients[output.of] = std::move(results[i]);
    else if (output.role == Role::Statistics && events)
      events->receive(event::Statistics{*program, uint32_t(i), results[i]});
    else if (others)
      (*others)[i] = std::move(results[i]);
  }
  return gradients;
}

} // namespace segue::inline runtime
