//===- LoopOrder.cpp - the calls of a loop's step, in their order ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LoopOrder.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>

namespace segue::inline runtime {

/// The bytes up to which a tensor that lies on the device before a call is left out of a twin's books: scalars, such as
/// the seed of the call, are too small to matter.
static constexpr uint64_t scalarBytes = 4096;

void LoopOrder::clear() { *this = {}; }

void LoopOrder::refuse(std::string why) {
  if (whyNot_.empty())
    whyNot_ = std::move(why);
}

LoopOrder::Call &LoopOrder::add(Call call) {
  for (size_t token = 0; token < tokens_.size(); ++token)
    if (!isOver_[token] && tokens_[token].expired()) {
      isOver_[token] = true;
      call.dropped.push_back(token);
    }
  return calls_.emplace_back(std::move(call));
}

size_t LoopOrder::indexOf(const Tensor &tensor) {
  if (!tensor)
    return none;
  uint64_t offset = tensor.desc().layout.offset;
  auto [entry, isNew] = indices_.try_emplace({tensor.storage()->id(), offset}, tensors_.size());
  if (!isNew)
    return entry->second;
  bool isExternal = tensor.storage()->isExternal();
  if (!isExternal && !isHostSpace(tensor.desc().layout.space) && tensor.desc().spanBytes() > scalarBytes)
    refuse("a call was given a tensor that lies on the device");
  tensors_.push_back({tensor.sharedDesc(), tensor.bytes(), isExternal});
  return entry->second;
}

LoopOrder::Named LoopOrder::namesOf(const TensorMap &tensors) {
  Named names;
  for (const auto &[name, tensor] : tensors)
    names.emplace_back(name, indexOf(tensor));
  return names;
}

/// A call that lacks its program fails, and its step is not learnt.
static LoopProgram programOf(const Module &module, std::string_view name, std::string_view other = {}) {
  const Program *program = module.find(name);
  if (!program && !other.empty())
    program = module.find(other);
  return program ? loopProgram(*program) : LoopProgram();
}

void LoopOrder::addForward(const Module &module, const TensorMap &values) {
  add({.kind = Call::Kind::Forward,
       .program = programOf(module, "forward"),
       .module = module,
       .values = namesOf(values),
       .token = tokens_.size()});
  tokens_.emplace_back();
  isOver_.push_back(true);
}

void LoopOrder::addToken(const Token &token) {
  tokens_.back() = token.tensors();
  isOver_.back() = !token;
}

void LoopOrder::addBackward(const Module &module, const Token &token, const TensorMap &gradients,
                            const TensorMap *values) {
  Call &call = add({.kind = Call::Kind::Backward,
                    .program = programOf(module, "backward"),
                    .module = module,
                    .gradients = namesOf(gradients),
                    .hasValues = values != nullptr});
  if (values)
    call.values = namesOf(*values);
  if (calls_.size() == 1)
    refuse("a step began with a backward");
  if (!token)
    return;
  std::shared_ptr<Token::Tensors> held = token.tensors().lock();
  auto found = std::ranges::find_if(tokens_, [&](const auto &known) { return known.lock() == held; });
  if (found == tokens_.end())
    return refuse("a backward needs what an earlier step has saved");
  call.token = size_t(found - tokens_.begin());
  call.isKept = held.use_count() > 2;
  isOver_[call.token] = !call.isKept;
  hasReturned_ = true;
}

void LoopOrder::addInfer(const Module &module, const TensorMap &values) {
  add({.kind = Call::Kind::Infer,
       .program = programOf(module, "inference", "forward"),
       .module = module,
       .values = namesOf(values)});
}

void LoopOrder::addApart(const Program &program, std::span<const Tensor> inputs) {
  Call &call = add({.kind = Call::Kind::Apart, .program = loopProgram(program), .module = {}, .apart = program});
  for (const Tensor &input : inputs)
    call.values.emplace_back("", indexOf(input));
}

static bool areSame(const LoopOrder::Call &a, const LoopOrder::Call &b) {
  return a.kind == b.kind && a.program == b.program && a.token == b.token && a.isKept == b.isKept &&
         a.hasValues == b.hasValues;
}

bool LoopOrder::isSameAs(const LoopOrder &other) const { return std::ranges::equal(calls_, other.calls_, areSame); }

bool LoopOrder::isBeginningOf(const LoopOrder &other) const {
  return calls_.size() < other.calls_.size() &&
         std::ranges::equal(calls_, std::span(other.calls_).first(calls_.size()), areSame);
}

} // namespace segue::inline runtime
