//===- Gathering.cpp - parameters that one rank has each ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A parameter lives on the rank that updates it. Where it comes with its block, the ring
// there reads it as it would alone, and sends it to the others; what several blocks touch,
// or none, comes before its module runs, and goes with the last program that reads it. The
// others have a tensor in its place that stands for it, as for one that lives in a slab.
//
//===----------------------------------------------------------------------===//

#include "SharedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

StreamedParameters::RankOf SharedSession::gatherBlocks() {
  if (!isGathered() || !shards_)
    return nullptr;
  s.weights()->gatherBy(group_, [this](const std::string &block) {
    gatherings_.push_back({block, 0, reduction_ ? reduction_->messagesSent() : 0});
  });
  return [this](size_t slot) { return rankOf(slot); };
}

void SharedSession::meetToGather(std::string_view what, const std::string &failure) const {
  std::vector<std::string> told = group_->exchange(what, failure);
  for (size_t rank = 0; rank < told.size() && failure.empty(); ++rank)
    if (!told[rank].empty())
      throw Error(ErrorCode::RankFailed,
                  std::string(what) + ": rank " + std::to_string(rank) + " cannot: " + told[rank]);
}

void SharedSession::gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take) {
  static constexpr std::string_view meeting = "parameters are gathered";
  bool takesAll = isGathered() || isPipelined();
  try {
    if (takesAll) {
      s.requireValues();
      s.flush();
    }
  } catch (const std::exception &error) {
    meetToGather(meeting, error.what());
    throw;
  }
  if (takesAll)
    meetToGather(meeting);
  try {
    for (size_t slot = 0; slot < s.table.size(); ++slot) {
      const ParameterInfo &info = s.table.infos()[slot];
      std::optional<int> owner = rankOf(slot);
      if (!owner) {
        take(info, s.parameter(slot));
        continue;
      }
      bool comes = *owner != rank();
      Tensor value = comes ? Tensor::onHost(s.device, info.desc.shape, info.desc.element) : toHost(s.values[slot]);
      s.device->wait(group_->broadcast(std::span(&value, 1), *owner));
      wait(value);
      take(info, comes ? value : s.values[slot]);
    }
  } catch (const std::exception &error) { // others wait for those that are left
    if (takesAll)
      group_->abandon(error.what());
    throw;
  }
}

Fence SharedSession::gather(std::span<const std::pair<size_t, Tensor>> slots) {
  Fence all;
  for (int owner = 0; owner < group_->ranks(); ++owner) {
    std::vector<Tensor> sent;
    std::vector<std::pair<Tensor, Tensor>> arriving; // from, to
    for (const auto &[slot, place] : slots) {
      if (rankOf(slot) != owner)
        continue;
      const Tensor &value = owner == rank() ? s.values[slot] : place;
      if (s.table.infos()[slot].desc.isDense() && value.desc().isDense()) {
        sent.push_back(value);
        continue;
      }
      sent.push_back(Tensor::onHost(s.device, value.shape(), value.element()));
      if (owner == rank())
        copyInto(value, sent.back());
      else
        arriving.emplace_back(sent.back(), place);
    }
    if (!sent.empty())
      all.join(group_->broadcast(sent, owner));
    for (const auto &[from, to] : arriving)
      copyInto(from, to);
  }
  return all;
}

TensorMap SharedSession::gatherFor(size_t module, const Program &program) {
  TensorMap gathered;
  std::vector<std::pair<size_t, Tensor>> slots;
  for (const Value &input : program.inputs()) {
    if (!isGathered() || input.role != Role::Parameter)
      continue;
    size_t slot = s.table.slotOf(module, input.name);
    const TensorDesc &desc = s.table.infos()[slot].desc;
    slots.emplace_back(slot, isElsewhere(slot) ? Tensor::onHost(s.device, desc.shape, desc.element) : Tensor());
    if (slots.back().second)
      gathered[input.name] = slots.back().second;
  }
  s.device->wait(gather(slots));
  return gathered;
}

std::vector<size_t> SharedSession::slotsBesideBlocks(size_t module) const {
  std::vector<size_t> slots;
  for (const Value &value : s.modules[module].parameters())
    if (size_t slot = s.table.slotOf(module, value.name); isGathered() && !s.streamed->has(slot))
      slots.push_back(slot);
  return slots;
}

TensorMap SharedSession::gatherForModule(size_t module) {
  TensorMap gathered;
  std::vector<std::pair<size_t, Tensor>> slots;
  for (size_t slot : slotsBesideBlocks(module)) {
    const ParameterInfo &info = s.table.infos()[slot];
    slots.emplace_back(slot, isElsewhere(slot) ? emptyNamed(s.device, info.desc, info.key, name(Role::Parameter))
                                               : Tensor());
    for (const ParameterRef &member : info.members)
      if (slots.back().second && member.module == s.modules[module].name())
        gathered[member.name] = slots.back().second;
  }
  if (slots.empty())
    return gathered;
  gatherings_.push_back({"", module, reduction_ ? reduction_->messagesSent() : 0});
  gather(slots);
  return gathered;
}

void SharedSession::beginGathering() {
  if (!isGathered())
    return;
  // The gradient of a batch alone is given away before a service sees it; sums of several may be on the host.
  sendsBehind_ = false;
  for (const StepWord &word : meetOnce({.holdsGradients = s.announced.size() > 1 && !s.mayAddInBackward()}))
    sendsBehind_ |= word.holdsGradients;
  gathersMore_ = true;
  gatherings_.clear();
}

void SharedSession::backwardEnded() {
  if (!gathersMore_ || s.waiting + 1 < int64_t(s.announced.size()))
    return;
  s.weights()->settleLoads(); // a rank that fails from here on begins no more
  gathersMore_ = false;
  std::erase_if(knownGatherings_, [&](const auto &known) { return known.first == s.announced; });
  knownGatherings_.emplace_back(s.announced, gatherings_);
}

const std::vector<SharedSession::Gathering> *SharedSession::knownGatherings() const {
  for (const auto &[step, known] : knownGatherings_)
    if (step == s.announced)
      return &known;
  return nullptr;
}

bool SharedSession::gatherRest() noexcept {
  try {
    const std::vector<Gathering> *all = knownGatherings();
    if (!s.device->hasBytes() || !all || gatherings_.size() > all->size() ||
        !std::equal(gatherings_.begin(), gatherings_.end(), all->begin()))
      return false;
    for (size_t next = gatherings_.size(); next < all->size(); ++next) {
      reduction_->sendNothing(s.device, (*all)[next].messagesBefore);
      if (!(*all)[next].block.empty()) {
        s.weights()->gatherForOthers((*all)[next].block);
        continue;
      }
      std::vector<std::pair<size_t, Tensor>> slots;
      for (size_t slot : slotsBesideBlocks((*all)[next].module)) {
        const TensorDesc &desc = s.table.infos()[slot].desc;
        slots.emplace_back(slot, isElsewhere(slot) ? Tensor::onHost(s.device, desc.shape, desc.element) : Tensor());
      }
      s.device->wait(gather(slots));
    }
    gathersMore_ = false;
    return true;
  } catch (const std::exception &) { // the failure before is what is told
    return false;
  }
}

} // namespace segue::inline runtime
