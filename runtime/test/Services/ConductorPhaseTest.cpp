//===- ConductorPhaseTest.cpp - the course of a step ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"
#include <set>

using namespace segue;

/// Brings a fresh Conductor to `phase`.
static void reach(ConductorRig &rig, StepPhase phase) {
  if (phase != StepPhase::Idle)
    rig.go(phase);
  ASSERT_EQ(rig.conductor.phase(), phase);
}

// All pairs: those of docs/specs/conductor.md are legal, entering the present phase
// is a no-op, and everything else is PHASE_ORDER with nothing changed.
TEST(ConductorPhase, AllowsExactlyTheTransitionsOfTheSpec) {
  using enum StepPhase;
  const std::set<std::pair<StepPhase, StepPhase>> legal = {
      {Idle, StepBegin}, {StepBegin, Forward}, {Forward, Backward}, {Backward, Optimizer}, {Optimizer, StepEnd},
      {StepEnd, Idle},   {Backward, Forward},  {Forward, StepEnd},  {Backward, StepEnd}};
  for (StepPhase old : {Idle, StepBegin, Forward, Backward, Optimizer, StepEnd})
    for (StepPhase next : {Idle, StepBegin, Forward, Backward, Optimizer, StepEnd}) {
      SCOPED_TRACE(std::string(nameOf(old)) + " to " + std::string(nameOf(next)));
      ConductorRig rig;
      reach(rig, old);
      if (old == next) {
        EXPECT_FALSE(rig.conductor.enterPhase(next));
      } else if (legal.contains({old, next})) {
        EXPECT_TRUE(rig.conductor.enterPhase(next));
        EXPECT_EQ(rig.conductor.phase(), next);
      } else {
        Json before = ConductorInspection::state(rig.conductor);
        EXPECT_ERROR(rig.conductor.enterPhase(next), PhaseOrder, "cannot follow " + std::string(nameOf(old)));
        EXPECT_EQ(ConductorInspection::state(rig.conductor), before);
      }
    }
}

TEST(ConductorPhase, SaysWhatCanFollow) {
  ConductorRig rig;
  rig.go(StepPhase::Backward);
  EXPECT_ERROR(rig.conductor.beginStep(1), PhaseOrder,
               "PHASE_ORDER: conductor: STEP_BEGIN cannot follow BACKWARD; FORWARD or OPTIMIZER or STEP_END can");
}

// begin_step and end_step are transitions like the others.
TEST(ConductorPhase, BeginsAndEndsSteps) {
  ConductorRig rig;
  EXPECT_ERROR(rig.conductor.endStep(), PhaseOrder, "STEP_END cannot follow IDLE");
  rig.conductor.beginStep(7);
  EXPECT_NO_THROW(rig.conductor.beginStep(7)); // the phase it is in
  EXPECT_ERROR(rig.conductor.beginStep(8), PhaseOrder, "STEP_BEGIN cannot follow STEP_BEGIN");
  EXPECT_ERROR(rig.conductor.endStep(), PhaseOrder, "STEP_END cannot follow STEP_BEGIN");
  rig.conductor.enterPhase(StepPhase::Forward);
  rig.conductor.endStep(); // evaluation
  EXPECT_EQ(rig.conductor.phase(), StepPhase::Idle);
  EXPECT_EQ(rig.conductor.record()["step_id"], 7);
  // A phase STEP_END first is the same.
  rig.go(StepPhase::StepEnd, 8);
  rig.conductor.endStep();
  EXPECT_EQ(rig.conductor.phase(), StepPhase::Idle);
  // Without a number, the next one.
  rig.conductor.enterPhase(StepPhase::StepBegin);
  EXPECT_EQ(rig.conductor.record()["step_id"], 9);
}

TEST(ConductorPhase, RefusesBlocksBetweenSteps) {
  ConductorRig rig;
  EXPECT_ERROR(rig.conductor.enterBlock("h.0"), PhaseOrder, "block \"h.0\" between steps; begin one first");
  rig.conductor.beginStep(0);
  EXPECT_NO_THROW(rig.conductor.enterBlock("h.0"));
}

