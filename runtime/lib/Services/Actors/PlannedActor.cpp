//===- PlannedActor.cpp - tensors leave by a plan -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlannedActor.h"
#include "segue/runtime/Config/ConfigError.h"
#include <cmath>
#include <cstdio>

namespace segue::inline runtime {

/// A plan is made again where a part of a step differs by more of its time.
static constexpr double greatestDrift = 0.1;

/// The keys that only watermarks go by. The engine tries a copy twice, whoever asked for it.
static constexpr std::string_view keysOfWatermarks[] = {"vram_high_watermark_mb",
                                                        "vram_low_watermark_mb",
                                                        "pinned_pool_classes_mb",
                                                        "slabs_per_class",
                                                        "pool_growth",
                                                        "pinned_pool_max_mb",
                                                        "max_inflight_d2h",
                                                        "max_inflight_h2d",
                                                        "min_spill_bytes",
                                                        "unpinned_max_mb",
                                                        "recompute_threshold_bytes",
                                                        "predictive_restore",
                                                        "restore_window",
                                                        "transfer_retries"};

PlannedActor::PlannedActor(ServiceContext &context, const ActivationStagehandConfig &config, const Json &section)
    : context_(context), planned_(context.device), meter_(*context.device), clock_(*context.device) {
  target = &planned_;
  planned_.residency().setWarn(context.warn);
  planned_.residency().checkCopies(config.debugChecksums);
  if (!context.recordEvents.empty())
    planned_.record([&context](Json plan) {
      return std::make_shared<EventLog>(context.recordEvents / "plan.json", headOf("plan", "plan", plan), context.warn);
    });
  if (config.telemetry.enabled)
    telemetry_.emplace(config.telemetry.file, context.warn);
  if (context.conductor.isEnabled())
    service_ = context.conductor.registerOwner("activation_stagehand");
  std::string unused;
  for (std::string_view key : keysOfWatermarks)
    if (section.contains(key))
      unused += (unused.empty() ? "" : ", ") + std::string(key);
  if (!unused.empty())
    context.warn(std::string(activationSection) + ": mode \"planned\" does not look at " + unused +
                 "; a plan says what leaves, when, and where to");
}

PlannedActor::~PlannedActor() {
  if (planned_.hasItsAddresses())
    context_.device->memory().forgetAddresses();
  if (!context_.conductor.isEnabled())
    return;
  for (uint64_t id : reservations_)
    context_.conductor.release(id);
  context_.conductor.detach(service_);
}

/// Asks Conductor for leave to hold so much page-locked memory from here on.
bool PlannedActor::reservePinned(uint64_t bytes) {
  if (!context_.conductor.isEnabled() || bytes <= reservedBytes_)
    return true;
  uint64_t id = context_.newId();
  Grant grant = context_.conductor.reserve({.id = id,
                                            .owner = service_,
                                            .bytes = int64_t(bytes - reservedBytes_),
                                            .mode = BudgetMode::Hard,
                                            .resource = BudgetResource::Pinned});
  if (grant.status == GrantStatus::Denied)
    return false;
  reservations_.push_back(id);
  reservedBytes_ = bytes;
  return true;
}

std::vector<PlannedBlock> plannedBlocks(const StepProfile &profile, std::span<const uint64_t> peaks,
                                        std::span<const Departure> away) {
  std::vector<PlannedBlock> blocks;
  // The block that each event lies in; blocks.size() and above: none.
  std::vector<size_t> blockOf;
  std::vector<size_t> open;
  for (size_t event = 0; event < profile.events.size(); ++event) {
    const StepEvent &now = profile.events[event];
    if (now.kind == StepEvent::Kind::Phase)
      open.clear();
    if (now.kind == StepEvent::Kind::BlockBegin) {
      open.push_back(blocks.size());
      blocks.push_back({.phase = stepPhase(now.phase), .block = now.label});
    }
    if (now.kind == StepEvent::Kind::BlockEnd && !open.empty())
      open.pop_back();
    blockOf.push_back(open.empty() ? SIZE_MAX : open.back());
    if (open.empty())
      continue;
    PlannedBlock &block = blocks[open.back()];
    block.peakBytes = std::max(block.peakBytes, int64_t(peaks[event]));
    block.computeSeconds += now.seconds;
  }
  for (const Departure &departure : away) {
    const ResidencyGap &gap = profile.gaps[departure.gap];
    if (departure.isRemade)
      continue;
    if (size_t block = blockOf[gap.leaves]; block < blocks.size())
      blocks[block].d2hBytes += int64_t(gap.outBytes);
    if (size_t block = blockOf[gap.needed]; block < blocks.size())
      blocks[block].h2dBytes += int64_t(gap.inBytes);
  }
  return blocks;
}

void PlannedActor::beginAgain() {
  planned_.beginAgain();
  context_.device->memory().restartAddresses();
}

void PlannedActor::follow(const StepProfile &profile, const ResidencyPlan &plan,
                          std::optional<AddressPlan> addresses) {
  // Saved tensors while they are away, the homes of all that comes by block, and messages to other ranks.
  uint64_t messages = context_.device->transfer().leftToMessages(), pinned = plan.hostPeakBytes + messages;
  for (const Resident &resident : profile.residents)
    pinned += resident.bytes;
  if (!reservePinned(pinned)) {
    if (!reservations_.empty())
      return;
    char least[32];
    uint64_t others = uint64_t(context_.conductor.usedBytes(BudgetResource::Pinned)) - reservedBytes_;
    std::snprintf(least, sizeof least, "%.2f", std::ceil(double(pinned + others) / 1048576 * 100) / 100);
    std::string rule = "at least the " + std::string(least) +
                       " MiB that a plan" + (messages ? " and messages to ranks" : "") +
                       (others ? " and other services" : "") + (messages || others ? " keep" : " keeps") +
                       " in page-locked memory for this cap (activation_stagehand, mode planned)";
    throw ConfigError(conductorSection, "pinned_cap_mb", rule, rule);
  }
  planned_.follow(profile, plan);
  DeviceMemory &memory = context_.device->memory();
  memory.forgetAddresses();
  bool isPlaced = addresses && memory.followAddresses(std::move(*addresses), [this] {
    return planned_.residency().awaitDeparture();
  });
  planned_.setAddressPlan(isPlaced ? memory.addressPlan() : 0);
  recordedDisplaced_ = 0;
  clock_.forget();
  profile_ = profile;
  context_.conductor.setPlan(plannedBlocks(profile, plan.curve, plan.away));
}

std::optional<MeasuredStep> PlannedActor::takeMeasured() {
  std::optional<MeasuredStep> measured = clock_.take();
  std::optional<StepProfile> profile = measured ? withMeasured(profile_, *measured) : std::nullopt;
  return profile && driftOf(profile_, *profile) > greatestDrift ? measured : std::nullopt;
}

void PlannedActor::receive(const Event &event) { deliver(*this, event); }

void PlannedActor::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    context_.device->memory().beginPlannedStep();
    meter_.beginStep(begin.step);
    clock_.beginStep();
  }
  clock_.onPhase();
  forward(begin);
  meter_.see();
  if (begin.phase != Phase::StepEnd)
    return;
  context_.device->memory().endPlannedStep();
  clock_.endStep();
  write(/*aborted=*/false);
}

