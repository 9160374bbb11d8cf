//===- InfeasibleBudget.cpp - a budget that cannot be kept ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/InfeasibleBudget.h"
#include <algorithm>
#include <cstdio>
#include <functional>

namespace segue::inline runtime {

/// The number of holders that a message names.
static constexpr size_t namedHolders = 3;

std::string text(const StepEvent &event) {
  return std::string(name(event.kind)) + (event.label.empty() ? "" : " \"" + event.label + "\"") + " in " +
         std::string(name(event.phase));
}

std::string sizeText(uint64_t bytes) {
  char text[32];
  if (bytes < 1 << 20)
    std::snprintf(text, sizeof(text), "%llu bytes", (unsigned long long)bytes);
  else
    std::snprintf(text, sizeof(text), "%.2f MiB", double(bytes) / 1048576);
  return text;
}

Error errorOf(const InfeasibleBudget &budget) {
  std::string message = std::string(budget.who) + " to " + std::to_string(budget.askedBytes) +
                        " bytes of device_dram: the smallest budget is " + std::to_string(budget.smallestBytes) +
                        " bytes" + std::string(budget.forSteps) + ", set after " + text(budget.setBy) + ", where " + std::string(budget.why);
  std::vector<MemoryHolder> held(budget.held.begin(), budget.held.end());
  std::ranges::stable_sort(held, std::greater(), &MemoryHolder::bytesAtPeak);
  if (held.size() > namedHolders)
    held.resize(namedHolders);
  std::string most;
  for (const MemoryHolder &holder : held)
    if (holder.bytesAtPeak)
      most += (most.empty() ? "" : ", ") + holder.owner.str() + " " + sizeText(holder.bytesAtPeak);
  if (!most.empty())
    message += "; most of that is " + most;
  if (budget.othersBytes)
    message += "; " + sizeText(budget.othersBytes) + " of it are held beside the session";
  return Error(ErrorCode::BudgetInfeasible, message);
}

} // namespace segue::inline runtime
