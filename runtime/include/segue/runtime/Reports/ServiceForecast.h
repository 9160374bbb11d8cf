//===- ServiceForecast.h - what services would do in a step -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step by the config of a run, before it runs: the session of the run trains on a
// twin of the device, in virtual time, and says what its services did in its third
// step. `segue-run fit --config FILE`.
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H
#define SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

/// Plays a step of `device`, a spec that is not opened. Returns an object with `cap_bytes` (of Conductor, or else of
/// the device), `certified_bytes` (Session::certify), `peak_bytes`, `seconds`, `out_bytes` and `in_bytes` (over the
/// link) of the step, and for each service that the config enables its record of the step: the keys of its telemetry
/// under `activation_stagehand` (with its `mode`), `weight_stagehand` (with its ring), `state_stagehand` (where
/// gradients and states leave) and `conductor`. Selective Precision is left out, since a twin has no values. Throws
/// ConfigError, and what the session of such a run throws before its first step or in it, such as BudgetInfeasible with
/// the smallest budget.
Json forecastServices(std::string_view device, const std::vector<SessionModule> &modules, const SessionOptions &options,
                      size_t microBatches, const Config &config);

/// Returns the forecast in lines of text.
std::string textOfServices(const Json &forecast);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_SERVICEFORECAST_H
