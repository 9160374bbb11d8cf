//===- PlanStep.cpp - a session's step, planned for its budget ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlanStep.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/StepTwin.h"
#include <algorithm>

namespace segue::inline runtime {

void planStep(MemoryServices &services, const DeviceRef &device, const std::vector<Module> &modules,
              const SessionOptions &options, size_t microBatches, const MeasuredStep *measured) {
  std::vector<SessionModule> twins;
  for (const Module &module : modules)
    twins.push_back({module.name(), module.binary()});
  SessionOptions same;
  same.maxGradNorm = options.maxGradNorm;
  same.tied = options.tied;
  same.wires = options.wires;
  StepTwin twin(virtualTwin(*device), std::move(twins), std::move(same), microBatches);
  StepProfile profile = twin.record();
  if (std::optional<StepProfile> timed = measured ? withMeasured(profile, *measured) : std::nullopt)
    profile = std::move(*timed);
  ResidencyPlanner planner(std::move(profile));
  if (ResidentTensors *residents = services.residents()) {
    residents->leaveAll(); // the plan says what of them is there
    residents->settle();
  }
  // What the device holds besides the session is not in the twin's books.
  DeviceMemory &memory = device->memory();
  uint64_t live = memory.liveBytes(Space::DeviceDram), twinLive = twin.device()->memory().liveBytes(Space::DeviceDram);
  uint64_t others = live > twinLive ? live - twinLive : 0, budget = memory.budget(Space::DeviceDram);
  budget = budget > others ? budget - others : 0;
  // Certified: what was planned is played, and what it takes counts.
  for (uint64_t target = budget;;) {
    const ResidencyPlan &plan = planner.plan(target);
    uint64_t peak = twin.play(planner.profile(), plan).peakBytes;
    if (peak <= budget)
      return services.follow(planner.profile(), plan);
    target = plan.peakBytes - std::min(plan.peakBytes, peak - budget);
  }
}

} // namespace segue::inline runtime
