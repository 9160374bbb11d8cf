//===- ServiceForecast.cpp - what services would do in a step -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/ServiceForecast.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Session/RingSlots.h"
#include "segue/runtime/Reports/WatermarkEstimate.h"
#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {


static uint64_t capacityOf(const Device &device) {
  for (const SpaceInfo &info : device.spaces())
    if (info.space == Space::DeviceDram)
      return info.capacityBytes;
  return 0;
}

namespace {
/// What the twin is made of.
struct Parts {
  std::string spec;
  const std::vector<SessionModule> &modules;
  const SessionOptions &options;
  size_t microBatches;

  StepTwin twin(std::optional<TwinWeights> weights) const {
    SessionOptions same;
    same.maxGradNorm = options.maxGradNorm;
    same.tied = options.tied;
    same.wires = options.wires;
    return StepTwin(spec, modules, std::move(same), microBatches, std::move(weights));
  }
};
} // namespace

/// The ring that a session would take: below the high watermark, beside what it
/// holds before the first step; optimizer states are among it unless a plan has
/// them live on the host.
static int64_t slotsOf(const Parts &parts, const WeightStagehandConfig &config, uint64_t highBytes, bool isPlanned) {
  StepTwin twin = parts.twin(TwinWeights{config, 0});
  StepProfile profile = twin.record();
  const WeightStreamer &weights = *twin.weights();
  std::set<std::string> blocks;
  for (const StreamedParameter &parameter : weights.parameters())
    blocks.insert(parameter.module + "/" + parameter.block);
  if (!weights.slots())
    return 0;
  uint64_t live = isPlanned ? twin.device()->memory().liveBytes(Space::DeviceDram) : profile.events.front().liveBytes;
  uint64_t held = live - weights.ringBytes(), slotBytes = weights.ringBytes() / uint64_t(weights.slots());
  int64_t fits = int64_t((highBytes - std::min(highBytes, held)) / slotBytes);
  return std::clamp(fits, weights.leastSlots(), std::max(weights.leastSlots(), int64_t(blocks.size())));
}

/// Blocks of BACKWARD whose peak is above the threshold: there, and in OPTIMIZER,
/// what is more than a block ahead waits.
static Json suppressionOf(const StepProfile &profile, const std::vector<uint64_t> &peaks, double limitBytes) {
  Json suppressed = Json::array();
  size_t blocks = 0;
  std::string open;
  for (size_t event = 0; event < profile.events.size(); ++event) {
    const StepEvent &now = profile.events[event];
    if (now.phase != Phase::Backward)
      continue;
    if (now.kind == StepEvent::Kind::BlockBegin) {
      ++blocks;
      open = now.label;
    }
    if (!open.empty() && double(peaks[event]) > limitBytes && (suppressed.empty() || suppressed.back() != open))
      suppressed.push_back(open);
    if (now.kind == StepEvent::Kind::BlockEnd)
      open.clear();
  }
  return {{"backward_blocks", blocks}, {"suppressed", std::move(suppressed)}};
}

/// What watermarks would compute again in the place of moving it.
static Json recomputedBelow(const std::vector<SessionModule> &modules, int64_t thresholdBytes) {
  Json tensors = Json::array();
  for (const SessionModule &module : modules) {
    Program forward = module.binary.program("forward");
    std::vector<std::optional<Recomputation>> again = recomputations(forward);
    for (size_t i = 0; i < again.size(); ++i) {
      const SavePoint &save = forward.savePoints()[i];
      if (again[i] && !save.aliasesInput && int64_t(save.bytes) < thresholdBytes)
        tensors.push_back({{"tensor", forward.outputs()[save.value].name},
                           {"block", save.block},
                           {"bytes", save.bytes},
                           {"flops", again[i]->flops}});
    }
  }
  return tensors;
}

