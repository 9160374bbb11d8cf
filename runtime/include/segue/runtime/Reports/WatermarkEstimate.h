//===- WatermarkEstimate.h - a step by watermarks, in virtual time -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What Activation Stagehand would do in a step: the policy itself decides, on
// the events and the memory curve of a StepProfile, and a model of the compute
// queue and the two directions of the link tells what it costs. To be set
// beside the plan of ResidencyPlanner for the same step.
//
// A device buffer that leaves is counted until its copy out has ended, as the
// watermarks count it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_WATERMARKESTIMATE_H
#define SEGUE_RUNTIME_REPORTS_WATERMARKESTIMATE_H

#include "segue/runtime/Plan/StepProfile.h"
#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

struct WatermarkOutcome {
  /// The most bytes of device_dram live at once.
  uint64_t peakBytes = 0;
  /// Per event: the most until the next.
  std::vector<uint64_t> curve;
  /// The whole step, and what of it the compute queue waits.
  double seconds = 0, stallSeconds = 0;
  /// The line that the policy would write.
  Json telemetry;
};

/// Gaps of saved tensors with bytes to copy out are records of the policy; it leaves others
/// where they are. Throws what the policy throws.
WatermarkOutcome estimateWatermarks(const StepProfile &profile, const ActivationStagehandConfig &config);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_WATERMARKESTIMATE_H
