//===- WeightRig.h - the policy of weights and some blocks ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_SERVICES_WEIGHTRIG_H
#define SEGUE_TEST_SERVICES_WEIGHTRIG_H

#include "segue/runtime/Services/WeightStagehand.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::test {

using Ids = std::vector<std::string>;

inline constexpr int64_t mib = 1 << 20;

inline WeightStagehandConfig parse(const std::string &text) {
  Json object = Json::parse(text);
  ConfigReader reader(object, "memory.stagehand", ConfigReader::Files::Ignore);
  return WeightStagehandConfig::read(reader);
}

inline WeightStagehand make(const std::string &config, const std::vector<std::pair<std::string, int64_t>> &blocks,
                            int64_t ring = 0) {
  WeightStagehandConfig read = parse(config);
  WeightSizes sizes;
  for (const auto &[id, bytes] : blocks)
    sizes.largestBlockBytes = std::max(sizes.largestBlockBytes, bytes);
  WeightStagehand stagehand(read, read.limits(sizes));
  for (const auto &[id, bytes] : blocks)
    stagehand.registerBlock({.id = id, .bytes = bytes});
  stagehand.setRing(ring);
  return stagehand;
}

/// Runs a block, whose loads end at once.
inline void runBlock(WeightStagehand &stagehand, const std::string &id, double computeMs, double loadMs) {
  auto carryOut = [&](auto &&self, const WeightActions &actions) -> void {
    for (const WeightAction &action : actions)
      if (action.kind == WeightAction::Kind::Evict)
        self(self, stagehand.evicted(action.block));
      else if (action.kind == WeightAction::Kind::Load)
        self(self, stagehand.loaded(action.block, {.copyMs = loadMs}));
  };
  carryOut(carryOut, stagehand.beforeBlock(id).actions);
  carryOut(carryOut, stagehand.afterBlock(id, {.computeMs = computeMs}));
}

inline const Ids six{"a", "b", "c", "d", "e", "f"};

inline std::vector<std::pair<std::string, int64_t>> sized(const Ids &ids) {
  std::vector<std::pair<std::string, int64_t>> blocks;
  for (const std::string &id : ids)
    blocks.push_back({id, mib});
  return blocks;
}

inline const WeightRing fourSlots{.slots = 4, .most = 4, .slotBytes = mib};

} // namespace segue::test

#endif // SEGUE_TEST_SERVICES_WEIGHTRIG_H