namespace {
/// Notes what it is told, with what Conductor answers meanwhile.
class Witness : public ConductorAdapter {
public:
  Witness(std::string name, std::vector<std::string> &log, ConductorRig &rig) : name_(name), log_(log), rig_(rig) {}
  std::string owner() const override { return name_; }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    log_.push_back(name_ + " hints " + std::string(nameOf(phase)) + (hints.suppressSpeculative ? " suppress" : ""));
  }
  void onPhaseBegin(StepPhase phase) override { log_.push_back(name_ + " begin " + std::string(nameOf(phase))); }
  void onPhaseEnd(StepPhase phase) override {
    // Still the old phase, with its reservations.
    log_.push_back(name_ + " end " + std::string(nameOf(phase)) + " in " + std::string(nameOf(rig_.conductor.phase())) +
                   " with " + std::to_string(rig_.conductor.holders().size()));
  }

private:
  std::string name_;
  std::vector<std::string> &log_;
  ConductorRig &rig_;
};
} // namespace

// The order of a transition: ends in the order of registration and before
// reservations of the phase go, then hints for all, then begins.
TEST(ConductorPhase, TransitsInTheOrderOfTheSpec) {
  ConductorRig rig;
  std::vector<std::string> log;
  Witness first("first", log, rig), second("second", log, rig);
  rig.conductor.attach(first);
  rig.conductor.attach(second);
  rig.go(StepPhase::Backward);
  rig.reserve(BudgetMode::Hard, 1, {.scope = BudgetScope::Phase});
  log.clear();
  rig.conductor.enterPhase(StepPhase::Optimizer);
  EXPECT_EQ(log,
            (std::vector<std::string>{"first end BACKWARD in BACKWARD with 1", "second end BACKWARD in BACKWARD with 1",
                                      "first hints OPTIMIZER suppress", "second hints OPTIMIZER suppress",
                                      "first begin OPTIMIZER", "second begin OPTIMIZER"}));
  EXPECT_TRUE(rig.conductor.holders().empty());
  log.clear();
  rig.conductor.enterPhase(StepPhase::Optimizer);
  EXPECT_TRUE(log.empty()); // no evaluation, no broadcast
}

// STEP_BEGIN starts from the base hints although the last step ended tight.
TEST(ConductorPhase, ResetsHintsAtStepBegin) {
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  EXPECT_TRUE(rig.suppressed());
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 1);
  rig.conductor.endStep();
  EXPECT_TRUE(rig.suppressed()); // until the next begins
  rig.conductor.beginStep(1);
  EXPECT_FALSE(rig.suppressed());
  EXPECT_EQ(rig.conductor.hints().maxInflightH2d, 2);
}

// Scopes: `phase` ends with the phase of its grant, `step` at STEP_END.
TEST(ConductorPhase, ReleasesScopesInTime) {
  ConductorRig rig;
  auto count = [&] { return rig.conductor.holders().size(); };
  rig.reserve(BudgetMode::Hard, 1); // manual
  rig.go(StepPhase::Forward);
  rig.reserve(BudgetMode::Hard, 1, {.scope = BudgetScope::Phase});
  rig.reserve(BudgetMode::Floor, 1, {.scope = BudgetScope::Phase});
  rig.reserve(BudgetMode::Soft, 1, {.scope = BudgetScope::Step});
  EXPECT_EQ(count(), 4u);
  rig.conductor.enterPhase(StepPhase::Backward);
  EXPECT_EQ(count(), 2u);
  rig.reserve(BudgetMode::Burst, 1, {.scope = BudgetScope::Phase});
  rig.conductor.enterPhase(StepPhase::Forward); // gradient accumulation
  EXPECT_EQ(count(), 2u);
  rig.conductor.enterPhase(StepPhase::StepEnd);
  EXPECT_EQ(count(), 1u);
  // Granted at the very end of the step, and still gone before the next.
  rig.reserve(BudgetMode::Hard, 1, {.scope = BudgetScope::Step});
  rig.conductor.endStep();
  EXPECT_EQ(count(), 1u);
}

