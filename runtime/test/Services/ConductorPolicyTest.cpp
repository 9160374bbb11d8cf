//===- ConductorPolicyTest.cpp - what services are limited to -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"

using namespace segue;
using enum LinkDirection;

/// Fills every slot that hints allow, both ways.
static void fillSlots(ConductorRig &rig) {
  for (LinkDirection direction : {H2d, D2h})
    while (rig.acquire(++rig.lastId, direction).status == TokenStatus::Acquired)
      ;
}

// The worked example: 18800 of 23500 is 0.8 exactly and not above it, one more
// is; falling below helps nothing in this step, the next starts afresh.
TEST(ConductorPolicy, SuppressesUnderBackwardPressure) {
  ConductorRig rig;
  rig.go(StepPhase::Forward);
  rig.measure(23000);
  rig.conductor.enterBlock("h.0"); // forward: no rule
  EXPECT_FALSE(rig.suppressed());
  rig.measure(18800);
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_FALSE(rig.suppressed());
  EXPECT_EQ(rig.window(), 3);
  rig.measure(18801);
  rig.conductor.enterBlock("h.1");
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.window(), 1);
  rig.measure(15000);
  rig.conductor.enterBlock("h.0");
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.window(), 1);
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 2);
  EXPECT_EQ(rig.conductor.record()["suppressed_at"], "BACKWARD/h.1");
  EXPECT_DOUBLE_EQ(rig.conductor.record()["pressure_max"].get<double>(), 23000.0 / 23500);
  rig.conductor.endStep();
  rig.conductor.beginStep(1);
  EXPECT_FALSE(rig.suppressed());
  EXPECT_EQ(rig.window(), 3);
  EXPECT_TRUE(rig.conductor.record()["suppressed_at"].is_null());
}

// Already too much when backward begins: the transition itself suppresses.
TEST(ConductorPolicy, EvaluatesAtTransitions) {
  ConductorRig rig;
  rig.go(StepPhase::Forward);
  rig.measure(18801);
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.conductor.record()["suppressed_at"], "BACKWARD");
}

// v0 evaluated at phases only.
TEST(ConductorPolicy, EvaluatesAtPhasesOnlyIfAsked) {
  ConductorRig rig(R"({"vram_hard_cap_mb": 23500, "evaluate_on": "phase"})");
  rig.go(StepPhase::Backward);
  rig.measure(23000);
  rig.conductor.enterBlock("h.1");
  EXPECT_FALSE(rig.suppressed());
  rig.conductor.enterPhase(StepPhase::Forward);
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_TRUE(rig.suppressed());
}

// OPTIMIZER always suppresses and keeps one load in flight.
TEST(ConductorPolicy, ProtectsTheOptimizer) {
  ConductorRig rig(R"({"h2d_slots": 4, "d2h_slots": 4})");
  rig.go(StepPhase::Optimizer);
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 1);
  EXPECT_EQ(rig.conductor.hints().maxInflightD2h, 4);
  EXPECT_EQ(rig.window(), 3);
  EXPECT_EQ(rig.conductor.record()["suppressed_at"], "OPTIMIZER");
}

// The worked example: window 3, five full checks in a row: 3, 3, 3, 2, 1; a
// sixth stays 1; one that is not full keeps 1 but zeroes the counter.
TEST(ConductorPolicy, ShrinksTheWindowUnderContention) {
  ConductorRig rig(R"({"h2d_slots": 1, "d2h_slots": 2})");
  rig.go(StepPhase::Forward);
  fillSlots(rig);
  std::vector<int> windows;
  for (int check = 0; check < 6; ++check) {
    rig.conductor.enterBlock("h." + std::to_string(check));
    windows.push_back(rig.window());
  }
  EXPECT_EQ(windows, (std::vector<int>{3, 3, 3, 2, 1, 1}));
  rig.conductor.releaseToken(1);
  rig.conductor.enterBlock("h.6");
  EXPECT_EQ(rig.window(), 1);
  EXPECT_EQ(ConductorInspection::state(rig.conductor)["contention"], 0);
  rig.conductor.endStep();
  rig.conductor.beginStep(1);
  EXPECT_EQ(rig.window(), 3);
}

// One direction full is not full; a check in between starts the count again.
TEST(ConductorPolicy, CountsFullChecksInARowOnly) {
  ConductorRig rig(R"({"h2d_slots": 1, "d2h_slots": 1, "contention_checks": 1})");
  rig.go(StepPhase::Forward);
  rig.acquire(1, H2d);
  for (int check = 0; check < 4; ++check)
    rig.conductor.enterBlock("h");
  EXPECT_EQ(rig.window(), 3);
  rig.acquire(2, D2h);
  rig.conductor.enterBlock("h"); // 1
  rig.conductor.releaseToken(2);
  rig.conductor.enterBlock("h"); // 0
  rig.acquire(3, D2h);
  rig.conductor.enterBlock("h"); // 1
  EXPECT_EQ(rig.window(), 3);
  rig.conductor.enterBlock("h"); // 2 > 1
  EXPECT_EQ(rig.window(), 2);
}

