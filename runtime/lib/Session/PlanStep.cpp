//===- PlanStep.cpp - a session's step, planned for its budget ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlanStep.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/StepTwin.h"

namespace segue::inline runtime {

void planStep(MemoryServices &services, const DeviceRef &device, const std::vector<Module> &modules,
              const SessionOptions &options, size_t microBatches) {
  std::vector<SessionModule> twins;
  for (const Module &module : modules)
    twins.push_back({module.name(), module.binary()});
  SessionOptions same;
  same.maxGradNorm = options.maxGradNorm;
  same.tied = options.tied;
  same.wires = options.wires;
  StepTwin twin(virtualTwin(*device), std::move(twins), std::move(same), microBatches);
  ResidencyPlanner planner(twin.record());
  // What the device holds besides the session is not in the twin's books.
  DeviceMemory &memory = device->memory();
  uint64_t live = memory.liveBytes(Space::DeviceDram), twinLive = twin.device()->memory().liveBytes(Space::DeviceDram);
  uint64_t others = live > twinLive ? live - twinLive : 0, budget = memory.budget(Space::DeviceDram);
  services.follow(planner.profile(), planner.plan(budget > others ? budget - others : 0));
}

} // namespace segue::inline runtime
