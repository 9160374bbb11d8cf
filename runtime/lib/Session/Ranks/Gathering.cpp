//===- Gathering.cpp - parameters that one rank has each ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A parameter that comes with its block lives on the rank that updates it, where the ring
// reads it as it would alone, and sends it to the others. These have a tensor in its place
// that stands for it, as for one that lives in a slab.
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
    gatherings_.push_back({block, reduction_ ? reduction_->messagesSent() : 0});
  });
  return [this](size_t slot) { return rankOf(slot); };
}

void SharedSession::meetToGather(std::string_view what, const std::string &failure) const {
  if (!isGathered() && !isPipelined())
    return;
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
      s.weights()->gatherForOthers((*all)[next].block);
    }
    gathersMore_ = false;
    return true;
  } catch (const std::exception &) { // the failure before is what is told
    return false;
  }
}

} // namespace segue::inline runtime