Json forecastServices(const Device &device, const std::vector<SessionModule> &modules, const SessionOptions &options,
                      size_t microBatches, const Config &config) {
  ConfigReader conductorReader = config.section("memory.stagehand.conductor_config");
  ConfigReader activationReader = config.section("memory.stagehand.activation_stagehand");
  ConfigReader weightReader = config.section(WeightStagehandConfig::section);
  ConductorConfig conductor = ConductorConfig::read(conductorReader);
  ActivationStagehandConfig activation = ActivationStagehandConfig::read(activationReader);
  WeightStagehandConfig weights = WeightStagehandConfig::read(weightReader);
  bool streams = weights.enabled && weights.isGiven;
  bool isPlanned = activation.enabled && activation.mode == ActivationStagehandConfig::Mode::Planned;

  Parts parts{virtualTwin(device), modules, options, microBatches};
  ConductorLimits limits =
      conductor.limits(capacityOf(device), streams ? std::optional(weights.prefetchWindowBlocks) : std::nullopt);
  uint64_t cap = conductor.enabled ? uint64_t(limits.hardCapBytes) : capacityOf(device);
  Json result{{"cap_bytes", cap}};

  std::optional<TwinWeights> ring;
  uint64_t highBytes = 0;
  if (streams) {
    highBytes = uint64_t(weights.limits({.vramBudgetBytes = int64_t(cap)}).highBytes);
    ring = TwinWeights{weights, slotsOf(parts, weights, std::min(highBytes, cap), isPlanned)};
  }
  int64_t slotsThatFit = ring ? ring->slots : 0;
  if (isPlanned && slotsThatFit > 1)
    ring->slots = fastestSlots(StepWithRing{.twin = [&](int64_t slots) { return parts.twin(TwinWeights{weights, slots}); },
                                            .slots = slotsThatFit,
                                            .budgetBytes = cap});
  for (;;) {
    StepTwin twin = parts.twin(ring);
    ResidencyPlanner planner(twin.record());
    const StepProfile &profile = planner.profile();
    std::vector<uint64_t> peaks;
    if (isPlanned) {
      CertifiedPlan found = certify(twin, planner, cap);
      const StepTwin::Played &played = found.played;
      if (found.bytes > cap && ring && ring->slots > twin.weights()->leastSlots()) {
        --ring->slots; // as a session does
        continue;
      }
      if (found.bytes > cap)
        throw errorOf({.askedBytes = cap,
                       .smallestBytes = found.bytes,
                       .setBy = profile.events[planner.tightestEvent()],
                       .held = played.holders});
      const ResidencyPlan &plan = *found.plan;
      peaks = plan.curve;
      Json recomputed = Json::array();
      for (const Departure &departure : plan.away)
        if (const ResidencyGap &gap = profile.gaps[departure.gap]; departure.isRemade)
          recomputed.push_back({{"tensor", gap.tensor}, {"block", gap.block}, {"bytes", gap.bytes}});
      result["peak_bytes"] = found.bytes;
      result["seconds"] = played.seconds;
      result["activation_stagehand"] = {{"mode", "planned"},
                                        {"spilled", played.left},
                                        {"fetched_ahead", played.fetchedAhead},
                                        {"fetched_late", played.fetchedLate},
                                        {"out_bytes", plan.outBytes},
                                        {"in_bytes", plan.inBytes},
                                        {"host_peak_bytes", plan.hostPeakBytes},
                                        {"stall_seconds", plan.stallSeconds},
                                        {"recompute_seconds", plan.remakeSeconds},
                                        {"recomputed", std::move(recomputed)}};
    } else if (activation.enabled) {
      WatermarkOutcome outcome = estimateWatermarks(profile, activation);
      peaks = outcome.curve;
      result["peak_bytes"] = outcome.peakBytes;
      result["seconds"] = outcome.seconds;
      const Json &record = outcome.telemetry;
      result["activation_stagehand"] = {{"mode", "watermark"},
                                        {"spilled", record["activations_spilled"]},
                                        {"spill_bytes", record["spill_bytes"]},
                                        {"restored", record["activations_restored"]},
                                        {"kept", record["activations_kept"]},
                                        {"stalls", record["stall_count"]},
                                        {"stall_seconds", outcome.stallSeconds},
                                        {"recomputed", recomputedBelow(modules, activation.recomputeThresholdBytes)}};
    } else {
      StepTwin::Played played = twin.play(profile, planner.unconstrained());
      for (const StepEvent &event : profile.events)
        peaks.push_back(event.peakBytes);
      result["peak_bytes"] = played.peakBytes;
      result["seconds"] = played.seconds;
    }
    if (ring) {
      const WeightStreamer &streamer = *twin.weights();
      std::vector<StreamedParameter> streamed = streamer.parameters();
      std::set<std::string> blocks;
      uint64_t bytes = 0;
      for (const StreamedParameter &parameter : streamed) {
        blocks.insert(parameter.module + "/" + parameter.block);
        bytes += parameter.desc.spanBytes();
      }
      result["weight_stagehand"] = {{"slots", streamer.slots()},
                                    {"slots_that_fit", slotsThatFit},
                                    {"ring_bytes", streamer.ringBytes()},
                                    {"blocks", blocks.size()},
                                    {"streamed_bytes", bytes},
                                    {"window", weights.prefetchWindowBlocks}};
    }
    if (conductor.enabled) {
      result["conductor"] = suppressionOf(profile, peaks, conductor.backwardPressureThreshold * double(cap));
      result["conductor"]["hard_cap_bytes"] = limits.hardCapBytes;
      result["conductor"]["soft_cap_bytes"] = limits.softCapBytes;
      result["conductor"]["threshold"] = conductor.backwardPressureThreshold;
    }
    return result;
  }
}

