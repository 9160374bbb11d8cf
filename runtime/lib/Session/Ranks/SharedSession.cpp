//===- SharedSession.cpp - what of a session is whose ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SharedSession.h"
#include "../SilentConfig.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightStagehandConfig.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

std::unique_ptr<SessionRanks> Collectives::join(SessionState &session) {
  return std::make_unique<SharedSession>(session);
}

SharedSession::SharedSession(SessionState &session)
    : SessionRanks(session.options.collectives, session.options.sharding), s(session) {
  compiledPrograms_ = programsAsJson();
}

void SharedSession::share() {
  wantRing();
  auto updatesElsewhere = [](const Module &module) { return module.updatesInBackward() || module.updatesInForward(); };
  if (!isSharded() || std::ranges::any_of(s.modules, updatesElsewhere)) // which is refused
    return;
  if (s.options.shards) { // the modules are shares
    shards_ = s.options.shards;
    return leaveModules(s.modules);
  }
  int ranks = group_->ranks();
  shards_ = isPipelined()
               ? std::make_shared<ShardedStates>(s.modules, s.table, PipelineStages(s.modules, s.options.stages, ranks))
               : std::make_shared<ShardedStates>(s.modules, s.table, ranks);
  for (size_t m = 0; m < s.modules.size(); ++m)
    s.modules[m] = shards_->shareOf(s.modules[m], m, s.table, group_->rank(), sharding_);
}

void SharedSession::wantRing() {
  if (!isGathered() || s.options.weights)
    return;
  Config config = s.options.config.value_or(Config());
  ConfigReader section = config.section(WeightStagehandConfig::section);
  WeightStagehandConfig ring = WeightStagehandConfig::read(section);
  if (!ring.enabled)
    throw Error(ErrorCode::InvalidArgument, "memory.stagehand.stagehand_enabled: is false, and parameters of other "
                                            "ranks come by Weight Stagehand's ring (zero3); leave it out, or train "
                                            "with zero1");
  if (ring.isGiven)
    return;
  s.options.config = withRing(s.options.config);
}

void SharedSession::checkCanBeShared() const {
  auto refuse = [](const char *what) { throw Error(ErrorCode::Unsupported, what); };
  if (s.updatesInBackward())
    refuse("several ranks add their gradients up before the optimizer, and a module was compiled with its optimizer in "
           "backward; compile it without in-backward");
  if (isSharded() && std::ranges::any_of(s.plans, &OptimizerPlan::isInForward))
    refuse("ranks that have states of some parameters alone send the others what they have updated, and a module was "
           "compiled with its optimizer in forward; compile it without in-forward");
}

void SharedSession::leaveElsewhere() {
  checkCanBeShared();
  if (!(isGathered() || isPipelined()) || !shards_)
    return;
  for (size_t slot = 0; slot < s.table.size(); ++slot)
    if (isElsewhere(slot))
      s.values[slot] = s.streamed->standIn(s.device, slot,
                                       "lives on rank " + std::to_string(shards_->rankOf(slot)) +
                                           (isPipelined() ? " alone, which runs its module (pipeline)"
                                                          : " alone and comes with its block (zero3)") +
                                           "; ask there, or save a checkpoint");
  if (isPipelined())
    return;
  uint64_t byBlock = 0, byModule = 0;
  std::string first;
  for (size_t slot = 0; slot < s.table.size(); ++slot) {
    const ParameterInfo &info = s.table.infos()[slot];
    (s.streamed->has(slot) ? byBlock : byModule) += info.trained ? info.desc.spanBytes() : 0;
    if (info.trained && !s.streamed->has(slot) && first.empty())
      first = info.key;
  }
  if (!byBlock)
    throw Error(ErrorCode::Unsupported, "no trained parameter comes with one block of its programs, as they have no "
                                        "blocks, or touch all parameters in several: nothing can be gathered ahead of "
                                        "its need (zero3). Train with zero1");
  if (byModule && s.options.log)
    s.options.log("zero3: " + std::to_string(byModule) + " bytes of parameters come before their module runs and not "
                "with a block, as \"" + first + "\" is touched by several blocks or outside of them");
}

//===----------------------------------------------------------------------===//
// Who has what
//===----------------------------------------------------------------------===//

void SharedSession::leaveModules(std::vector<Module> &given) const {
  if (!isPipelined() || !shards_)
    return;
  for (size_t m = 0; m < given.size(); ++m)
    if (!shards_->stages()->has(rank(), m))
      given[m] = given[m].elsewhere();
}

std::pair<size_t, size_t> SharedSession::ownModules() const {
  if (!isPipelined() || !shards_)
    return {0, s.modules.size()};
  return {shards_->stages()->begin(rank()), shards_->stages()->end(rank())};
}

std::optional<int> SharedSession::rankOf(size_t slot) const {
  if (isPipelined() && shards_)
    return shards_->rankOf(slot);
  if (!isGathered() || !shards_ || !s.table.infos()[slot].trained)
    return std::nullopt;
  return shards_->rankOf(slot);
}

bool SharedSession::isElsewhere(size_t slot) const {
  return rankOf(slot) && !shards_->has(rank(), slot);
}

bool SharedSession::hasState(const std::string &key) const {
  return shards_ ? shards_->states().contains(key) : s.optimizerState.contains(key);
}

size_t SharedSession::stateCount() const { return shards_ ? shards_->states().size() : s.optimizerState.size(); }

} // namespace segue::inline runtime
