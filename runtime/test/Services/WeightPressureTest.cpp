//===- WeightPressureTest.cpp - weights give memory back ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A ring that owns the memory of its slots, above the watermark and below.
//
//===----------------------------------------------------------------------===//

#include "WeightRig.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

/// high 8 MiB, low 6 MiB, four slots of 1 MiB that hold a to d of six.
static WeightStagehand underPressure(const char *window) {
  std::string config = R"({"vram_high_watermark_mb": 8, "vram_low_watermark_mb": 6, "prefetch_window_blocks": )";
  WeightStagehand stagehand = make((config + window + "}").c_str(), sized(six));
  stagehand.setRing(fourSlots);
  stagehand.beginStep(0);
  stagehand.enterPhase(StepPhase::Forward);
  for (const char *id : {"a", "b", "c", "d"})
    runBlock(stagehand, id, 1, 1);
  return stagehand;
}

static Ids written(const WeightActions &actions) {
  static constexpr const char *kinds[] = {"load ", "evict ", "give"};
  Ids texts;
  for (const WeightAction &action : actions)
    texts.push_back(kinds[size_t(action.kind)] + action.block);
  return texts;
}

// Slots without a block go first, then blocks with their slots, as many as bring
// memory below the low mark; the next block has a slot to be loaded into.
TEST(WeightPressure, AnEvictionGivesItsSlotBack) {
  WeightStagehand stagehand = underPressure("0");
  stagehand.measure(8 * mib + mib / 2); // the ring's four among them
  stagehand.changed("b", mib);
  WeightActions actions = stagehand.beforeBlock("e").actions;
  // Without a window: a is farthest from its next use in backward, then b.
  EXPECT_EQ(written(actions), (Ids{"evict a", "load e", "evict b", "evict c", "give", "evict d", "give"}));
  EXPECT_EQ(stagehand.ring().slots, 1);
  EXPECT_EQ(written(stagehand.evicted("b")), Ids{"give"}) << "when it is on the host";
  for (const char *id : {"a", "c", "d"})
    stagehand.evicted(id);
  stagehand.loaded("e");
  EXPECT_EQ(stagehand.headroomBytes(), 2 * mib + mib / 2) << "three slots less, below low";
  EXPECT_EQ(written(stagehand.afterBlock("e")), Ids{});
  EXPECT_EQ(stagehand.resident(), Ids{"e"});
}

TEST(WeightPressure, NothingLeavesThatFreesNothing) {
  WeightStagehand stagehand = underPressure("2");
  int64_t others = 100 * mib; // of gradients, say
  auto relieve = [&](const WeightActions &actions) {
    for (const WeightAction &action : actions)
      if (action.kind == WeightAction::Kind::Evict)
        stagehand.evicted(action.block);
      else if (action.kind == WeightAction::Kind::Load)
        stagehand.loaded(action.block);
  };
  stagehand.enterPhase(StepPhase::Backward);
  for (const char *id : {"f", "e", "d", "c", "b", "a"}) {
    stagehand.measure(others + stagehand.ring().slots * mib);
    relieve(stagehand.beforeBlock(id).actions);
    stagehand.measure(others + stagehand.ring().slots * mib);
    relieve(stagehand.afterBlock(id));
  }
  EXPECT_EQ(stagehand.ring().slots, 2) << "one for what runs, one for what comes next";
  stagehand.endStep();
  Json record = stagehand.telemetry();
  EXPECT_LE(record["evictions"], 10) << record;
  EXPECT_GE(record["prefetch_hits"], 5) << "it goes on loading ahead: " << record;
}

TEST(WeightPressure, SlotsAreTakenAgainBelowLow) {
  WeightStagehand stagehand = underPressure("1");
  stagehand.measure(9 * mib);
  for (const WeightAction &action : stagehand.beforeBlock("e").actions)
    if (action.kind != WeightAction::Kind::GiveSlot)
      action.kind == WeightAction::Kind::Load ? stagehand.loaded(action.block) : stagehand.evicted(action.block);
  int64_t slots = stagehand.ring().slots;
  ASSERT_LT(slots, 4);
  stagehand.measure(6 * mib);
  EXPECT_FALSE(stagehand.wantsSlot()) << "low is not below low";
  stagehand.measure(6 * mib - 1);
  EXPECT_TRUE(stagehand.wantsSlot());
  WeightRing ring = stagehand.ring();
  ring.slots = 4;
  stagehand.setRing(ring);
  EXPECT_FALSE(stagehand.wantsSlot()) << "no more than there were";
  EXPECT_EQ(stagehand.headroomBytes(), 2 * mib + 1 - (4 - slots) * mib);
}

// What is in the slots may not leave, for a guest say: rather a slot above the
// watermark than a step that fails.
TEST(WeightPressure, ASlotIsTakenWhereNothingElseHelps) {
  WeightStagehand stagehand = underPressure("0");
  stagehand.makeRoom(0); // nothing
  stagehand.measure(9 * mib);
  for (const WeightAction &action : stagehand.beforeBlock("e").actions)
    if (action.kind != WeightAction::Kind::GiveSlot)
      action.kind == WeightAction::Kind::Load ? stagehand.loaded(action.block) : stagehand.evicted(action.block);
  stagehand.afterBlock("e");
  ASSERT_EQ(stagehand.ring().slots, 1);
  stagehand.measure(9 * mib);
  EXPECT_FALSE(stagehand.wantsSlot("f")) << "e may leave";
  auto scope = stagehand.keepResident(Ids{"e"});
  EXPECT_FALSE(stagehand.wantsSlot());
  EXPECT_TRUE(stagehand.wantsSlot("f"));
  WeightRing ring = stagehand.ring();
  ++ring.slots;
  stagehand.setRing(ring);
  EXPECT_FALSE(stagehand.wantsSlot("f"));
  EXPECT_EQ(written(stagehand.beforeBlock("f").actions), Ids{"load f"});
}

TEST(WeightPressure, ASlotStaysWhereItsBlockCannotBeSavedBack) {
  WeightStagehand stagehand = underPressure("0");
  stagehand.changed("a", mib);
  size_t leaving = 0;
  for (const WeightAction &action : stagehand.makeRoom(4 * mib))
    if (action.kind == WeightAction::Kind::Evict && !action.saveBack)
      stagehand.evicted(action.block);
    else
      leaving += action.kind == WeightAction::Kind::Evict;
  ASSERT_EQ(leaving, 1u);
  int64_t slots = stagehand.ring().slots;
  EXPECT_EQ(written(stagehand.saveBackFailed("a")), Ids{});
  EXPECT_EQ(stagehand.ring().slots, slots + 1);
  EXPECT_EQ(stagehand.state("a"), BlockState::GpuReady);
}

// A plan that was made beside the ring has counted every byte, and no watermark takes its slots: only somebody who
// finds no memory does.
TEST(WeightPressure, ARingThatAPlanCountsOnKeepsItsSlots) {
  WeightStagehand stagehand = underPressure("0");
  WeightRing ring = stagehand.ring();
  ring.isKept = true;
  stagehand.setRing(ring);
  stagehand.measure(8 * mib + mib / 2);
  EXPECT_EQ(written(stagehand.beforeBlock("e").actions), (Ids{"evict a", "load e"})) << "for its slot";
  EXPECT_EQ(stagehand.ring().slots, 4);
  stagehand.evicted("a");
  stagehand.loaded("e");
  EXPECT_EQ(written(stagehand.afterBlock("e")), Ids{});
  EXPECT_EQ(written(stagehand.makeRoom(mib)), (Ids{"evict b", "give"}));
  EXPECT_EQ(stagehand.ring().slots, 3);
}
