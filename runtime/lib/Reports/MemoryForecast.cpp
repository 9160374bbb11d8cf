//===- MemoryForecast.cpp - what a budget means, said beforehand ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/MemoryForecast.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

uint64_t StepForecast::peakIn(Phase phase, Space space) const {
  for (const PhasePeak &peak : played.peaks)
    if (peak.phase == phase && peak.space == space)
      return peak.bytes;
  return 0;
}

MemoryForecast::MemoryForecast(const Device &device, std::vector<SessionModule> modules, SessionOptions options,
                               size_t microBatches)
    : twin_(virtualTwin(device), modules, options, microBatches),
      planner_(twin_.record()), unconstrained_(forecast("unconstrained", planner_.unconstrained())),
      smallest_(forecast("smallest budget", planner_.plan(planner_.smallestBudget()))) {
  for (const SpaceInfo &info : device.spaces())
    if (info.space == Space::DeviceDram)
      capacityBytes_ = info.capacityBytes;
  // Nobody has addresses for a run that has no plan.
  options.events = nullptr;
  unconstrained_.bytes = std::max(unconstrained_.bytes, bytesWithoutServices(twin_.spec(), std::move(modules),
                                                                             std::move(options), microBatches));
}

StepForecast MemoryForecast::forecast(std::string what, const ResidencyPlan &plan) {
  CertifiedPlan found = certified(twin_, planner_, plan, /*bytes=*/0);
  return {std::move(what), &plan, std::move(found.played), found.bytes};
}

StepForecast MemoryForecast::forBudget(uint64_t bytes) {
  CertifiedPlan found = certify(twin_, planner_, bytes);
  if (found.bytes > bytes)
    throw errorOf({.askedBytes = bytes,
                   .smallestBytes = found.bytes,
                   .setBy = planner_.profile().events[planner_.tightestEvent()],
                   .held = found.played.holders});
  return {"budget " + sizeText(bytes), found.plan, std::move(found.played), found.bytes};
}

std::string MemoryForecast::setBy() const { return text(planner_.profile().events[planner_.tightestEvent()]); }

std::vector<MemoryHolder> MemoryForecast::heldAtSmallest() const {
  std::vector<MemoryHolder> held = smallest_.played.holders;
  std::erase_if(held, [](const MemoryHolder &holder) { return holder.bytesAtPeak == 0; });
  std::ranges::stable_sort(held, std::greater(), &MemoryHolder::bytesAtPeak);
  return held;
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
  // These come and go with their block.
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
  return {{"what", step.what},
          {"peak_bytes", step.bytes},
          {"live_bytes", step.played.peakBytes},
          {"peaks", std::move(peaks)},
          {"seconds", step.played.seconds},
          {"added", step.played.seconds / unconstrained_.played.seconds - 1},
          {"services", {{"activation_stagehand", std::move(activations)}, {"weights", std::move(weights)}}}};
}

Json MemoryForecast::json(std::span<const StepForecast> steps) const {
  Json json{{"device", twin_.spec()},   {"capacity_bytes", capacityBytes_},
            {"smallest_budget_bytes", smallest_.bytes},
            {"set_by", setBy()},      {"held_at_smallest", Json::array()},
            {"plans", Json::array()}, {"can_leave", Json::array()}};
  for (const MemoryHolder &holder : heldAtSmallest())
    json["held_at_smallest"].push_back({{"owner", holder.owner.str()}, {"bytes", holder.bytesAtPeak}});
  for (const StepForecast &step : steps)
    json["plans"].push_back(this->json(step));
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

} // namespace segue::inline runtime
