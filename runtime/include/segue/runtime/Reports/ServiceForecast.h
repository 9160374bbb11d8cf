//===- ServiceForecast.h - what services would do in a step -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step by the config of a run, before it runs: what the watermarks or the plan
// move and wait for, the ring of Weight Stagehand, the blocks in which Conductor
// suppresses what is ahead, the tensors that would be computed again. `segue-run
// plan --config FILE`.
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H
#define SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

/// As an object with an entry per service that the config enables:
/// `activation_stagehand`, `weight_stagehand`, `conductor`; `cap_bytes` is that of
/// Conductor or else of the device, `peak_bytes` and `seconds` those of the step.
/// Throws ConfigError, BudgetInfeasible for a plan that does not keep to the cap,
/// and what StepTwin throws.
Json forecastServices(const Device &device, const std::vector<SessionModule> &modules, const SessionOptions &options,
                      size_t microBatches, const Config &config);

/// The forecast in lines of text.
std::string textOfServices(const Json &forecast);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H
