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
#include "BudgetTrial.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Session/RingSlots.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include <algorithm>
#include <iterator>
#include <set>

namespace segue::inline runtime {

static std::vector<SessionModule> given(std::span<const Module> modules) {
  std::vector<SessionModule> given;
  for (const Module &module : modules)
    given.push_back({module.name(), module.binary()});
  return given;
}

TwinParts twinParts(const StepToPlan &step) {
  TwinParts parts{.modules = given(step.modules), .options = {}, .batches = 0};
  std::vector<const std::vector<Module> *> others;
  for (const std::vector<Module> *modules : step.batches) {
    size_t sizes = 0;
    if (modules != &step.modules) {
      sizes = size_t(std::ranges::find(others, modules) - others.begin()) + 1;
      if (sizes > others.size()) {
        others.push_back(modules);
        parts.batches.otherSizes.push_back(given(*modules));
      }
    }
    parts.batches.sizes.push_back(sizes);
  }
  parts.options.maxGradNorm = step.options.maxGradNorm;
  parts.options.tied = step.options.tied;
  parts.options.wires = step.options.wires;
  // Where gradients go to their owners, they are gone in the midst of backward, and parameters are not there before they
  // are gathered; otherwise what is sent stays where it is.
  // A pipeline has other modules, and several batches under way.
  if (step.options.sharding >= Sharding::Gradients) {
    parts.options.collectives = step.options.collectives;
    parts.options.sharding = step.options.sharding;
    parts.options.shards = step.shards;
  }
  return parts;
}

void takeRanks(SessionOptions &options, const DeviceRef &device) {
  if (options.collectives)
    options.collectives = options.collectives->twin(device);
}

namespace {
/// Who decides on the slots of a ring in mid-step.
enum class Ring : int8_t { Watermarks, Kept };
} // namespace

/// Makes a twin of the session. `slots` are those of the ring, if there is one.
static StepTwin twinOf(const StepToPlan &step, const WeightStreamer *weights, int64_t slots, Ring ringIs,
                       StepTwin::Homes homes = StepTwin::Homes::Host) {
  auto [modules, options, batches] = twinParts(step);
  std::optional<TwinWeights> ring;
  if (weights)
    ring = TwinWeights{.config = weights->config(), .slots = slots, .isKept = ringIs == Ring::Kept};
  else if (options.sharding == Sharding::Parameters)
    options.sharding = Sharding::Gradients; // nothing could be gathered
  StepTwin twin(virtualTwin(*step.device), std::move(modules), std::move(options), std::move(batches), std::move(ring),
                homes);
  twin.device()->transfer().leaveToMessages(step.device->transfer().leftToMessages());
  return twin;
}

static uint64_t liveBytes(Device &device) { return device.memory().liveBytes(Space::DeviceDram); }

/// Moves what is live in device_dram together before the first plan, since slots that were
/// given back leave holes between those that stay.
static void gatherFree(Device &device) {
  DramCompactor *compactor = device.dramCompactor();
  if (!compactor || device.memory().addressFigures().placed)
    return;
  FreeMemory free = device.freeMemory(Space::DeviceDram);
  // Memory that may not move can be in the way of the last parts.
  static constexpr uint64_t parts = 16;
  for (uint64_t part = parts; part && free.bytes / parts * part > free.largestRange; --part)
    if (compactor->makeRange(free.bytes / parts * part, /*alignment=*/1))
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
  auto twin = [&](int64_t slots) { return twinOf(step, &weights, slots, Ring::Kept); };
  int64_t chosen = fastestSlots(StepWithRing{.twin = twin,
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

/// Returns the room of a device, as it is once `givenBack` are given back.
static FreeRoom roomOf(Device &device, std::span<const HeldBlock> givenBack = {}) {
  FreeRoom room{device.freeRanges(Space::DeviceDram, givenBack), liveBytes(device)};
  for (const HeldBlock &block : givenBack)
    room.liveBytes -= device.takenBytes(Space::DeviceDram, block.bytes, /*alignment=*/1);
  return room;
}

/// Returns true if what is free in `least` is free in `room`, too.
static bool isWithin(const FreeRoom &least, const FreeRoom &room) {
  auto isFree = [&](const AddressRange &range) {
    return std::ranges::any_of(room.ranges, [&](const AddressRange &free) {
      return free.begin <= range.begin && range.end() <= free.end();
    });
  };
  return room.liveBytes <= least.liveBytes && std::ranges::all_of(least.ranges, isFree);
}

/// The bytes of the budget that are left to a plan: the ring's staging is not in its twin.
static uint64_t leftToPlan(MemoryServices &services, const StepToPlan &step) {
  WeightStreamer *weights = services.weights();
  uint64_t staging = weights ? weights->stagingBytes(/*anyForm=*/services.precision() != nullptr) : 0;
  uint64_t budget = step.device->memory().budget(Space::DeviceDram);
  return budget - std::min(budget, staging);
}

std::vector<Executor> preparePrograms(const StepToPlan &step) {
  std::vector<Executor> programs = preparePrograms(step.device, step.modules);
  std::set<const std::vector<Module> *> others(step.batches.begin(), step.batches.end());
  others.erase(&step.modules);
  for (const std::vector<Module> *modules : others)
    std::ranges::move(preparePrograms(step.device, *modules), std::back_inserter(programs));
  return programs;
}

static StepProfile profileOf(StepTwin &twin, const MeasuredStep *measured) {
  StepProfile profile = twin.record();
  std::optional<StepProfile> timed = measured ? withMeasured(profile, *measured) : std::nullopt;
  return timed ? *std::move(timed) : std::move(profile);
}

TriedPlan::TriedPlan(const StepToPlan &step, const WeightStreamer *weights, const MeasuredStep *measured)
    : slots(weights ? weights->slots() : 0), twin(twinOf(step, weights, slots, Ring::Kept)),
      planner(profileOf(twin, measured)) {}

void TriedPlan::certifyFor(FreeRoom free, uint64_t bytes, Search search) {
  room = std::move(free);
  found = certify(twin, planner, bytes, &room, search);
}

/// The error of a step for which no plan was found.
static Error refusal(const TriedPlan &tried, MemoryServices &services, const StepToPlan &step) {
  uint64_t budget = step.device->memory().budget(Space::DeviceDram), staging = budget - leftToPlan(services, step);
  uint64_t twinBytes = tried.found.played.allocations.bytesBefore, smallest = tried.found.bytes + staging;
  if (services.weights()) // a ring of another budget leaves its room elsewhere, at another distance from where blocks may begin
    smallest = (smallest + 2 * (defaultAlignment - 1)) / defaultAlignment * defaultAlignment;
  return errorOf({.askedBytes = budget,
                  .smallestBytes = smallest,
                  .setBy = tried.planner.profile().events[tried.planner.tightestEvent()],
                  .held = tried.found.played.holders,
                  .othersBytes = staging + tried.room.liveBytes - std::min(tried.room.liveBytes, twinBytes)});
}

std::unique_ptr<TriedPlan> tryPlan(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured) {
  auto tried = std::make_unique<TriedPlan>(step, services.weights(), measured);
  dropCaches(*step.device);
  uint64_t left = leftToPlan(services, step);
  tried->certifyFor(roomOf(*step.device, services.blocksThatLeave()), left, Search::Once);
  return tried->found.bytes <= left ? std::move(tried) : nullptr;
}

std::unique_ptr<TriedPlan> tryOtherStep(MemoryServices &services, const StepToPlan &step) {
  WeightStreamer *weights = services.weights();
  auto tried = std::make_unique<TriedPlan>(step, weights, nullptr);
  dropCaches(*step.device);
  FreeRoom room = roomOf(*step.device, services.blocksThatLeave());
  uint64_t free = 0, left = leftToPlan(services, step);
  for (const AddressRange &range : room.ranges)
    free += range.bytes;
  if (!room.ranges.empty())
    room.ranges = {{room.ranges.back().end() - free, free}};
  tried->certifyFor(std::move(room), left, Search::Least);
  if (tried->found.bytes <= left)
    return tried;
  if (!weights || weights->slots() == weights->leastSlots())
    throw refusal(*tried, services, step);
  return nullptr;
}

PlannedStep planStep(MemoryServices &services, const StepToPlan &step, const MeasuredStep *measured,
                     std::unique_ptr<TriedPlan> tried) {
  WeightStreamer *weights = services.weights();
  Device &device = *step.device;
  std::vector<Executor> programs = preparePrograms(step);
  if (weights)
    weights->giveUpRoom();
  if (weights && weights->slots() > weights->leastSlots())
    weighRing(services, step, measured);
  for (;;) {
    bool isTried = tried && tried->slots == (weights ? weights->slots() : 0);
    if (!isTried)
      tried = std::make_unique<TriedPlan>(step, weights, measured);
    services.beginAgain(); // the plan says what is there when a step begins
    dropCaches(device);
    gatherFree(device);
    FreeRoom room = roomOf(device);
    uint64_t budget = device.memory().budget(Space::DeviceDram), left = leftToPlan(services, step);
    if (isTried && isWithin(tried->room, room))
      tried->room = std::move(room);
    else
      tried->certifyFor(std::move(room), left, Search::Least);
    CertifiedPlan &found = tried->found;
    if (found.bytes <= left) {
      PlannedStep planned{.profile = tried->planner.profile(),
                          .plan = *found.plan,
                          .addresses = std::move(found.addresses),
                          .room = std::move(tried->room),
                          .bytes = found.bytes + (budget - left),
                          .budgetBytes = budget,
                          .programs = std::move(programs)};
      if (weights) {
        planned.slots = weights->slots();
        planned.openAtOnce = tried->twin.weights()->policy().ring().openAtOnce;
        weights->settle(planned.openAtOnce);
      }
      services.follow(planned.profile, planned.plan, planned.addresses);
      return planned;
    }
    // The ring took what there was; with fewer slots it is slower.
    if (!weights || !weights->makeRoom(found.bytes - left))
      throw refusal(*tried, services, step);
    tried.reset();
  }
}

bool followAgain(MemoryServices &services, const DeviceRef &device, const PlannedStep &planned) {
  WeightStreamer *weights = services.weights();
  if (planned.slots != (weights ? weights->slots() : 0) ||
      planned.budgetBytes != device->memory().budget(Space::DeviceDram))
    return false;
  services.beginAgain();
  dropCaches(*device);
  gatherFree(*device);
  if (roomOf(*device) != planned.room)
    return false;
  if (weights)
    weights->settle(planned.openAtOnce);
  services.follow(planned.profile, planned.plan, planned.addresses);
  return true;
}

/// Returns the bytes of all that programs of these modules give and work in, at once.
static uint64_t boundBytes(const std::vector<Module> &modules) {
  uint64_t bytes = 0;
  for (const Module &module : modules)
    for (std::string_view name : stepPrograms)
      if (const Program *program = module.find(name)) {
        bytes += program->arenaBytes();
        for (const auto &values : {program->inputs(), program->outputs()})
          for (const Value &value : values)
            bytes += alignedUp(value.desc().spanBytes());
      }
  return bytes;
}

/// Returns a bound that no step reaches.
static uint64_t boundBytes(const StepToPlan &step) {
  uint64_t bytes = boundBytes(step.modules);
  for (const std::vector<Module> *modules : step.batches)
    bytes += boundBytes(*modules);
  return bytes;
}

static std::string_view whyNoMoreLeaves(const MemoryServices *services) {
  if (!services || !services->spills())
    return services && services->statesLeave() != StatesLeave::Never
               ? "no gradient or optimizer state is left that could leave; turn Activation Stagehand on"
               : "nothing leaves; turn Activation Stagehand on";
  return services->wantsPlan() ? "nothing more can leave"
         : services->statesLeave() != StatesLeave::Never
             ? "no saved tensor, gradient or optimizer state is left that could leave; a plan moves parameters, too "
               "(\"mode\": \"planned\")"
             : "no saved tensor is left that could leave; State Stagehand moves gradients and optimizer states, too";
}

/// Refuses a budget that was seen to be too small.
static void refuse(const MemoryServices *services, BudgetTrial &trial, const StepToPlan &step,
                   const StepProfile &profile, uint64_t budget, uint64_t others) {
  auto peak = std::ranges::max_element(profile.events, {}, &StepEvent::peakBytes);
  std::optional<uint64_t> smallest = trial.smallest(budget, others + peak->peakBytes);
  if (!smallest) {
    // The largest that was tried ended for another reason than the cap, such as a
    // watermark that stays where it is.
    if (const auto &error = trial.lastError(); error->code() == ErrorCode::BudgetInfeasible)
      throw error->within("no step keeps to " + std::to_string(budget) +
                          " bytes of device_dram, and no larger cap helps");
    return;
  }
  std::vector<uint64_t> least = leastWithSavedAway(profile);
  auto tightest = services && services->spills()
                      ? profile.events.begin() + (std::ranges::max_element(least) - least.begin())
                      : peak;
  throw errorOf({.who = "no step keeps",
                 .askedBytes = budget,
                 .smallestBytes = *smallest,
                 .forSteps = step.isBatchCountGuessed ? " for steps of one batch" : "",
                 .setBy = *tightest,
                 .why = whyNoMoreLeaves(services),
                 .held = trial.holders(),
                 .othersBytes = others});
}

/// Returns true if a trial can say what a budget does. Selective Precision's choice needs
/// values, which a twin does not have.
static bool canTry(const MemoryServices *services) { return !services || !services->precision(); }

/// Returns the bytes on the device that are neither the session's nor of a batch of its, which
/// is in the twin's books; `restBytes`: the session's own between two steps.
static uint64_t othersBytes(const StepToPlan &step, const WeightStreamer *weights, uint64_t restBytes) {
  uint64_t own = (weights ? weights->ringBytes() : 0) + step.placedBytes + restBytes, live = liveBytes(*step.device);
  return live - std::min(live, own);
}

CheckedStep checkStep(const MemoryServices *services, const StepToPlan &step) {
  const WeightStreamer *weights = services ? services->weights() : nullptr;
  Device &device = *step.device;
  std::vector<Executor> programs = preparePrograms(step);
  uint64_t budget = device.memory().budget(Space::DeviceDram);
  if (!services && liveBytes(device) + boundBytes(step) <= budget)
    return {};
  StatesLeave states = services ? services->statesLeave() : StatesLeave::Never;
  StepTwin twin = twinOf(step, weights, weights ? weights->leastSlots() : 0, Ring::Watermarks);
  StepProfile profile = twin.record();
  uint64_t rest = twin.restBytes(/*withStates=*/states != StatesLeave::Always);
  uint64_t twinRing = twin.weights() ? twin.weights()->ringBytes() : 0;
  auto others = [&] { return othersBytes(step, weights, rest); };
  auto checked = [&](StepFits fits) {
    CheckedStep found{.fits = fits,
                      .profile = {},
                      .others = int64_t(liveBytes(device)) - int64_t(rest + twinRing),
                      .programs = std::move(programs)};
    if (services && services->checksBudget())
      found.profile = profile;
    return found;
  };
  uint64_t most = std::ranges::max_element(profile.events, {}, &StepEvent::peakBytes)->peakBytes;
  // A step that nobody listens to gives memory back later than the twin's. Where saved values may be computed again
  // in the midst of backward, the ring has blocks of two programs at once, which the twin's has not.
  bool remakesBesideRing = weights && services->spills();
  bool isAmple = services && !remakesBesideRing && others() + most + most / 8 <= budget;
  auto now = states == StatesLeave::Always ? BudgetTrial::States::Away : BudgetTrial::States::Stay;
  if (!canTry(services) || isAmple || BudgetTrial(step, others(), states).trains(budget, now))
    return checked(StepFits::AsItIs);
  dropCaches(device); // sessions before this one may have left some
  BudgetTrial trial(step, others(), states);
  if (trial.trains(budget, now))
    return checked(StepFits::AsItIs);
  if (states == StatesLeave::IfNeeded && trial.trains(budget, BudgetTrial::States::Away))
    return checked(StepFits::WithStatesAway);
  refuse(services, trial, step, profile, budget, others());
  return checked(StepFits::AsItIs);
}

uint64_t certifyStep(const MemoryServices *services, const StepToPlan &step) {
  const WeightStreamer *weights = services ? services->weights() : nullptr;
  uint64_t budget = step.device->memory().budget(Space::DeviceDram);
  if (!canTry(services))
    return budget;
  dropCaches(*step.device);
  StepTwin twin = twinOf(step, weights, weights ? weights->leastSlots() : 0, Ring::Watermarks);
  StepProfile profile = twin.record();
  StatesLeave states = services ? services->statesLeave() : StatesLeave::Never;
  uint64_t others = othersBytes(step, weights, twin.restBytes(/*withStates=*/states != StatesLeave::Always));
  // The check before the first step has settled whether they leave.
  auto now = states == StatesLeave::Always ? BudgetTrial::States::Away : BudgetTrial::States::Stay;
  BudgetTrial trial(step, others, states);
  if (!trial.trains(budget, now))
    refuse(services, trial, step, profile, budget, others);
  // A trial with no more than it took may go another way: that is played, too.
  uint64_t peak = trial.peakBytes();
  return peak < budget && trial.trains(peak, now) ? peak : budget;
}

void refuseTooSmall(const MemoryServices *services, const StepToPlan &step, uint64_t others) {
  if (!canTry(services))
    return;
  BudgetTrial trial(step, others, services ? services->statesLeave() : StatesLeave::Never);
  uint64_t budget = step.device->memory().budget(Space::DeviceDram);
  if (!trial.trains(budget))
    refuse(services, trial, step, twinOf(step, nullptr, 0, Ring::Watermarks).record(), budget, others);
}

void rehearseStep(MemoryServices &services, const StepToPlan &step) {
  const WeightStreamer *weights = services.weights();
  int64_t slots = weights ? weights->slots() : 0;
  StepTwin twin = twinOf(step, weights, slots, Ring::Watermarks, StepTwin::Homes::Device);
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
  options.lender = twin.lender();
  options.warn = [](const std::string &) {}; // the step itself says it
  auto played = MemoryServices::create(twin.device(), services.rehearsal(uint64_t(others)), std::move(options));
  twin.run(played.get());
  services.prepare(played->rehearsed());
}

} // namespace segue::inline runtime