// An aborted step: waiters are told, reservations of scope phase and step go
// except FLOOR, the link drains before tokens are freed, the record says so.
TEST(ConductorPhase, AbortsAStep) {
  for (StepPhase where :
       {StepPhase::StepBegin, StepPhase::Forward, StepPhase::Backward, StepPhase::Optimizer, StepPhase::StepEnd}) {
    SCOPED_TRACE(nameOf(where));
    ConductorRig rig(R"({"vram_soft_cap_mb": 22000, "vram_hard_cap_mb": 23500, "h2d_slots": 1, "d2h_slots": 1,
                         "telemetry_interval_steps": 1000})");
    rig.go(where, 3);
    rig.records.clear();
    rig.acquire(1, LinkDirection::H2d);
    rig.acquire(2, LinkDirection::D2h);
    rig.wait(3, LinkDirection::D2h, Priority::Required);
    rig.wait(4, LinkDirection::H2d, Priority::Critical);
    rig.reserve(BudgetMode::Hard, 1, {.scope = BudgetScope::Phase});
    rig.reserve(BudgetMode::Burst, 1, {.scope = BudgetScope::Step});
    rig.reserve(BudgetMode::Floor, 2, {.scope = BudgetScope::Phase});
    rig.reserve(BudgetMode::Hard, 4);
    int drained = 0;
    rig.drain = [&] {
      ++drained;
      EXPECT_EQ(rig.conductor.inflight(LinkDirection::H2d), 1);
      rig.conductor.complete(1, 1000000000, 1000);
      EXPECT_EQ(rig.conductor.releaseToken(1, rig.a), std::nullopt); // nobody is woken any more
    };
    EXPECT_EQ(rig.conductor.abortStep(), (std::vector<uint64_t>{3, 4}));
    EXPECT_EQ(drained, 1);
    EXPECT_EQ(rig.conductor.phase(), StepPhase::Idle);
    EXPECT_EQ(rig.conductor.inflight(LinkDirection::H2d), 0);
    EXPECT_EQ(rig.conductor.inflight(LinkDirection::D2h), 0);
    EXPECT_TRUE(rig.granted.empty());
    EXPECT_EQ(rig.conductor.bandwidth(LinkDirection::H2d), 1.0);
    EXPECT_ERROR(rig.conductor.releaseToken(2, rig.a), TokenInvalid, "token 2 is not held");
    ASSERT_EQ(rig.conductor.holders().size(), 2u);
    EXPECT_EQ(rig.conductor.holders()[0].mode, BudgetMode::Floor);
    EXPECT_EQ(rig.conductor.holders()[1].grantedBytes, 4 * MiB);
    ASSERT_EQ(rig.records.size(), 1u); // although 3 is not a multiple of 1000
    EXPECT_EQ(rig.records[0]["aborted"], true);
    EXPECT_EQ(rig.records[0]["step_id"], 3);

    EXPECT_ERROR(rig.conductor.abortStep(), PhaseOrder, "there is no step to abort");
    rig.go(StepPhase::Forward, 4);
    EXPECT_FALSE(rig.suppressed());
    EXPECT_EQ(rig.window(), 3);
    expectToken(rig.acquire(5, LinkDirection::H2d), TokenStatus::Acquired);
    rig.conductor.endStep();
    EXPECT_EQ(rig.conductor.record()["aborted"], false);
  }
}

// A transfer of the first blocks of the next step outlives STEP_END.
TEST(ConductorPhase, KeepsTokensOverTheEndOfAStep) {
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  expectToken(rig.acquire(1, LinkDirection::H2d), TokenStatus::Acquired);
  rig.conductor.endStep();
  EXPECT_EQ(rig.conductor.inflight(LinkDirection::H2d), 1);
  rig.conductor.beginStep(1);
  EXPECT_EQ(rig.conductor.record()["h2d_peak"], 1);
  EXPECT_NO_THROW(rig.conductor.releaseToken(1, rig.a));
}
