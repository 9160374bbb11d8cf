//===- GradientReduction.cpp - gradients of ranks, added up ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientReduction.h"
#include "../GradientSum.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

namespace segue::inline runtime {

static constexpr size_t noSlot = SIZE_MAX;
/// A quarter of all gradients waits at most, if none is larger than that.
static constexpr int partsOfGradients = 4;

static uint64_t bytesOf(const ParameterInfo &info) {
  return TensorDesc(info.desc.shape, ElementType::f32).spanBytes();
}

/// Returns the slot of the parameter whose gradient `output` is, or noSlot for that of an input.
static size_t slotOf(const ParameterTable &table, std::span<const Module> modules, size_t m, const Value &output) {
  auto isOf = [&](const Value &value) { return value.name == output.of; };
  return std::ranges::any_of(modules[m].parameters(), isOf) ? table.slotOf(m, output.of) : noSlot;
}

/// Returns the trained slots in the order in which backward is done with them: those of blocks first.
static std::vector<size_t> orderOfGradients(std::span<const Module> modules, const ParameterTable &table) {
  std::vector<size_t> order;
  std::vector<bool> isListed(table.size());
  auto list = [&](size_t slot) {
    if (!table.infos()[slot].trained || isListed[slot])
      return;
    isListed[slot] = true;
    order.push_back(slot);
  };
  auto isEarly = [&](size_t slot) { return table.infos()[slot].members.size() == 1; };
  for (size_t m = modules.size(); m-- > 0;)
    if (const Program *backward = modules[m].find("backward"))
      for (const BlockUse &block : blockUses(*backward).blocks)
        for (uint32_t output : block.finished)
          if (size_t slot = slotOf(table, modules, m, backward->output(output)); slot != noSlot && isEarly(slot))
            list(slot);
  for (size_t slot = 0; slot < table.size(); ++slot)
    list(slot);
  return order;
}

void GradientReduction::plan(std::span<const Module> modules, const ParameterTable &table,
                             const ShardedStates *owners) {
  table_ = &table;
  owners_ = owners;
  struct Open {
    size_t message = noSlot;
    uint64_t bytes = 0;
  };
  std::map<std::optional<int>, Open> openOf;
  std::vector<size_t> order = orderOfGradients(modules, table), last; // in that order, of each message
  uint64_t all = 0, most = ranks_->bucketBytes();
  for (size_t slot : order)
    all += bytesOf(table.infos()[slot]);
  if (owners) // what waits for its messages lies on the device: no more than a part of all gradients
    most = std::min(most, all / uint64_t(partsOfGradients * ranks_->ranks()));
  messages_.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    size_t slot = order[i];
    std::optional<int> owner = owners ? std::optional(owners->rankOf(slot)) : std::nullopt;
    Open &open = openOf[owner];
    uint64_t more = bytesOf(table.infos()[slot]);
    if (open.message == noSlot || open.bytes + more > most) {
      open = {messages_.size(), 0};
      messages_.push_back({{}, owner});
      last.push_back(0);
    }
    messages_[open.message].slots.push_back(slot);
    last[open.message] = i;
    open.bytes += more;
  }
  // The message that is complete first goes first.
  std::vector<size_t> by(messages_.size());
  std::iota(by.begin(), by.end(), 0);
  std::ranges::sort(by, {}, [&](size_t message) { return last[message]; });
  std::vector<Message> sorted;
  for (size_t message : by)
    sorted.push_back(std::move(messages_[message]));
  messages_ = std::move(sorted);
  beginStep();
}

void GradientReduction::beginStep() {
  next_ = 0;
  sent_ = {};
  ready_.assign(table_ ? table_->size() : 0, Ready());
  isSent_.assign(ready_.size(), false);
}

void GradientReduction::beginBackward(std::span<const Module> modules, GradientTape &tape, EventSink *next,
                                      bool mayAdd) {
  leavePhase(); // that of the step before
  target = next;
  modules_ = modules;
  tape_ = &tape;
  mayAdd_ = mayAdd;
}

void GradientReduction::endBackward() {
  // What was not sent is on the tape, or of a step that nobody ends.
  std::ranges::fill(ready_, Ready());
  target = nullptr;
  modules_ = {};
  tape_ = nullptr;
}

