//===- BudgetTrial.h - whether a budget lets a session train ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A session like the one that is asked about, services included, on a twin whose
// device_dram is the budget and not a byte more: its first steps either run, or they
// end where those of the session would. Without bytes, so that a try costs the time
// of submitting alone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_BUDGETTRIAL_H
#define SEGUE_LIB_SESSION_BUDGETTRIAL_H

#include "PlanStep.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

class BudgetTrial {
public:
  /// Whether gradients and optimizer states leave in a trial.
  enum class States : uint8_t { Stay, Away };

  /// `others`: bytes of the device that the session does not hold. Throws Unsupported
  /// for a device that can have no twin.
  BudgetTrial(const StepToPlan &step, uint64_t others, StatesLeave states = StatesLeave::Never);

  /// Plays the first steps of the session on a device of so many bytes. False if memory
  /// lacks; throws whatever else a step throws.
  bool trains(uint64_t budgetBytes, States states);
  /// Returns true if steps keep to the budget in any way that the handling of states allows.
  bool trains(uint64_t budgetBytes);

  /// The most bytes that the last try that went well held at once, as a budget to try.
  uint64_t peakBytes() const { return peakBytes_; }

  /// The least budget from `tooSmall` on that was seen to do, to half a percent or,
  /// where tries take long, as far as they came; nothing if memory of another space
  /// is what lacks. `enough`: one that should do.
  std::optional<uint64_t> smallest(uint64_t tooSmall, uint64_t enough);

  /// How the last try that failed ended; none has failed: nothing.
  const std::optional<Error> &lastError() const { return lastError_; }

  /// Who held the device where the last try failed.
  const std::vector<MemoryHolder> &holders() const { return holders_; }

private:
  /// The session's services under another cap; they write nothing.
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