// With no allowed check the first full one shrinks.
TEST(ConductorPolicy, ShrinksAtOnceIfNoCheckIsAllowed) {
  ConductorRig rig(R"({"h2d_slots": 1, "d2h_slots": 1, "contention_checks": 0, "prefetch_window_cap": 9})");
  rig.go(StepPhase::Forward);
  fillSlots(rig);
  rig.conductor.enterBlock("h.0");
  EXPECT_EQ(rig.window(), 8);
}

// Contention never widens what pressure has narrowed.
TEST(ConductorPolicy, TakesTheNarrowerWindow) {
  ConductorRig rig(
      R"({"vram_hard_cap_mb": 100, "h2d_slots": 1, "d2h_slots": 1, "contention_checks": 0, "prefetch_window_cap": 9})");
  rig.go(StepPhase::Backward);
  fillSlots(rig);
  rig.measure(90);
  rig.conductor.enterBlock("h.0");
  EXPECT_EQ(rig.window(), 1);
}

// Limits only tighten within a step, whatever comes and goes.
TEST(ConductorPolicy, IsMonotoneWithinAStep) {
  ConductorRig rig(R"({"vram_hard_cap_mb": 100})");
  rig.go(StepPhase::Backward);
  rig.measure(81);
  rig.conductor.enterBlock("h.0");
  rig.measure(0);
  rig.conductor.enterPhase(StepPhase::Forward); // the next micro-batch
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.window(), 1);
  rig.conductor.endStep();
  EXPECT_TRUE(rig.suppressed());
}

// The precision map changes at STEP_BEGIN alone.
TEST(ConductorPolicy, ChangesPrecisionBetweenSteps) {
  ConductorRig rig;
  EXPECT_EQ(rig.conductor.hints().blockPrecision, nullptr);
  rig.go(StepPhase::Forward);
  rig.conductor.setBlockPrecision({{"h.0", "int8"}});
  rig.conductor.enterBlock("h.0");
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_EQ(rig.conductor.hints().blockPrecision, nullptr);
  rig.conductor.endStep();
  rig.conductor.beginStep(1);
  ASSERT_NE(rig.conductor.hints().blockPrecision, nullptr);
  EXPECT_EQ(rig.conductor.hints().blockPrecision->at("h.0"), "int8");
  rig.conductor.enterPhase(StepPhase::Forward);
  EXPECT_EQ(rig.conductor.hints().blockPrecision->at("h.0"), "int8");
}

/// A backward pass over h.2, h.1, h.0 with these peaks in MiB.
static std::vector<PlannedBlock> backwardPlan(std::initializer_list<int64_t> peaks) {
  std::vector<PlannedBlock> plan;
  size_t block = peaks.size();
  for (int64_t peak : peaks)
    plan.push_back({StepPhase::Backward, "h." + std::to_string(--block), peak * MiB, 0, 0, 0});
  return plan;
}

// Suppression begins one block before the pressure: at the boundary into h.1
// the plan of h.0 counts, although nothing is measured yet.
TEST(ConductorPolicy, SeesThePlannedPeakOfTheNextBlock) {
  ConductorRig rig(R"({"vram_hard_cap_mb": 100})");
  rig.conductor.setPlan(backwardPlan({50, 80, 81}));
  rig.go(StepPhase::Backward);
  EXPECT_FALSE(rig.suppressed()); // next: h.2, 50
  rig.conductor.enterBlock("h.2");
  EXPECT_FALSE(rig.suppressed()); // next: h.1, 80 is not above
  rig.conductor.enterBlock("h.1");
  EXPECT_TRUE(rig.suppressed()); // next: h.0, 81
  EXPECT_EQ(rig.conductor.record()["suppressed_at"], "BACKWARD/h.1");
  EXPECT_EQ(rig.conductor.record()["pressure_max"], 0.0); // what was measured
}

TEST(ConductorPolicy, SeesTheFirstPlannedPeakAtTheTransition) {
  ConductorRig rig(R"({"vram_hard_cap_mb": 100})");
  rig.conductor.setPlan(backwardPlan({81, 10, 10}));
  rig.go(StepPhase::Forward);
  EXPECT_FALSE(rig.suppressed());
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_TRUE(rig.suppressed());
}

// What is measured counts where it is more; blocks out of order or unknown to
// the plan are followed as far as it knows them.
TEST(ConductorPolicy, FollowsThePlanOutOfOrder) {
  ConductorRig rig(R"({"vram_hard_cap_mb": 100})");
  rig.conductor.setPlan(backwardPlan({10, 10, 99}));
  rig.go(StepPhase::Backward);
  rig.conductor.enterBlock("h.0"); // the last: nothing is next
  EXPECT_FALSE(rig.suppressed());
  rig.conductor.enterBlock("head"); // not planned
  EXPECT_FALSE(rig.suppressed());
  rig.conductor.enterBlock("h.2");
  EXPECT_FALSE(rig.suppressed());
  rig.conductor.enterBlock("h.1");
  EXPECT_TRUE(rig.suppressed());
  ConductorRig measured(R"({"vram_hard_cap_mb": 100})");
  measured.conductor.setPlan(backwardPlan({10, 10, 10}));
  measured.go(StepPhase::Backward);
  measured.measure(81);
  measured.conductor.enterBlock("h.2");
  EXPECT_TRUE(measured.suppressed());
}

