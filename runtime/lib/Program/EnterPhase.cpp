//===- EnterPhase.cpp - the order of phases at run time -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The order inside of one program is verified when its file is loaded. Which
// program comes after which is the caller's doing, and is seen here.
//
//===----------------------------------------------------------------------===//

#include "BinaryImage.h"
#include "PhaseOrder.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Events.h"

namespace segue::inline runtime {

bool canFollow(Phase now, Phase next) { return schema::canFollow(schema::StepPart(now), schema::StepPart(next)); }

void EventSink::enter(Phase phase) {
  if (phase_ == phase || apart_)
    return;
  if (inStep_ && phase != Phase::StepBegin && !canFollow(*phase_, phase)) {
    std::string allowed;
    for (Phase other : {Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::StepEnd})
      if (canFollow(*phase_, other))
        allowed += (allowed.empty() ? "" : " or ") + std::string(name(other));
    throw Error(ErrorCode::PhaseOrder,
                std::string(name(phase)) + " cannot follow " + std::string(name(*phase_)) + "; " + allowed + " can");
  }
  phase_ = phase;
  inStep_ = phase == Phase::StepBegin || (inStep_ && phase != Phase::StepEnd);
  receive(event::PhaseBegin{phase});
}

void enterPhase(const ProgramInfo &program, Phase phase, EventSink &events) {
  try {
    events.enter(phase);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::PhaseOrder)
      throw;
    throw error.within("program \"" + program.name + "\"");
  }
}

void enterPhaseOf(const Program &program, EventSink *events) {
  const ProgramInfo &info = program.image()->programs()[program.index()];
  if (events && info.beginsWithPhase)
    enterPhase(info, info.phases.front(), *events);
}

} // namespace segue::inline runtime
