//===- ReplayActivation.cpp - logs of Activation Stagehand ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Services/ActivationCalls.h"

namespace segue::tool {

static std::vector<int64_t> freeSlabs(const ActivationStagehand &policy) {
  std::vector<int64_t> free;
  for (size_t i = 0; i < policy.hostBuffers().classes(); ++i)
    free.push_back(policy.hostBuffers().freeSlabs(i));
  return free;
}

static std::unique_ptr<Replayer> createActivationReplayer(const ReplayLog &log) {
  ConfigReader reader = log.readConfig();
  return replay(log, ActivationStagehand(ActivationStagehandConfig::read(reader)),
                std::tuple_cat(activation_calls::all, std::tuple(PolicyCall("pool", &freeSlabs, AnswerAs{"free"}))),
                [](ConfigReader &config, EventReader &) { ActivationStagehandConfig::read(config); });
}

ReplayService replayOfActivation() { return {"activation", createActivationReplayer}; }

} // namespace segue::tool
