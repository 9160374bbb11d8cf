//===- GradientReduction.cpp - gradients of ranks, added up ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientReduction.h"
#include "GradientSum.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstring>
#include <utility>

namespace segue::inline runtime {

static constexpr size_t noSlot = SIZE_MAX;

static uint64_t bytesOf(const ParameterInfo &info) {
  return TensorDesc(info.desc.shape, ElementType::f32).spanBytes();
}

/// Returns the slot of the parameter whose gradient `output` is, or noSlot for that of an input.
static size_t slotOf(const ParameterTable &table, std::span<const Module> modules, size_t m, const Value &output) {
  auto isOf = [&](const Value &value) { return value.name == output.of; };
  return std::ranges::any_of(modules[m].parameters(), isOf) ? table.slotOf(m, output.of) : noSlot;
}

void GradientReduction::plan(std::span<const Module> modules, const ParameterTable &table) {
  table_ = &table;
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
  messages_.clear();
  uint64_t bytes = 0;
  for (size_t slot : order) {
    uint64_t more = bytesOf(table.infos()[slot]);
    if (messages_.empty() || bytes + more > ranks_->bucketBytes()) {
      messages_.emplace_back();
      bytes = 0;
    }
    messages_.back().push_back(slot);
    bytes += more;
  }
  beginStep();
}

void GradientReduction::beginStep() {
  next_ = 0;
  sent_ = {};
  ready_.assign(table_ ? table_->size() : 0, Tensor());
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

void GradientReduction::on(const event::Output &output) {
  forward(output);
  if (!tape_)
    return;
  for (size_t m = 0; m < modules_.size(); ++m) {
    const Program *backward = modules_[m].find("backward");
    if (!backward || backward->image() != output.program.image() || backward->index() != output.program.index())
      continue;
    size_t slot = slotOf(*table_, modules_, m, backward->output(output.output));
    if (slot == noSlot)
      continue;
    Tensor &sum = tape_->gradient(GradientTape::ValueId(slot));
    const TensorDesc &desc = output.value.desc();
    bool mayGo = table_->infos()[slot].members.size() == 1 && desc.element == ElementType::f32 && desc.isDense() &&
                 desc.layout.space == Space::DeviceDram && !output.value.storage()->isExternal() && (!sum || mayAdd_);
    if (!mayGo || ready_[slot])
      continue;
    if (sum) { // of the batches before, which the program returns with this one in it
      addGradient(sum, output.value);
      output.value = std::exchange(sum, Tensor());
    }
    ready_[slot] = output.value;
  }
  sendReady();
}

void GradientReduction::sendReady() {
  for (; next_ < messages_.size(); ++next_) {
    std::vector<Tensor> tensors;
    for (size_t slot : messages_[next_]) {
      if (!ready_[slot])
        return;
      tensors.push_back(ready_[slot]);
    }
    sent_.join(ranks_->allReduce(tensors));
    for (size_t slot : messages_[next_]) {
      isSent_[slot] = true;
      ready_[slot] = Tensor();
    }
  }
}

void GradientReduction::sendRest(std::span<const Tensor> sums) {
  for (size_t slot = 0; slot < sums.size(); ++slot)
    if (!isSent_[slot])
      ready_[slot] = sums[slot];
  sendReady();
}

void GradientReduction::sendNothing(const DeviceRef &device) {
  std::vector<Tensor> nothing(ready_.size());
  for (size_t message = next_; message < messages_.size(); ++message)
    for (size_t slot : messages_[message]) {
      nothing[slot] = Tensor::onHost(device, table_->infos()[slot].desc.shape, ElementType::f32);
      std::memset(nothing[slot].bytes(), 0xff, nothing[slot].desc().spanBytes());
    }
  sendRest(nothing);
  device->wait(sent_);
}

} // namespace segue::inline runtime