void GradientReduction::receive(const Event &event) { deliver(*this, event); }

/// Who stands behind has phases of its own, which it enters.
void GradientReduction::on(const event::PhaseBegin &begin) {
  if (target)
    target->enter(begin.phase);
}

std::optional<GradientReduction::Made> GradientReduction::madeBy(const event::Output &output) const {
  for (size_t m = 0; m < modules_.size(); ++m) {
    const Program *backward = modules_[m].find("backward");
    if (!backward || backward->image() != output.program.image() || backward->index() != output.program.index())
      continue;
    size_t slot = slotOf(*table_, modules_, m, backward->output(output.output));
    if (slot != noSlot && table_->infos()[slot].members.size() == 1 && !ready_[slot].gradient)
      return Made{slot, backward};
  }
  return std::nullopt;
}

/// Returns true for a gradient that can be added up where it lies.
static bool isSummable(const Tensor &gradient) {
  const TensorDesc &desc = gradient.desc();
  return desc.element == ElementType::f32 && desc.isDense() && desc.layout.space == Space::DeviceDram &&
         !gradient.storage()->isExternal();
}

void GradientReduction::on(const event::Output &output) {
  if (!owners_)
    forward(output);
  std::optional<Made> made = tape_ ? madeBy(output) : std::nullopt;
  Tensor *sum = made ? &tape_->gradient(GradientTape::ValueId(made->slot)) : nullptr;
  bool mayGo = sum && isSummable(output.value) && (!*sum || mayAdd_);
  if (mayGo && *sum) { // of the batches before, which the program returns with this one in it
    addGradient(*sum, output.value);
    output.value = std::exchange(*sum, Tensor());
  }
  if (mayGo)
    ready_[made->slot] = {output.value, made->program, output.output};
  if (owners_ && mayGo)
    output.value = Tensor();
  else if (owners_)
    forward(output);
  if (tape_)
    sendReady();
}

/// Puts a gradient that backward has given away on the tape. Who stands behind is told of those that stay.
void GradientReduction::putOnTape(size_t slot) {
  auto [value, program, output] = std::exchange(ready_[slot], {});
  if (isForThis(slot))
    forward(event::Output{*program, output, value});
  tape_->gradient(GradientTape::ValueId(slot)) = std::move(value);
}

void GradientReduction::putBack() {
  for (size_t slot = 0; owners_ && slot < ready_.size(); ++slot)
    if (ready_[slot].program)
      putOnTape(slot);
}

void GradientReduction::giveSum(size_t slot) {
  if (owners_ && ready_[slot].program && isForThis(slot))
    putOnTape(slot);
  ready_[slot] = {};
}

void GradientReduction::sendReady() {
  for (; next_ < messages_.size(); ++next_) {
    const auto &[slots, owner] = messages_[next_];
    if (!std::ranges::all_of(slots, [&](size_t slot) { return bool(ready_[slot].gradient); }))
      return;
    std::vector<Tensor> tensors;
    for (size_t slot : slots)
      tensors.push_back(ready_[slot].gradient);
    sent_.join(owner ? ranks_->reduce(tensors, *owner) : ranks_->allReduce(tensors));
    tensors.clear();
    for (size_t slot : slots) {
      isSent_[slot] = true;
      giveSum(slot);
    }
  }
}

void GradientReduction::sendRest(std::span<const Tensor> sums) {
  for (size_t slot = 0; slot < sums.size(); ++slot)
    if (!isSent_[slot] && sums[slot])
      ready_[slot].gradient = sums[slot];
  sendReady();
}

void GradientReduction::sendNothing(const DeviceRef &device, size_t until) {
  endBackward(); // it may have failed in the midst of it
  std::vector<Tensor> nothing(ready_.size());
  for (size_t message = next_; message < std::min(until, messages_.size()); ++message)
    for (size_t slot : messages_[message].slots) {
      nothing[slot] = Tensor::onHost(device, table_->infos()[slot].desc.shape, ElementType::f32);
      std::memset(nothing[slot].bytes(), 0xff, nothing[slot].desc().spanBytes());
    }
  sendRest(nothing);
  device->wait(sent_);
}

} // namespace segue::inline runtime
