//===- CheckInputs.cpp - are these tensors what was declared? -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Rule R1: every input is checked, in index order, before anything is queued. A
// description that was seen at an input before is known by its address, one that
// lies as declared by its hash; only others are compared field by field.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

std::string PreparedProgram::inputText(size_t input) const {
  return "program \"" + info_.name + "\", input " + std::to_string(input) + " (\"" + info_.inputs[input].name + "\")";
}

void PreparedProgram::checkInputs(const Program &program, std::span<const Tensor> inputs, EventSink *events) {
  if (inputs.size() != inputs_.size())
    throw Error(ErrorCode::InvalidArgument, "program \"" + info_.name + "\": " + std::to_string(inputs.size()) +
                                                " inputs given, " + std::to_string(inputs_.size()) + " declared");
  for (size_t i = 0; i < inputs.size(); ++i) {
    InputPlan &plan = inputs_[i];
    plan.deferred = false;
    if (events && plan.streamable && inputs[i])
      events->receive(event::OfferInput{program, uint32_t(i), inputs[i], plan.deferred});
    checkInput(i, inputs[i], events != nullptr);
  }
}

void PreparedProgram::checkInput(size_t index, const Tensor &tensor, bool deferRestored) {
  InputPlan &plan = inputs_[index];
  if (!tensor)
    throw Error(ErrorCode::MissingInput, inputText(index) + ": no tensor given; " + plan.wanted->str() + " declared");
  const Storage &storage = *tensor.storage();
  awaitRanks(storage);
  // The address of a description that is kept cannot be another's.
  if (tensor.sharedDesc().get() != plan.given.get() || tensor.origin() != plan.origin ||
      storage.device().get() != &device_)
    resolveInput(index, tensor);
  if (!storage.isUsable() && !(deferRestored && (plan.restored || plan.deferred)))
    storage.requireUsable(inputText(index));
  // A tensor that a sink brings later is checked again then.
  if (!plan.writtenInPlace || (deferRestored && plan.deferred))
    return;
  if (!storage.isWritable())
    throw Error(ErrorCode::InvalidArgument, inputText(index) + " is written in place, and its memory is read-only");
  if (!plan.inPlace)
    throw Error(ErrorCode::LayoutMismatch, inputText(index) + ": " + tensor.desc().str() + " aligned to " +
                                               std::to_string(tensor.desc().layout.alignment) + " bytes given, " +
                                               plan.wanted->str() + " aligned to " +
                                               std::to_string(plan.wanted->layout.alignment) +
                                               " declared; it is written in place, convert it with toLayout first");
}

/// Compares a tensor that is not the one seen last, and remembers the answer.
void PreparedProgram::resolveInput(size_t index, const Tensor &tensor) {
  InputPlan &plan = inputs_[index];
  const TensorDesc &given = tensor.desc(), &wanted = *plan.wanted;
  bool asDeclared = tensor.descHash() == plan.wantedHash && tensor.device().get() == &device_;
  if (!asDeclared)
    checkConversion(inputText(index), tensor, wanted, device_, transfer_.options().lossyCasts);
  // L1 is where nothing need be copied to or from; an alternative in DRAM is for
  // devices whose L1 is full or missing.
  auto liesIn = [&](const auto &other) {
    return other->layout.space == Space::DeviceL1 && hasLayout(tensor, other->layout);
  };
  plan.inPlace =
      (asDeclared && given.layout.space == wanted.layout.space && given.layout.alignment >= wanted.layout.alignment) ||
      hasLayout(tensor, wanted.layout) || std::ranges::any_of(info_.inputs[index].alternatives, liesIn);
  if (!plan.edge || tensor.origin() != plan.origin)
    plan.edge = &lane_.report().edge(tensor.origin(), *plan.end);
  plan.origin = tensor.origin();
  plan.given = tensor.sharedDesc();
}

} // namespace segue::inline runtime
