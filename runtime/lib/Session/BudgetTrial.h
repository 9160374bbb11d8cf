//===- BudgetTrial.h - whether a budget lets a session train ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs a session like the one that is asked about, services included, on a twin
// whose device_dram is the budget and not a byte more: its first steps either run,
// or they end where those of the session would. There are no bytes, so that a try
// costs the time of submitting alone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_BUDGETTRIAL_H
#define SEGUE_LIB_SESSION_BUDGETTRIAL_H

#include "PlanStep.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

class BudgetTrial {
public:
  /// Says whether gradients and optimizer states leave in a trial.
  enum class States : uint8_t { Stay, Away };

  /// Makes a trial of `step`. `others` are the bytes of the device that the session does
  /// not hold. Throws Unsupported for a device that can have no twin.
  BudgetTrial(const StepToPlan &step, uint64_t others, StatesLeave states = StatesLeave::Never);

  /// Plays the first steps of the session on a device of so many bytes. Returns false if
  /// memory lacks; throws whatever else a step throws.
  bool trains(uint64_t budgetBytes, States states);
  /// Returns true if steps keep to the budget in any way that the handling of states allows.
  bool trains(uint64_t budgetBytes);

  /// Returns the most bytes that the last successful try held at once, as a budget to try.
  uint64_t peakBytes() const { return peakBytes_; }

  /// Returns the least budget from `tooSmall` on that was seen to be enough, to half a
  /// percent or, where tries take long, as far as they came; nothing if it is memory of
  /// another space that lacks. `enough` is a budget that should be enough.
  std::optional<uint64_t> smallest(uint64_t tooSmall, uint64_t enough);

  /// Returns the error of the last try that failed; nothing if none has.
  const std::optional<Error> &lastError() const { return lastError_; }

  /// Returns the holders of the device where the last try failed.
  const std::vector<MemoryHolder> &holders() const { return holders_; }

private:
  /// Returns the session's services under another cap; they write nothing.
  std::optional<Config> configFor(uint64_t budgetBytes, States states) const;

  const StepToPlan &step_;
  uint64_t others_;
  StatesLeave states_;
  std::string spec_;
  std::optional<Error> lastError_;
  uint64_t peakBytes_ = 0;
  std::vector<MemoryHolder> holders_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_BUDGETTRIAL_H
