//===- PhaseOrder.h - which phase of a step may follow which ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One table for the compiler, which writes phases into programs, and for the
// runtime, which verifies them at load and obeys them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_PHASEORDER_H
#define SEGUE_SCHEMAS_PHASEORDER_H

#include <cstdint>

namespace segue::schema {

/// The numbers of `Phase` in program.fbs.
enum class StepPart : int32_t { StepBegin, Forward, Backward, Optimizer, StepEnd };

/// Programs enter these; a session begins and ends steps.
constexpr bool isProgramPhase(StepPart phase) { return phase >= StepPart::Forward && phase <= StepPart::Optimizer; }

/// Returns true if `next` may come after another phase, `now`, of the same step. Backward
/// to forward is the next micro-batch; forward to step_end is an evaluation, backward to
/// step_end a step that accumulates gradients only.
constexpr bool canFollow(StepPart now, StepPart next) {
  switch (next) {
  case StepPart::StepBegin:
    return false;
  case StepPart::Forward:
    return now == StepPart::StepBegin || now == StepPart::Backward;
  case StepPart::Backward:
    return now == StepPart::Forward;
  case StepPart::Optimizer:
    return now == StepPart::Backward;
  case StepPart::StepEnd:
    return isProgramPhase(now);
  }
  return false;
}

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_PHASEORDER_H
