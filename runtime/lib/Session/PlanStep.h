//===- PlanStep.h - a session's step, planned for its budget ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_PLANSTEP_H
#define SEGUE_LIB_SESSION_PLANSTEP_H

#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Session/Session.h"

namespace segue::inline runtime {

/// Makes a twin of a session of these modules and options on `sim:virtual`, plans
/// a step of so many micro-batches for what the device's budget leaves to the
/// session, and has `services` follow the plan; with the times that were
/// `measured`, where they are of such a step. Throws BudgetInfeasible, and
/// Unsupported for a device that nothing can leave; the plan in force stays then.
void planStep(MemoryServices &services, const DeviceRef &device, const std::vector<Module> &modules,
              const SessionOptions &options, size_t microBatches, const MeasuredStep *measured = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_PLANSTEP_H
