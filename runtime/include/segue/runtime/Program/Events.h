//===- Events.h - what services are told ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The session and the executor report the course of a step to one sink. The
// memory services will be behind it; without a sink the cost is one null check
// per event. Calls come from the thread that runs the step and must be short.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_EVENTS_H
#define SEGUE_RUNTIME_PROGRAM_EVENTS_H

#include "segue/runtime/Program/Program.h"

namespace segue::inline runtime {

/// The values of schemas/program.fbs.
enum class Phase : int8_t { StepBegin = 0, Forward = 1, Backward = 2, Optimizer = 3, StepEnd = 4 };

std::string_view name(Phase phase);

class EventSink {
public:
  virtual ~EventSink() = default;

  /// The session enters a phase; once for all modules of the phase.
  virtual void onPhase(Phase phase) {}
  virtual void onBlockBegin(const Program &program, std::string_view block) {}
  virtual void onBlockEnd(const Program &program) {}
  /// Output `output` (role saved) has its final value.
  virtual void onSave(const Program &program, uint32_t output) {}
  /// Input `input` (role saved) is about to be read.
  virtual void onRestore(const Program &program, uint32_t input) {}
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_EVENTS_H
