//===- ReplayState.cpp - logs of State Stagehand --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Services/StateCalls.h"

namespace segue::tool {

static std::unique_ptr<Replayer> createStateReplayer(const ReplayLog &log) {
  ConfigReader reader = log.readConfig();
  return replay(log, StateStagehand(limitsOf(StateStagehandConfig::read(reader))), state_calls::all,
                [](ConfigReader &config, EventReader &) { StateStagehandConfig::read(config); });
}

ReplayService replayOfState() { return {"state", createStateReplayer}; }

} // namespace segue::tool
