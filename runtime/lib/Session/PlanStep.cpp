//===- PlanStep.cpp - a session's step, planned for its budget ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The twin holds what the session will: with Weight Stagehand, a ring of as many
// slots, through which parameters come. What the device holds besides is the
// budget's, and not the plan's.
//
//===----------------------------------------------------------------------===//

#include "PlanStep.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Memory/DramCompactor.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Plan/RingSlots.h"
#include "segue/runtime/Plan/StepTwin.h"
#include <algorithm>

namespace segue::inline runtime {

/// `slots`: of the ring, where there is one.
static StepTwin twinOf(const StepToPlan &step, const WeightStreamer *weights, int64_t slots,
                       StepTwin::Homes homes = StepTwin::Homes::Host) {
  std::vector<SessionModule> modules;
  for (const Module &module : step.modules)
    modules.push_back({module.name(), module.binary()});
  SessionOptions same;
  same.maxGradNorm = step.options.maxGradNorm;
  same.tied = step.options.tied;
  same.wires = step.options.wires;
  std::optional<TwinWeights> ring;
  if (weights)
    ring = TwinWeights{weights->config(), slots};
  return StepTwin(virtualTwin(*step.device), std::move(modules), std::move(same), step.microBatches, std::move(ring),
                  homes);
}

static uint64_t liveBytes(Device &device) { return device.memory().liveBytes(Space::DeviceDram); }

/// Before the first plan: moves what is live in device_dram together, since slots that
/// were given back leave holes between those that stay.
static void gatherFree(Device &device) {
  DramCompactor *compactor = device.dramCompactor();
  if (!compactor || device.memory().addressFigures().placed)
    return;
  FreeMemory free = device.freeMemory(Space::DeviceDram);
  // What may not move can be in the way of the last parts.
  static constexpr uint64_t parts = 16;
  for (uint64_t part = parts; part && free.bytes / parts * part > free.largestRange; --part)
    if (compactor->makeRoom(free.bytes / parts * part, /*alignment=*/1))
      return;
}

/// Gives slots of the ring back where a step goes faster with fewer, as less leaves.
static void weighRing(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured) {
  WeightStreamer &weights = *services.weights();
  services.beginAgain();
  dropCaches(*step.device);
  uint64_t staging = weights.stagingBytes(/*anyForm=*/services.precision() != nullptr);
  uint64_t budget = step.device->memory().budget(Space::DeviceDram);
  int64_t slots = weights.slots();
  int64_t chosen = fastestSlots(StepWithRing{.twin = [&](int64_t slots) { return twinOf(step, &weights, slots); },
                                             .slots = slots,
                                             .budgetBytes = budget - std::min(budget, staging),
                                             .liveBytes = liveBytes(*step.device),
                                             .measured = measured});
  if (chosen == slots || !weights.makeRoom(weights.ringBytes() / uint64_t(slots) * uint64_t(slots - chosen)))
    return;
  if (step.options.log)
    step.options.log("the plan keeps " + std::to_string(weights.slots()) + " of the " + std::to_string(slots) +
                     " slots of weights that fit: so less leaves, and a step is faster");
}

void planStep(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured) {
  WeightStreamer *weights = services.weights();
  Device &device = *step.device;
  preparePrograms(step.device, step.modules);
  if (weights && weights->slots() > weights->leastSlots())
    weighRing(services, step, measured);
  for (;;) {
    StepTwin twin = twinOf(step, weights, weights ? weights->slots() : 0);
    StepProfile profile = twin.record();
    if (std::optional<StepProfile> timed = measured ? withMeasured(profile, *measured) : std::nullopt)
      profile = std::move(*timed);
    ResidencyPlanner planner(std::move(profile));
    services.beginAgain(); // the plan says what is there when a step begins
    dropCaches(device);
    gatherFree(device);
    FreeRoom room{device.freeRanges(Space::DeviceDram), liveBytes(device)};
    uint64_t staging = weights ? weights->stagingBytes(/*anyForm=*/services.precision() != nullptr) : 0;
    uint64_t budget = device.memory().budget(Space::DeviceDram), left = budget - std::min(budget, staging);
    CertifiedPlan found = certify(twin, planner, left, &room);
    if (found.bytes <= left)
      return services.follow(planner.profile(), *found.plan, std::move(found.addresses));
    uint64_t smallest = found.bytes + staging;
    // The ring took what there was; with fewer slots it is slower.
    if (weights && weights->makeRoom(smallest - budget))
      continue;
    uint64_t twinBytes = found.played.allocations.bytesBefore;
    throw errorOf({.askedBytes = budget,
                   .smallestBytes = smallest,
                   .setBy = planner.profile().events[planner.tightestEvent()],
                   .held = found.played.holders,
                   .othersBytes = staging + room.liveBytes - std::min(room.liveBytes, twinBytes)});
  }
}

/// The smallest budget that is named is less than so much above the bound.
static constexpr int64_t grainBytes = 256;

void checkStep(MemoryServices &services, const StepToPlan &step) {
  const WeightStreamer *weights = services.weights();
  int64_t slots = weights ? weights->leastSlots() : 0;
  StepTwin twin = twinOf(step, weights, slots);
  StepProfile profile = twin.record();
  int64_t rest = int64_t(twin.restBytes()), twinRing = twin.weights() ? int64_t(twin.weights()->ringBytes()) : 0;
  // Slots of the ring can be given back, and a batch that the caller has put there
  // is in the twin's books.
  auto others = [&] {
    return int64_t(liveBytes(*step.device)) - int64_t(weights ? weights->ringBytes() : 0) - int64_t(step.placedBytes) -
           rest;
  };
  ResidencyPlan savedAway;
  for (uint32_t gap = 0; gap < profile.gaps.size() && services.spills(); ++gap)
    if (profile.gaps[gap].resident == noIndex)
      savedAway.away.push_back({gap, profile.gaps[gap].needed});
  std::ranges::stable_sort(savedAway.away, {}, &Departure::returns);
  // A plan cannot move what was saved twice; who shares records may.
  int64_t shared = 0;
  for (const SharedSave &save : profile.sharedSaves)
    shared += services.spills() ? int64_t(save.bytes) : 0;
  int64_t budget = int64_t(std::min<uint64_t>(step.device->memory().budget(Space::DeviceDram), uint64_t(1) << 60));
  auto fits = [&](StepTwin &twin, int64_t bytes) {
    return bytes > 0 && twin.runsWithin(profile, savedAway, uint64_t(bytes));
  };
  auto expect = [&] { services.expect(profile, int64_t(liveBytes(*step.device)) - rest - twinRing); };
  if (fits(twin, budget - others() + shared))
    return expect();
  dropCaches(*step.device); // sessions before this one may have left some
  uint64_t most = 0;
  for (const StepEvent &event : profile.events)
    most = std::max(most, event.peakBytes);
  // In grains: what does not fit, and what does.
  int64_t low = std::max<int64_t>(budget - others() + shared, 0) / grainBytes;
  int64_t high = std::max(low, int64_t(most) / grainBytes) + 1;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    StepTwin again = twinOf(step, weights, slots);
    again.record();
    (fits(again, middle * grainBytes) ? high : low) = middle;
  }
  int64_t smallest = high * grainBytes + others() - shared;
  if (smallest <= budget)
    return expect();
  std::vector<uint64_t> least = leastWithSavedAway(profile);
  size_t tightest = size_t(std::ranges::max_element(least) - least.begin());
  StepTwin last = twinOf(step, weights, slots);
  last.record();
  StepTwin::Played played = last.play(profile, savedAway);
  throw errorOf({.who = "no step keeps",
                 .askedBytes = uint64_t(budget),
                 .smallestBytes = uint64_t(smallest),
                 .setBy = profile.events[tightest],
                 .why = services.spills() ? "no saved tensor is left that could leave; a plan moves gradients and "
                                            "optimizer states, too (\"mode\": \"planned\")"
                                          : "nothing leaves; turn Activation Stagehand on",
                 .held = played.holders,
                 .othersBytes = uint64_t(std::max<int64_t>(others(), 0))});
}

void rehearseStep(MemoryServices &services, const StepToPlan &step) {
  const WeightStreamer *weights = services.weights();
  StepTwin twin = twinOf(step, weights, weights ? weights->slots() : 0, StepTwin::Homes::Device);
  twin.run(); // prepares programs
  dropCaches(*twin.device());
  int64_t others = int64_t(liveBytes(*step.device) - step.placedBytes) - int64_t(liveBytes(*twin.device()));
  others = std::max<int64_t>(others, 0);
  double seconds = twin.run(); // and keeps for reuse what all but the first step find
  uint64_t budget = step.device->memory().budget(Space::DeviceDram);
  MemoryServicesOptions options;
  options.twin = {
      .computeSeconds = seconds, .link = twin.link(), .budgetBytes = budget - std::min(budget, uint64_t(others))};
  options.next = &twin.events();
  options.warn = [](const std::string &) {}; // the step itself says it
  auto played = MemoryServices::create(twin.device(), services.rehearsal(uint64_t(others)), std::move(options));
  twin.run(played.get());
  services.prepare(played->rehearsed());
}

} // namespace segue::inline runtime
