//===- HintPolicy.cpp - what services are limited to ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HintPolicy.h"
#include <algorithm>

namespace segue::inline runtime {

const RuntimeLimitHints &HintPolicy::evaluate(StepPhase phase, double pressure, bool isFull) {
  int h2d = base_.maxInflightH2d, d2h = base_.maxInflightD2h, window = base_.prefetchWindowCap;
  bool suppress = false;
  // Backward pressure: strictly above the threshold.
  if (phase == StepPhase::Backward && pressure > threshold_) {
    suppress = true;
    window = std::min(window, 1);
  }
  // Optimizer protection.
  if (phase == StepPhase::Optimizer) {
    suppress = true;
    h2d = std::min(h2d, 1);
  }
  // Contention: each full check beyond the allowed ones in a row takes one.
  contention_ = isFull ? contention_ + 1 : 0;
  if (contention_ > contentionChecks_)
    window = std::min(window, std::max(1, pushed_.prefetchWindowCap - 1));
  // Monotone.
  pushed_.maxInflightH2d = std::min(pushed_.maxInflightH2d, h2d);
  pushed_.maxInflightD2h = std::min(pushed_.maxInflightD2h, d2h);
  pushed_.prefetchWindowCap = std::min(pushed_.prefetchWindowCap, window);
  pushed_.suppressSpeculative |= suppress;
  return pushed_;
}

} // namespace segue::inline runtime