void PlannedActor::on(const event::BlockBegin &begin) {
  clock_.onBlockBegin();
  forward(begin);
  meter_.see();
}

void PlannedActor::on(const event::BlockInput &need) {
  Tensor home = need.value;
  forward(need);
  if (need.value.storage() != home.storage())
    clock_.onNeed(need.value);
}

void PlannedActor::on(const event::BlockEnd &end) {
  clock_.onBlockEnd();
  forward(end);
}

void PlannedActor::on(const event::Save &save) {
  Tensor before = save.saved;
  meter_.see();
  forward(save);
  if (before.desc().layout.space == Space::DeviceDram)
    meter_.noteSave(before, save.saved, planned_.remakes().isDropped(save.saved), planned_.isPlanned());
}

void PlannedActor::on(const event::Restore &restore) {
  Tensor before = restore.saved;
  if (planned_.remakes().isDropped(before)) {
    // The block of a tensor that is made again would not take the time of the run if the tensor had stayed.
    std::shared_ptr<CopyWait> run = beginRun(*context_.device);
    forward(restore);
    meter_.see();
    clock_.addRun(std::move(run));
    return;
  }
  PlannedResidency::Counts counts = planned_.counts();
  forward(restore);
  meter_.see();
  PlannedMeter::Return how = planned_.counts().rescued > counts.rescued           ? PlannedMeter::Return::Rescued
                             : planned_.counts().fetchedLate > counts.fetchedLate ? PlannedMeter::Return::Late
                                                                                  : PlannedMeter::Return::Ahead;
  clock_.addWait(meter_.noteRestore(before, restore.saved, how));
}

void PlannedActor::on(const event::StepAbort &) {
  context_.device->memory().endPlannedStep();
  planned_.forget();
  beginAgain(); // what the step had brought lies where the next one has no room for it
  clock_.abortStep();
  write(/*aborted=*/true);
}

/// Warns once: a step that departs in one place departs in many.
void PlannedActor::tellDisplaced(const AddressFigures &figures) {
  if (figures.displaced && !recordedDisplaced_)
    context_.warn("step " + std::to_string(meter_.step()) + " departed from the addresses of its plan: " +
                  std::to_string(figures.displaced) + " of " + std::to_string(figures.placed + figures.displaced) +
                  " blocks of device_dram lie elsewhere, as " + figures.lastDisplaced +
                  "; what is planned for them may be missing when the budget is tight");
}

void PlannedActor::write(bool aborted) {
  AddressFigures figures = context_.device->memory().addressFigures();
  tellDisplaced(figures);
  lastRecord_ = meter_.endStep(aborted).json();
  lastRecord_["blocks_displaced"] = figures.displaced - recordedDisplaced_;
  recordedDisplaced_ = figures.displaced;
  if (telemetry_)
    telemetry_->write(lastRecord_);
}

} // namespace segue::inline runtime
