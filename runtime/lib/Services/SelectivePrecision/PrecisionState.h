//===- PrecisionState.h - what Selective Precision remembers ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_SELECTIVEPRECISION_PRECISIONSTATE_H
#define SEGUE_LIB_SERVICES_SELECTIVEPRECISION_PRECISIONSTATE_H

#include "segue/runtime/Services/SelectivePrecision.h"
#include <array>

namespace segue::inline runtime {

struct SelectivePrecision::Unit {
  std::optional<Precision> forced;
  Precision precision = Precision::Bf16;
  /// True if a decision has seen it.
  bool decided = false;
  std::optional<int64_t> lastSwitch;
  /// The step until which decisions find it quarantined.
  int64_t quarantinedUntil = 0;
  /// The relative magnitudes, oldest first.
  std::deque<double> history;
  /// The error of each form; that of bf16 is not used.
  std::array<std::optional<double>, 3> errors;
};

struct SelectivePrecision::Watch {
  /// The step of the decision.
  int64_t step = 0;
  double limit = 0;
  int64_t streak = 0;
  std::vector<size_t> units;
};

struct SelectivePrecision::State {
  /// The step of the last event.
  int64_t step = -1;
  std::vector<Unit> units;
  /// The finite losses, oldest first.
  std::deque<double> losses;
  /// The watches; the most recent is last.
  std::vector<Watch> watches;
  int64_t rollbacks = 0, skipped = 0, silent = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_SELECTIVEPRECISION_PRECISIONSTATE_H
