//===- ConductorPropertyTest.cpp - what holds after any events ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorEvents.h"

using namespace segue;

static constexpr int seeds = 60, eventsPerSeed = 400;

/// Expects what must be true between any two events.
static void expectSound(ConductorRig &rig) {
  Json state = ConductorInspection::state(rig.conductor), record = rig.conductor.record();
  // Sums are those of the reservations.
  int64_t uncommitted = 0, pinned = 0;
  for (const ReservationHolder &holder : rig.conductor.holders()) {
    EXPECT_GE(holder.committedBytes, 0);
    EXPECT_GE(holder.grantedBytes, holder.committedBytes);
    if (holder.resource == BudgetResource::Pinned)
      pinned += holder.grantedBytes;
    else
      uncommitted += holder.grantedBytes - holder.committedBytes;
  }
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), state["allocated"].get<int64_t>() + uncommitted);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Pinned), pinned);
  EXPECT_LE(pinned, ConductorEvents::pinnedCap);
  // Tokens are in flight, and nobody waits beside a free slot.
  int inflight[2] = {0, 0};
  for (const Json &token : state["tokens"])
    ++inflight[token["direction"] == "d2h"];
  for (LinkDirection direction : {LinkDirection::H2d, LinkDirection::D2h}) {
    EXPECT_EQ(rig.conductor.inflight(direction), inflight[size_t(direction)]);
    bool isH2d = direction == LinkDirection::H2d;
    int limit = isH2d ? rig.conductor.hints().maxInflightH2d : rig.conductor.hints().maxInflightD2h;
    for (const Json &waiter : state["waiting"])
      if (waiter["direction"] == nameOf(direction)) {
        EXPECT_GE(inflight[size_t(direction)], limit);
      }
  }
  // Counts agree with each other.
  uint64_t reasons = 0;
  for (const auto &[reason, count] : record["deny_reasons"].items())
    reasons += count.get<uint64_t>();
  EXPECT_EQ(reasons, record["deny_count"].get<uint64_t>() + record["h2d_denied"].get<uint64_t>() +
                         record["d2h_denied"].get<uint64_t>());
  EXPECT_GE(record["h2d_peak"].get<int>(), inflight[0]);
  EXPECT_GE(record["d2h_peak"].get<int>(), inflight[1]);
  EXPECT_EQ(record["adapter_errors"], 0);
}

// Whatever happens in whatever order: grants respect their caps, sums and
// counts agree, hints only tighten within a step, and when everything is given
// back nothing is held.
TEST(ConductorProperty, HoldsAfterAnyEvents) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConductorEvents events(seed);
    ConductorRig rig(ConductorEvents::config);
    for (int i = 0; i < eventsPerSeed; ++i) {
      RuntimeLimitHints before = rig.conductor.hints();
      events.step(rig);
      expectSound(rig);
      if (rig.conductor.phase() != StepPhase::StepBegin) {
        EXPECT_LE(rig.window(), before.prefetchWindowCap);
        EXPECT_LE(rig.conductor.hints().maxInflightH2d, before.maxInflightH2d);
        EXPECT_LE(rig.conductor.hints().maxInflightD2h, before.maxInflightD2h);
        EXPECT_GE(rig.suppressed(), before.suppressSpeculative);
      }
      if (HasFailure())
        return; // the first is enough, with its seed
    }
    events.releaseAll(rig);
    EXPECT_EQ(rig.conductor.inflight(LinkDirection::H2d) + rig.conductor.inflight(LinkDirection::D2h), 0);
    Json state = ConductorInspection::state(rig.conductor);
    EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), state["allocated"].get<int64_t>());
    EXPECT_TRUE(state["waiting"].empty());
  }
}