std::string textOfServices(const Json &forecast) {
  std::string text;
  auto line = [&](const char *format, auto... values) {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
  };
  auto mib = [](const Json &bytes) { return bytes.get<double>() / bytesPerMiB; };
  auto number = [](const Json &value) { return (long long)value.get<int64_t>(); };
  line("By the config, under %.2f MiB: peak %.2f MiB, step %.3f ms\n", mib(forecast["cap_bytes"]),
       mib(forecast["peak_bytes"]), forecast["seconds"].get<double>() * 1e3);
  if (forecast["peak_bytes"] > forecast["cap_bytes"])
    line("  this is above the cap: the step would end with DEVICE_OOM, or be refused before the first\n");
  if (forecast.contains("activation_stagehand")) {
    const Json &activation = forecast["activation_stagehand"];
    if (activation["mode"] == "planned")
      line("  Activation Stagehand by a plan: %lld saved tensors leave, %.2f MiB go out and %.2f MiB come back with "
           "all that leaves, stalls of %.3f ms\n",
           number(activation["spilled"]), mib(activation["out_bytes"]), mib(activation["in_bytes"]),
           activation["stall_seconds"].get<double>() * 1e3);
    else
      line("  Activation Stagehand by watermarks: %lld spilled (%.2f MiB), %lld kept, %lld stalls of %.3f ms\n",
           number(activation["spilled"]), mib(activation["spill_bytes"]), number(activation["kept"]),
           number(activation["stalls"]), activation["stall_seconds"].get<double>() * 1e3);
    if (!activation["recomputed"].empty()) {
      double bytes = 0;
      for (const Json &tensor : activation["recomputed"])
        bytes += tensor["bytes"].get<double>();
      line("  computed again in the place of being spilled: %zu tensors (%.2f MiB)\n", activation["recomputed"].size(),
           bytes / bytesPerMiB);
    }
  }
  if (forecast.contains("weight_stagehand")) {
    const Json &weights = forecast["weight_stagehand"];
    std::string fewer = weights["slots"] == weights["slots_that_fit"]
                            ? ""
                            : " of " + weights["slots_that_fit"].dump() + " that fit without a plan";
    line("  Weight Stagehand: a ring of %lld slots%s (%.2f MiB) for %lld blocks of %.2f MiB, %lld ahead\n",
         number(weights["slots"]), fewer.c_str(), mib(weights["ring_bytes"]), number(weights["blocks"]),
         mib(weights["streamed_bytes"]), number(weights["window"]));
  }
  if (forecast.contains("conductor")) {
    const Json &conductor = forecast["conductor"];
    std::string first =
        conductor["suppressed"].empty() ? "" : ", from \"" + conductor["suppressed"][0].get<std::string>() + "\" on";
    line("  Conductor: what is ahead is suppressed in OPTIMIZER and in %zu of %lld blocks of BACKWARD%s\n",
         conductor["suppressed"].size(), number(conductor["backward_blocks"]), first.c_str());
  }
  return text;
}

} // namespace segue::inline runtime
