//===- HintPolicy.h - what services are limited to --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rules of Conductor that turn phase, pressure and contention into hints.
// Within a step limits only tighten; STEP_BEGIN starts again from the base.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_HINTPOLICY_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_HINTPOLICY_H

#include "segue/runtime/Services/ConductorTypes.h"

namespace segue::inline runtime {

class HintPolicy {
public:
  HintPolicy(RuntimeLimitHints base, double backwardPressureThreshold, int64_t contentionChecks)
      : threshold_(backwardPressureThreshold), contentionChecks_(contentionChecks), pushed_(std::move(base)),
        base_(pushed_) {}

  /// Begins a step, with hints that hold until something tightens them.
  void reset(RuntimeLimitHints base) {
    base_ = std::move(base);
    pushed_ = base_;
    contention_ = 0;
  }

  /// Returns the hints to push now. `pressure` is the ratio of allocated or planned bytes
  /// to the hard cap; `isFull` says that every slot of both directions is in use.
  const RuntimeLimitHints &evaluate(StepPhase phase, double pressure, bool isFull);

  const RuntimeLimitHints &pushed() const { return pushed_; }
  int64_t contention() const { return contention_; }
  const RuntimeLimitHints &base() const { return base_; }

private:
  double threshold_;
  int64_t contentionChecks_;
  int64_t contention_ = 0;
  RuntimeLimitHints pushed_, base_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_HINTPOLICY_H
