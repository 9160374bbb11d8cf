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
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

std::optional<int> Session::State::rankOf(size_t slot) const {
  if (!isGathered() || !shards || !table.infos()[slot].trained || !streamed->has(slot))
    return std::nullopt;
  return shards->rankOf(slot);
}

bool Session::State::isElsewhere(size_t slot) const {
  std::optional<int> rank = rankOf(slot);
  return rank && *rank != options.collectives->rank();
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
  if (!isGathered() || !shards)
    return;
  uint64_t shared = 0, stays = 0;
  std::string first;
  for (size_t slot = 0; slot < table.size(); ++slot) {
    const ParameterInfo &info = table.infos()[slot];
    if (isElsewhere(slot))
      values[slot] = streamed->standIn(device, slot,
                                       "lives on rank " + std::to_string(shards->rankOf(slot)) +
                                           " alone and comes with its block (zero3); ask there, or save a checkpoint");
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
  if (!isGathered())
    return;
  std::vector<std::string> told = options.collectives->exchange(what, failure);
  for (size_t rank = 0; rank < told.size() && failure.empty(); ++rank)
    if (!told[rank].empty())
      throw Error(ErrorCode::RankFailed,
                  std::string(what) + ": rank " + std::to_string(rank) + " cannot: " + told[rank]);
}

void Session::State::beginGathering() {
  if (!isGathered())
    return;
  sendsBehind = false;
  for (const StepWord &word : meetOnce({.holdsGradients = residency || (services && services->wantsPlan())}))
    sendsBehind |= word.holdsGradients;
  gathersMore = true;
}

} // namespace segue::inline runtime
