//===- InfeasibleBudget.h - a budget that cannot be kept --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// BUDGET_INFEASIBLE in the same words, whoever finds it: the planner, a
// session before its first step, `segue-run fit`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_INFEASIBLEBUDGET_H
#define SEGUE_RUNTIME_PLAN_INFEASIBLEBUDGET_H

#include "segue/runtime/Error.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Plan/StepProfile.h"
#include <span>

namespace segue::inline runtime {

struct InfeasibleBudget {
  /// Names who does not keep to the budget.
  std::string_view who = "no plan keeps";
  uint64_t askedBytes = 0, smallestBytes = 0;
  /// Names the steps that the smallest is for, where that is a guess: " for steps of one batch".
  std::string_view forSteps = "";
  /// The event at which the smallest budget is needed, and the reason why it is no less there.
  const StepEvent &setBy;
  std::string_view why = "nothing more can leave";
  /// The holders of device_dram at that event; the greatest are named.
  std::span<const MemoryHolder> held;
  /// Bytes of the budget that the device holds beside the session.
  uint64_t othersBytes = 0;
};

/// Returns a text such as `save "h" in FORWARD`.
std::string text(const StepEvent &event);
/// Returns a text such as "12 bytes" or "1.50 MiB".
std::string sizeText(uint64_t bytes);

/// Returns the error with a message such as "no plan keeps to 64 bytes of device_dram: the
/// smallest budget is 4096 bytes, set after ..., where nothing more can leave; most of that
/// is ...".
Error errorOf(const InfeasibleBudget &budget);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_INFEASIBLEBUDGET_H
