//===- MeasuredStep.h - what a step really takes ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A profile is recorded with the speeds of a device's spec. Once steps have run,
// a plan is made again with what its blocks took: copies then have the time to
// hide in that they really have.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_MEASUREDSTEP_H
#define SEGUE_RUNTIME_PLAN_MEASUREDSTEP_H

#include "segue/runtime/Plan/StepProfile.h"
#include <optional>
#include <vector>

namespace segue::inline runtime {

/// The seconds of computation of each part of a step, in the order in which parts begin: of
/// each block, without a block that begins within it, and of each phase without its blocks.
struct MeasuredStep {
  std::vector<double> blocks, phases;
};

/// Returns `profile` with the times that were measured, spread over the events of a part as
/// before; nothing if the profile has other parts.
std::optional<StepProfile> withMeasured(const StepProfile &profile, const MeasuredStep &measured);

/// Returns the most by which the time of a part differs between two profiles of one step,
/// relative to the planned time. Parts below a hundredth of the step do not count.
double driftOf(const StepProfile &planned, const StepProfile &measured);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_MEASUREDSTEP_H
