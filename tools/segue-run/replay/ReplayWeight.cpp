//===- ReplayWeight.cpp - logs of Weight Stagehand ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What logs that people write ask beside the calls of a run.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/WeightCalls.h"

namespace segue::tool {

static Json limitsFor(const LoggedWeights &weights, int64_t largestBytes, std::optional<int64_t> vramBudgetBytes,
                      std::optional<int64_t> hostBudgetBytes) {
  WeightLimits limits = weights.config().limits(
      {.largestBlockBytes = largestBytes, .vramBudgetBytes = vramBudgetBytes, .hostBudgetBytes = hostBudgetBytes});
  return {{"slab_mb", toMiB(limits.slabBytes)},
          {"pool_mb", toMiB(limits.slabBytes * limits.slabs)},
          {"high_mb", toMiB(limits.highBytes)},
          {"low_mb", toMiB(limits.lowBytes)}};
}

static Json stateOf(const WeightStagehand &policy, std::string_view id) {
  return {{"state", nameOf(policy.state(id))}, {"uses", policy.useCount(id)}};
}

static Json poolOf(const WeightStagehand &policy) {
  const HostSlabQueue &slabs = policy.slabs();
  return {{"free", slabs.free()},
          {"in_use", slabs.inUse()},
          {"peak_in_use", slabs.peakInUse()},
          {"wait_count", slabs.waitCount()},
          {"total_wait_ms", slabs.totalWaitMs()}};
}

static int64_t scoreOfV0(const LoggedWeights &, int64_t order, int64_t position, int64_t blocks, int64_t bytes) {
  return WeightStagehand::scoreOfV0(order, position, blocks, bytes);
}

static std::unique_ptr<Replayer> createWeightReplayer(const ReplayLog &log) {
  ConfigReader reader = log.readConfig();
  for (const char *service : {"activation_stagehand", "conductor_config", "selective_precision", "squareq"})
    reader.allow(service);
  auto asItIs = [](const auto &, const Json &answer) { return answer; };
  std::tuple questions(
      PolicyCall("limits", &limitsFor, asItIs, "largest_mb", "vram_budget_mb", "host_budget_mb"),
      PolicyCall("state", &stateOf, asItIs, "id"), PolicyCall("pool", &poolOf, asItIs),
      PolicyCall("next_use", &WeightStagehand::nextUse, AnswerAs{"distance"}, "id"),
      PolicyCall("score_v0", &scoreOfV0, AnswerAs{"score"}, "order", "position", "blocks", "bytes"));
  return replay(log, LoggedWeights(WeightStagehandConfig::read(reader)),
                std::tuple_cat(weight_calls::all, questions),
                [](ConfigReader &config, EventReader &) { WeightStagehandConfig::read(config); });
}

ReplayService replayOfWeight() { return {"weight", createWeightReplayer}; }

} // namespace segue::tool
