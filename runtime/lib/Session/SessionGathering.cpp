//===- SessionGathering.cpp - parameters that one rank has each -----------===//
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

#include "SessionState.h"
#include "SilentConfig.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightStagehandConfig.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

std::optional<int> Session::State::rankOf(size_t slot) const {
  if (isPipelined() && shards)
    return shards->rankOf(slot);
  if (!isGathered() || !shards || !table.infos()[slot].trained || !streamed->has(slot))
    return std::nullopt;
  return shards->rankOf(slot);
}

bool Session::State::isElsewhere(size_t slot) const {
  return rankOf(slot) && !shards->has(options.collectives->rank(), slot);
}

void Session::State::wantRing() {
  if (!isGathered() || options.weights)
    return;
  Config config = options.config.value_or(Config());
  ConfigReader section = config.section(WeightStagehandConfig::section);
  WeightStagehandConfig ring = WeightStagehandConfig::read(section);
  if (!ring.enabled)
    throw Error(ErrorCode::InvalidArgument, "memory.stagehand.stagehand_enabled: is false, and parameters of other "
                                            "ranks come by Weight Stagehand's ring (zero3); leave it out, or train "
                                            "with zero1");
  if (ring.isGiven)
    return;
  options.config = withRing(options.config);
}

void Session::State::leaveElsewhere() {
  if (!(isGathered() || isPipelined()) || !shards)
    return;
  for (size_t slot = 0; slot < table.size(); ++slot)
    if (isElsewhere(slot))
      values[slot] = streamed->standIn(device, slot,
                                       "lives on rank " + std::to_string(shards->rankOf(slot)) +
                                           (isPipelined() ? " alone, which runs its module (pipeline)"
                                                          : " alone and comes with its block (zero3)") +
                                           "; ask there, or save a checkpoint");
  if (isPipelined())
    return;
  uint64_t shared = 0, stays = 0;
  std::string first;
  for (size_t slot = 0; slot < table.size(); ++slot) {
    const ParameterInfo &info = table.infos()[slot];
    (rankOf(slot) ? shared : stays) += info.trained ? info.desc.spanBytes() : 0;
    if (info.trained && !rankOf(slot) && first.empty())
      first = info.key;
  }
  if (!shared)
    throw Error(ErrorCode::Unsupported, "no trained parameter comes with one block of its programs, as they have no "
                                        "blocks, or touch all parameters in several: nothing can be gathered ahead of "
                                        "its need (zero3). Train with zero1");
  if (stays && options.log)
    options.log("zero3: " + std::to_string(stays) + " bytes of parameters stay on every rank, as \"" + first +
                "\" is touched by several blocks or outside of them");
}

void Session::State::meetToGather(std::string_view what, const std::string &failure) const {
  if (!isGathered() && !isPipelined())
    return;
  std::vector<std::string> told = options.collectives->exchange(what, failure);
  for (size_t rank = 0; rank < told.size() && failure.empty(); ++rank)
    if (!told[rank].empty())
      throw Error(ErrorCode::RankFailed,
                  std::string(what) + ": rank " + std::to_string(rank) + " cannot: " + told[rank]);
}

std::vector<std::string> Session::parametersElsewhere() const {
  std::vector<std::string> keys;
  for (size_t slot = 0; slot < state_->table.size(); ++slot)
    if (state_->isElsewhere(slot))
      keys.push_back(state_->table.infos()[slot].key);
  return keys;
}

void Session::gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take) {
  static constexpr std::string_view meeting = "parameters are gathered";
  State &s = *state_;
  try {
    if (s.isGathered() || s.isPipelined()) {
      s.requireValues();
      s.flush();
    }
  } catch (const std::exception &error) {
    s.meetToGather(meeting, error.what());
    throw;
  }
  s.meetToGather(meeting);
  try {
    for (size_t slot = 0; slot < s.table.size(); ++slot) {
      const ParameterInfo &info = s.table.infos()[slot];
      std::optional<int> rank = s.rankOf(slot);
      if (!rank) {
        take(info, parameter(info.key));
        continue;
      }
      bool comes = *rank != s.options.collectives->rank();
      Tensor value = comes ? Tensor::onHost(s.device, info.desc.shape, info.desc.element) : toHost(s.values[slot]);
      s.device->wait(s.options.collectives->broadcast(std::span(&value, 1), *rank));
      wait(value);
      take(info, comes ? value : s.values[slot]);
    }
  } catch (const std::exception &error) { // others wait for those that are left
    if (s.isGathered() || s.isPipelined())
      s.options.collectives->abandon(error.what());
    throw;
  }
}

void Session::State::beginGathering() {
  if (!isGathered())
    return;
  // The gradient of a batch alone is given away before a service sees it; sums of several may be on the host.
  sendsBehind = false;
  for (const StepWord &word : meetOnce({.holdsGradients = announced.size() > 1 && !mayAddInBackward()}))
    sendsBehind |= word.holdsGradients;
  gathersMore = true;
  gatherings.clear();
}

void Session::State::endGathering() {
  weights()->settleLoads(); // a rank that fails from here on begins no more
  gathersMore = false;
  knownOf(announced).gatherings = gatherings;
}

bool Session::State::gatherRest() noexcept {
  try {
    const std::vector<Gathering> &all = knownOf(announced).gatherings;
    if (!device->hasBytes() || gatherings.size() > all.size() ||
        !std::equal(gatherings.begin(), gatherings.end(), all.begin()))
      return false;
    for (size_t next = gatherings.size(); next < all.size(); ++next) {
      reduction->sendNothing(device, all[next].messagesBefore);
      weights()->gatherForOthers(all[next].block);
    }
    gathersMore = false;
    return true;
  } catch (const std::exception &) { // the failure before is what is told
    return false;
  }
}

} // namespace segue::inline runtime
