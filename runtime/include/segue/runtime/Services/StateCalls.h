//===- StateCalls.h - what logs of State Stagehand hold ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Logs hold what StateStagehand is told as these events; docs/specs/state-stagehand.md has
// them as a table.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_STATECALLS_H
#define SEGUE_RUNTIME_SERVICES_STATECALLS_H

#include "segue/runtime/Replay/PolicyCall.h"
#include "segue/runtime/Services/StateStagehand.h"
#include "segue/runtime/Services/StateStagehandConfig.h"
#include <span>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<StateEvent::Kind>();
void visitFields(CallFields &fields, StateEvent &event);
Json answerOf(const StateStagehand &policy, const StateStagehand::Moves &moves);
/// Returns the limits that a log's config stands for: its watermarks, or none.
StateLimits limitsOf(const StateStagehandConfig &config);

namespace state_calls {

inline constexpr PolicyCall event("event", &StateStagehand::tell, AnswerOf(), "");
inline constexpr std::tuple all{event};

} // namespace state_calls

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_STATECALLS_H