TEST(ConductorPolicy, TakesPlansBetweenSteps) {
  ConductorRig rig;
  rig.conductor.beginStep(0);
  EXPECT_ERROR(rig.conductor.setPlan({}), PhaseOrder, "a plan is set between steps; this is STEP_BEGIN");
}

/// Four blocks of 10 ms each, with loads of 1 MB before the first three and 25
/// MB before the last, and 1 MB away after each.
static std::vector<PlannedBlock> streamingPlan() {
  std::vector<PlannedBlock> plan;
  for (int block = 0; block < 4; ++block)
    plan.push_back(
        {StepPhase::Forward, "h." + std::to_string(block), 0, 0.010, block < 3 ? 1000000 : 25000000, 1000000});
  return plan;
}

/// A completed transfer at `gbps`.
static void transferAt(ConductorRig &rig, LinkDirection direction, double gbps) {
  rig.acquire(++rig.lastId, direction);
  rig.conductor.complete(rig.lastId, int64_t(gbps * 1e6), 1);
  rig.conductor.releaseToken(rig.lastId);
}

// `slots: auto`: at 1 GB/s the loads of a step take 28 ms of its 40, one at a
// time; the last takes 25 ms, which three blocks of 10 ms hide.
TEST(ConductorPolicy, FitsSlotsToTheMeasuredLink) {
  ConductorRig rig(R"({"slots": "auto", "h2d_slots": 8, "d2h_slots": 8, "prefetch_window_cap": 9})");
  rig.conductor.setPlan(streamingPlan());
  rig.go(StepPhase::Forward);
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 8); // nothing measured yet
  transferAt(rig, H2d, 1);
  rig.conductor.enterBlock("h.0");
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 8); // never inside a step
  rig.conductor.endStep();
  rig.conductor.beginStep(1);
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 1);
  EXPECT_EQ(rig.window(), 3);
  EXPECT_EQ(rig.conductor.hints().maxInflightD2h, 8);
  rig.conductor.enterPhase(StepPhase::Forward);
  // A slower link both ways: 0.8 · 1 + 0.2 · 0.0 …, after some transfers.
  for (int i = 0; i < 100; ++i)
    transferAt(rig, H2d, 0.25), transferAt(rig, D2h, 0.1);
  rig.conductor.endStep();
  rig.conductor.beginStep(2);
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 3); // 112 ms of loads in 40
  EXPECT_EQ(rig.conductor.hints().maxInflightD2h, 1); // 40 ms in 40
  EXPECT_EQ(rig.window(), 4);                         // the whole step is not enough
}

// Never beyond the configured maximum.
TEST(ConductorPolicy, KeepsAutoSlotsWithinTheConfiguredOnes) {
  ConductorRig rig(R"({"slots": "auto", "h2d_slots": 2, "d2h_slots": 2, "prefetch_window_cap": 2})");
  rig.conductor.setPlan(streamingPlan());
  rig.go(StepPhase::Forward);
  transferAt(rig, H2d, 0.1);
  transferAt(rig, D2h, 0.001);
  rig.conductor.endStep();
  rig.conductor.beginStep(1);
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 2);
  EXPECT_EQ(rig.conductor.hints().maxInflightD2h, 2);
  EXPECT_EQ(rig.window(), 2);
}

// Without a plan, or without times in it, the configured slots stay.
TEST(ConductorPolicy, KeepsConfiguredSlotsWithoutFigures) {
  for (bool planned : {false, true}) {
    ConductorRig rig(R"({"slots": "auto", "h2d_slots": 5})");
    if (planned)
      rig.conductor.setPlan(backwardPlan({1, 2}));
    rig.go(StepPhase::Forward);
    transferAt(rig, H2d, 1);
    rig.conductor.endStep();
    rig.conductor.beginStep(1);
    EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 5);
  }
}

// The next block is needed for certain, those behind it are a guess.
TEST(ConductorPolicy, LoadsTheNextBlockAsRequired) {
  EXPECT_EQ(priorityOfLoad(0), Priority::Required);
  EXPECT_EQ(priorityOfLoad(1), Priority::Required);
  EXPECT_EQ(priorityOfLoad(2), Priority::Speculative);
  EXPECT_EQ(priorityOfLoad(7), Priority::Speculative);
  // So that suppression lets the next one pass.
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  EXPECT_EQ(rig.acquire(1, H2d, priorityOfLoad(1)).status, TokenStatus::Acquired);
  EXPECT_EQ(rig.acquire(2, H2d, priorityOfLoad(2)).reason, DenyReason::PhaseRuleSuppressedSpeculative);
}
