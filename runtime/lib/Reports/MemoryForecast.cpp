//===- MemoryForecast.cpp - will it fit? ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/MemoryForecast.h"
#include "../Drivers/DeviceOptions.h"
#include "../Session/OwnDevice.h"
#include "../Session/SealedCheckpoint.h"
#include "Formatted.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

namespace segue::inline runtime {

uint64_t StepForecast::peakIn(Phase phase, Space space) const {
  for (const PhasePeak &peak : played.peaks)
    if (peak.phase == phase && peak.space == space)
      return peak.bytes;
  return 0;
}

/// Gives tensors that leave all the room they want, so that the answer says how much they take: beside dram, where a
/// twin has room in any case, in the host's memory and on a disk, if there is one.
static std::string withRoomBelow(std::string_view spec, std::span<const SpaceInfo> spaces) {
  size_t colon = std::min(spec.find(':'), spec.size());
  DeviceOptions options(spec.substr(0, colon), spec.substr(std::min(colon + 1, spec.size())));
  for (const SpaceInfo &info : spaces)
    if (info.space == Space::Host || (info.space == Space::Disk && info.capacityBytes))
      options.set(name(info.space), "1024TiB");
  return options.spec();
}

static std::vector<SpaceInfo> spacesOf(const std::string &twin) {
  OwnDevice device(twin);
  std::span<const SpaceInfo> spaces = device->spaces();
  return {spaces.begin(), spaces.end()};
}

MemoryForecast::MemoryForecast(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                               size_t microBatches)
    : spec_(virtualTwin(spec)), spaces_(spacesOf(spec_)), programBytes_(bytesForPrograms(spec, modules)),
      twin_(withRoomBelow(spec_, spaces_), modules, options, microBatches), planner_(twin_.record()),
      steps_{forecast("unconstrained", certified(twin_, planner_, planner_.unconstrained(), /*bytes=*/0))},
      smallest_(forecast("smallest budget", certify(twin_, planner_, 0))) {
  // Nobody has addresses for a run that has no plan.
  options.events = nullptr;
  steps_[0].bytes = std::max(steps_[0].bytes, bytesWithoutServices(twin_.spec(), std::move(modules),
                                                                   std::move(options), microBatches) + programBytes_);
}

void MemoryForecast::countSeals() {
  if (!twin_.session().canSeal())
    throw noDiskToSealOn(spec_);
  sealBytes_ = twin_.session().sealRoom();
}

uint64_t MemoryForecast::capacityOf(Space space) const {
  for (const SpaceInfo &info : spaces_)
    if (info.space == space)
      return info.capacityBytes;
  return 0;
}

StepForecast MemoryForecast::forecast(std::string what, CertifiedPlan found) const {
  return {std::move(what), found.plan, std::move(found.played), found.bytes + programBytes_};
}

StepForecast MemoryForecast::forBudget(uint64_t bytes) {
  uint64_t left = bytes - std::min(bytes, programBytes_);
  CertifiedPlan found = certify(twin_, planner_, left);
  if (found.bytes > left)
    throw errorOf({.askedBytes = bytes,
                   .smallestBytes = found.bytes + programBytes_,
                   .setBy = planner_.profile().events[planner_.tightestEvent()],
                   .held = found.played.holders,
                   .othersBytes = programBytes_});
  return forecast("budget " + sizeText(bytes), std::move(found));
}

//===----------------------------------------------------------------------===//
// Answers
//===----------------------------------------------------------------------===//

/// Returns a text such as 12 bytes, 1.50 MiB or 112.00 GiB.
static std::string quantity(uint64_t bytes) {
  if (bytes < uint64_t(10) << 30)
    return sizeText(bytes);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", double(bytes) / double(1 << 30));
  return text;
}

std::vector<TierForecast> MemoryForecast::tiers(const StepForecast &step) const {
  std::vector<TierForecast> tiers;
  for (Space space : {Space::DeviceDram, Space::DeviceL1, Space::HostPinned, Space::Host, Space::Disk}) {
    TierForecast tier{.space = space, .capacityBytes = capacityOf(space)};
    for (const PhasePeak &peak : step.played.peaks)
      if (peak.space == space && peak.bytes > tier.peak.bytes)
        tier.peak = peak;
    tier.bytes = space == Space::DeviceDram ? step.bytes : tier.peak.bytes;
    if (space == Space::Disk) {
      tier.planningBytes = std::max(twin_.recordedDiskBytes(), tier.bytes) - tier.bytes;
      tier.sealBytes = sealBytes_.value_or(0);
    }
    // A run without a plan has nothing below the device.
    bool isBelow = space != Space::DeviceDram && space != Space::DeviceL1;
    if (tier.bytes && !(isBelow && step.plan->away.empty() && !sealBytes_))
      tiers.push_back(std::move(tier));
  }
  return tiers;
}

std::string MemoryForecast::lacks(const StepForecast &step) const {
  for (const TierForecast &tier : tiers(step))
    if (tier.allBytes() > tier.capacityBytes)
      return "it takes " + quantity(tier.allBytes()) + " of " + std::string(name(tier.space)) +
             (tier.planningBytes ? ", " + quantity(tier.planningBytes) + " of them while it is planned" : "") +
             (tier.sealBytes ? ", " + quantity(tier.sealBytes) + " of them for sealed checkpoints" : "") +
             ", and there are " + quantity(tier.capacityBytes);
  return "";
}

FitAnswer MemoryForecast::ask(std::optional<uint64_t> budget) {
  FitAnswer answer{.budgetBytes = budget.value_or(capacityBytes())};
  try {
    // If there are no services, nothing is taken beside the step.
    if (steps_[0].bytes <= answer.budgetBytes)
      answer.step = 0;
    else {
      steps_.push_back(forBudget(answer.budgetBytes));
      answer.step = steps_.size() - 1;
    }
    answer.why = lacks(steps_[*answer.step]);
    answer.fits = answer.why.empty();
  } catch (const Error &error) {
    if (error.code() != ErrorCode::BudgetInfeasible)
      throw;
    // The sentence goes without the code in front of it, since it is no error here.
    answer.why = std::string(error.what()).substr(errorCodeName(error.code()).size() + 2);
  }
  answers_.push_back(answer);
  return answer;
}

std::string MemoryForecast::setBy() const { return segue::text(planner_.profile().events[planner_.tightestEvent()]); }

const std::vector<MemoryHolder> &MemoryForecast::heldAtSmallest() const { return smallest_.played.holders; }

/// Names in `held` of a tier: those who hold little have no end.
static constexpr size_t mostHolders = 16;

/// Bytes that an edge carries in each direction, and how long it takes for them.
static Json jsonOfEdge(uint64_t outBytes, uint64_t inBytes, const LinkSpeed &edge) {
  return {{"out_bytes", outBytes},
          {"in_bytes", inBytes},
          {"out_seconds", double(outBytes) / edge.d2hBytesPerSecond},
          {"in_seconds", double(inBytes) / edge.h2dBytesPerSecond}};
}

/// The greatest of them, in the order that they are in.
static Json jsonOfHolders(const std::vector<MemoryHolder> &holders, size_t most) {
  Json list = Json::array();
  for (const MemoryHolder &holder : std::span(holders).first(std::min(holders.size(), most)))
    list.push_back({{"owner", holder.owner.str()}, {"bytes", holder.bytesAtPeak}});
  return list;
}

Json MemoryForecast::json(const StepForecast &step) const {
  Json peaks = Json::object();
  for (const PhasePeak &peak : step.played.peaks)
    peaks[std::string(name(peak.space))][std::string(name(peak.phase))] = peak.bytes;
  struct Share {
    std::set<uint32_t> tensors;
    uint64_t outBytes = 0, inBytes = 0;
  };
  Share saved;
  std::map<Role, Share> residents;
  const StepProfile &profile = planner_.profile();
  for (const Departure &departure : step.plan->away) {
    const ResidencyGap &gap = profile.gaps[departure.gap];
    if (departure.isRemade)
      continue;
    Share &share = gap.resident == noIndex ? saved : residents[profile.residents[gap.resident].role];
    share.tensors.insert(gap.resident);
    share.outBytes += gap.outBytes;
    share.inBytes += gap.inBytes;
  }
  // Residents come and go with their block.
  Json weights = Json::object();
  for (Role role : {Role::Parameter, Role::Frozen, Role::Gradient, Role::State}) {
    const Share &share = residents[role];
    weights[std::string(name(role))] = {
        {"tensors", share.tensors.size()}, {"out_bytes", share.outBytes}, {"in_bytes", share.inBytes}};
  }
  Json activations{{"leave", step.played.left},
                   {"out_bytes", saved.outBytes},
                   {"in_bytes", saved.inBytes},
                   {"fetched_ahead", step.played.fetchedAhead},
                   {"fetched_late", step.played.fetchedLate},
                   {"host_peak_bytes", step.plan->hostPeakBytes},
                   {"unpinned", step.played.unpinned},
                   {"recomputed", step.played.remade},
                   {"recompute_seconds", step.plan->remakeSeconds}};
  Json tiers = Json::object();
  for (const TierForecast &tier : this->tiers(step)) {
    Json &each = tiers[std::string(name(tier.space))] = {{"bytes", tier.bytes},
                                                         {"capacity_bytes", tier.capacityBytes},
                                                         {"phase", std::string(name(tier.peak.phase))},
                                                         {"held", jsonOfHolders(tier.peak.holders, mostHolders)}};
    if (tier.space == Space::Disk)
      each["planning_bytes"] = tier.planningBytes;
    if (tier.space == Space::Disk && sealBytes_)
      each["seal_bytes"] = tier.sealBytes;
  }
  Json disk;
  if (auto speed = twin_.diskLink())
    disk = jsonOfEdge(step.played.diskOutBytes, step.played.diskInBytes, *speed);
  return {{"what", step.what},
          {"peak_bytes", step.bytes},
          {"live_bytes", step.played.peakBytes},
          {"peaks", std::move(peaks)},
          {"tiers", std::move(tiers)},
          {"seconds", step.played.seconds},
          {"added", step.played.seconds / unconstrained().played.seconds - 1},
          {"link", jsonOfEdge(step.played.outBytes, step.played.inBytes, twin_.link())},
          {"disk", std::move(disk)},
          {"services", {{"activation_stagehand", std::move(activations)}, {"weights", std::move(weights)}}}};
}

Json MemoryForecast::json() const {
  Json json{{"device", spec_},
            {"capacity_bytes", capacityBytes()},
            {"answers", Json::array()},
            {"smallest_budget_bytes", smallest_.bytes},
            {"set_by", setBy()},
            {"held_at_smallest", jsonOfHolders(heldAtSmallest(), SIZE_MAX)},
            {"plans", Json::array()},
            {"can_leave", Json::array()}};
  for (const FitAnswer &answer : answers_) {
    Json step = answer.step ? Json(*answer.step) : Json();
    json["answers"].push_back({{"budget_bytes", answer.budgetBytes},
                               {"fits", answer.fits},
                               {"plan", std::move(step)},
                               {"why", answer.why},
                               {"text", sentence(answer)}});
  }
  for (const StepForecast &step : steps_)
    json["plans"].push_back(this->json(step));
  json["plans"].push_back(this->json(smallest_));
  for (const ResidencyGap &gap : planner_.profile().gaps)
    json["can_leave"].push_back(
        {{"tensor", gap.tensor},
         {"role",
          std::string(name(gap.resident == noIndex ? Role::Saved : planner_.profile().residents[gap.resident].role))},
         {"block", gap.block},
         {"location", gap.location},
         {"bytes", gap.bytes}});
  return json;
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

/// Rounds to a tenth of a percent; never gives -0.0.
static double percent(double part) { return std::round(part * 1000) / 10 + 0.0; }

std::string MemoryForecast::sentence(const FitAnswer &answer) const {
  if (!answer.fits)
    return "It does not fit in " + quantity(answer.budgetBytes) + ": " + answer.why;
  const StepForecast &step = steps_[*answer.step];
  std::string text = "It fits in " + quantity(answer.budgetBytes) + ": a step takes " + quantity(step.bytes) +
                     formatted(" and %.3f ms", step.played.seconds * 1e3);
  if (step.plan->away.empty())
    return text + "; nothing leaves";
  auto busiest = [](uint64_t inBytes, uint64_t outBytes, const LinkSpeed &edge) {
    return std::max(double(inBytes) / edge.h2dBytesPerSecond, double(outBytes) / edge.d2hBytesPerSecond);
  };
  auto disk = twin_.diskLink();
  text += formatted(" (%+.1f%%); ", percent(step.played.seconds / unconstrained().played.seconds - 1)) +
          quantity(step.played.outBytes) + " leave and " + quantity(step.played.inBytes) + " come in, for which the " +
          (capacityOf(Space::Disk) && !disk ? "disk" : "link") +
          formatted(" takes %.3f ms", busiest(step.played.inBytes, step.played.outBytes, twin_.link()) * 1e3);
  if (!disk)
    return text;
  return text + "; of that, " + quantity(step.played.diskOutBytes) + " go on to the disk and " +
         quantity(step.played.diskInBytes) + " come from there, which takes it " +
         formatted("%.3f ms", busiest(step.played.diskInBytes, step.played.diskOutBytes, *disk) * 1e3);
}

std::string MemoryForecast::text() const {
  const StepProfile &profile = planner_.profile();
  uint64_t saved = 0, savedBytes = 0, residentBytes = 0;
  std::set<uint32_t> residents;
  for (const ResidencyGap &gap : profile.gaps)
    if (gap.resident == noIndex) {
      saved += 1;
      savedBytes += gap.bytes;
    } else if (residents.insert(gap.resident).second) {
      residentBytes += gap.bytes;
    }
  std::string text = spec_ + "\n";
  for (const FitAnswer &answer : answers_)
    text += sentence(answer) + "\n";
  text += std::to_string(saved) + " saved tensors of " + quantity(savedBytes) + " can leave, and " +
          std::to_string(residents.size()) + " parameters, gradients and states of " + quantity(residentBytes) + "\n\n" +
          formatted("%-22s %10s %10s %10s %10s %10s %8s %7s %9s %9s %7s\n", "", "peak MiB", "forward", "backward",
                    "optimizer", "step ms", "added", "leave", "out MiB", "in MiB", "again");
  std::vector<const StepForecast *> rows;
  for (const StepForecast &step : steps_)
    rows.push_back(&step);
  rows.push_back(&smallest_);
  for (const StepForecast *step : rows) {
    uint64_t again = step->played.remade;
    text += formatted("%-22s %10.2f %10.2f %10.2f %10.2f %10.3f %+7.1f%% %7llu %9.2f %9.2f %7llu\n", step->what.c_str(),
                      mib(step->bytes), mib(step->peakIn(Phase::Forward)), mib(step->peakIn(Phase::Backward)),
                      mib(step->peakIn(Phase::Optimizer)), step->played.seconds * 1e3,
                      percent(step->played.seconds / unconstrained().played.seconds - 1),
                      (unsigned long long)(step->plan->away.size() - again), mib(step->played.outBytes),
                      mib(step->played.inBytes), (unsigned long long)again);
  }
  const StepForecast *answered = &smallest_;
  for (const FitAnswer &answer : answers_)
    if (answer.step) {
      answered = &steps_[*answer.step];
      break;
    }
  text += "\nWhere the most is held, " + answered->what + ":\n";
  for (const TierForecast &tier : tiers(*answered)) {
    text += formatted("%-12s %12s of %s, in ", std::string(name(tier.space)).c_str(), quantity(tier.bytes).c_str(),
                      quantity(tier.capacityBytes).c_str()) +
            std::string(name(tier.peak.phase)) + "\n";
    if (tier.planningBytes)
      text += formatted("%-12s %12s more while it is planned\n", "", quantity(tier.planningBytes).c_str());
    if (tier.sealBytes)
      text += formatted("%-12s %12s more for sealed checkpoints\n", "", quantity(tier.sealBytes).c_str());
    for (const MemoryHolder &holder : std::span(tier.peak.holders).first(std::min<size_t>(tier.peak.holders.size(), 4)))
      text += formatted("%14.2f MiB  ", mib(holder.bytesAtPeak)) + holder.owner.str() + "\n";
  }
  text += "\nThe smallest budget is " + quantity(smallest_.bytes) + ", set after " + setBy() + ", where these are held:\n";
  const std::vector<MemoryHolder> &held = heldAtSmallest();
  for (const MemoryHolder &holder : std::span(held).first(std::min<size_t>(held.size(), 12)))
    text += formatted("%14.2f MiB  ", mib(holder.bytesAtPeak)) + holder.owner.str() + "\n";
  return text;
}

} // namespace segue::inline runtime
