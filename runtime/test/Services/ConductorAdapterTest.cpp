//===- ConductorAdapterTest.cpp - services and their knobs ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"

using namespace segue;

// The table of what hints do, for Weight Stagehand.
TEST(ConductorAdapter, LimitsWeightStagehand) {
  StagehandKnobs own{.maxInflight = 4, .prefetchWindow = 5};
  StagehandKnobs under = own.under({2, 2, 3, false, nullptr});
  EXPECT_EQ(under.maxInflight, 2);
  EXPECT_EQ(under.prefetchWindow, 3);
  EXPECT_EQ(own.under({2, 2, 3, true, nullptr}).prefetchWindow, 1);
  // Hints never widen.
  under = StagehandKnobs{.maxInflight = 1, .prefetchWindow = 0}.under({64, 64, 99, true, nullptr});
  EXPECT_EQ(under.maxInflight, 1);
  EXPECT_EQ(under.prefetchWindow, 0);
}

// And for Activation Stagehand: in OPTIMIZER, suppression stops spills.
TEST(ConductorAdapter, LimitsActivationStagehand) {
  ActivationKnobs own{.maxD2h = 4, .maxH2d = 4};
  ActivationKnobs under = own.under({2, 3, 1, false, nullptr}, StepPhase::Optimizer);
  EXPECT_EQ(under.maxH2d, 2);
  EXPECT_EQ(under.maxD2h, 3);
  EXPECT_EQ(own.under({2, 3, 1, true, nullptr}, StepPhase::Backward).maxD2h, 3);
  under = own.under({2, 3, 1, true, nullptr}, StepPhase::Optimizer);
  EXPECT_EQ(under.maxD2h, 0);
  EXPECT_EQ(under.maxH2d, 2);
}

// Saved at attach, pushed at every transition, restored at detach.
TEST(ConductorAdapter, SavesAndRestoresKnobs) {
  StagehandKnobs knobs{.maxInflight = 4, .prefetchWindow = 5};
  StagehandAdapter adapter("stagehand", knobs);
  ConductorRig rig;
  ServiceId id = rig.conductor.attach(adapter);
  EXPECT_EQ(rig.conductor.service("stagehand"), id);
  EXPECT_EQ(knobs.prefetchWindow, 5); // no step, no limits
  rig.go(StepPhase::Optimizer);
  EXPECT_EQ(knobs.maxInflight, 1);
  EXPECT_EQ(knobs.prefetchWindow, 1);
  EXPECT_EQ(rig.conductor.record()["runtime_snapshots"],
            Json::parse(R"({"stagehand": {"max_inflight": 1, "prefetch_window": 1}})"));
  rig.conductor.detach(id);
  EXPECT_EQ(knobs.maxInflight, 4);
  EXPECT_EQ(knobs.prefetchWindow, 5);
  rig.conductor.endStep();
  EXPECT_EQ(knobs.maxInflight, 4); // no longer told anything
  EXPECT_EQ(rig.conductor.service("stagehand"), std::nullopt);
  EXPECT_TRUE(rig.warnings.empty());
}

// A run that ends by an error in mid-step leaves the services as they were.
TEST(ConductorAdapter, RestoresKnobsWhenARunFails) {
  ActivationKnobs knobs{.maxD2h = 3, .maxH2d = 3};
  ActivationAdapter adapter("activation_stagehand", knobs);
  try {
    ConductorRig rig;
    rig.conductor.attach(adapter);
    rig.go(StepPhase::Optimizer);
    EXPECT_EQ(knobs.maxD2h, 0);
    EXPECT_EQ(rig.conductor.record()["runtime_snapshots"]["activation_stagehand"],
              Json::parse(R"({"max_d2h": 0, "max_h2d": 1})"));
    throw std::runtime_error("the run fails");
  } catch (const std::runtime_error &) {
  }
  EXPECT_EQ(knobs.maxD2h, 3);
  EXPECT_EQ(knobs.maxH2d, 3);
  // Also where another Conductor takes its place.
  ConductorRig rig;
  rig.conductor.attach(adapter);
  rig.go(StepPhase::Optimizer);
  rig.conductor = Conductor();
  EXPECT_EQ(knobs.maxD2h, 3);
}

// Who comes in mid-step works under the hints of the step.
TEST(ConductorAdapter, PushesHintsToLateComers) {
  StagehandKnobs knobs;
  StagehandAdapter adapter("stagehand", knobs);
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  rig.conductor.attach(adapter);
  EXPECT_EQ(knobs.prefetchWindow, 1);
}

TEST(ConductorAdapter, RefusesANameTwice) {
  StagehandKnobs knobs;
  StagehandAdapter adapter("a", knobs);
  ConductorRig rig;
  EXPECT_ERROR(rig.conductor.attach(adapter), InvalidArgument, "an owner \"a\" is registered already");
  EXPECT_ERROR(rig.conductor.registerOwner("b"), InvalidArgument, "an owner \"b\" is registered already");
  rig.conductor.detach(rig.a);
  EXPECT_NO_THROW(rig.conductor.attach(adapter));
}

namespace {
/// Fails where it is told to.
class Clumsy : public ConductorAdapter {
public:
  std::string owner() const override { return "clumsy"; }
  void saveKnobs() override { fail("save"); }
  void restoreKnobs() override { fail("restore"); }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    fail("hints");
    window = hints.prefetchWindowCap;
  }
  void onPhaseBegin(StepPhase phase) override {
    fail("begin");
    if (at == "reenter")
      conductor->enterPhase(StepPhase::Backward);
    if (at == "reenter block")
      conductor->enterBlock("h.0");
  }
  void onPhaseEnd(StepPhase phase) override { fail("end"); }
  void onReclaimed(uint64_t id, int64_t bytes) override {
    reclaimed.push_back({id, bytes});
    fail("reclaimed");
  }
  Json knobs() const override {
    const_cast<Clumsy *>(this)->fail("knobs");
    return Json::object();
  }

  std::string at;
  int window = 77;
  Conductor *conductor = nullptr;
  std::vector<std::pair<uint64_t, int64_t>> reclaimed;

private:
  void fail(const std::string &where) {
    if (at == where)
      throw std::runtime_error("no " + where);
    if (at == "alien " + where)
      throw 5;
  }
};
} // namespace

// An adapter that throws keeps its old knobs, the others get theirs, and one
// sentence at the end of the transition says so.
TEST(ConductorAdapter, OutlivesAdaptersThatThrow) {
  for (const char *where : {"hints", "begin", "end"}) {
    SCOPED_TRACE(where);
    Clumsy clumsy;
    StagehandKnobs knobs;
    StagehandAdapter good("stagehand", knobs);
    ConductorRig rig;
    rig.conductor.attach(clumsy);
    rig.conductor.attach(good);
    rig.go(StepPhase::Backward);
    int before = clumsy.window;
    clumsy.at = where;
    rig.measure(23000);
    EXPECT_TRUE(rig.conductor.enterPhase(StepPhase::Optimizer));
    EXPECT_EQ(knobs.prefetchWindow, 1);
    if (clumsy.at == "hints") {
      EXPECT_EQ(clumsy.window, before);
    }
    ASSERT_EQ(rig.warnings.size(), 1u);
    EXPECT_EQ(rig.warnings[0], "conductor, OPTIMIZER: service \"clumsy\": no " + std::string(where));
    EXPECT_EQ(rig.conductor.record()["adapter_errors"], 1);
    clumsy.at = "alien " + clumsy.at;
    rig.conductor.endStep();
    EXPECT_NE(rig.warnings.back().find("an unknown exception"), std::string::npos);
  }
}

// At a block too; a record without one service's knobs is still a record.
TEST(ConductorAdapter, OutlivesThemAtBlocksAndInRecords) {
  Clumsy clumsy;
  ConductorRig rig;
  rig.conductor.attach(clumsy);
  rig.go(StepPhase::Backward);
  clumsy.at = "hints";
  rig.measure(23000);
  rig.conductor.enterBlock("h.3");
  EXPECT_EQ(rig.warnings, (std::vector<std::string>{"conductor, BACKWARD: service \"clumsy\": no hints"}));
  rig.conductor.enterBlock("h.2"); // nothing new to say
  EXPECT_EQ(rig.warnings.size(), 1u);
  clumsy.at = "knobs";
  EXPECT_FALSE(rig.conductor.record()["runtime_snapshots"].contains("clumsy"));
}

// An adapter must not enter a phase or a block in the middle of a transition.
TEST(ConductorAdapter, KeepsAdaptersOutOfTransitions) {
  for (const char *where : {"reenter", "reenter block"}) {
    Clumsy clumsy;
    ConductorRig rig;
    clumsy.conductor = &rig.conductor;
    rig.conductor.attach(clumsy);
    rig.go(StepPhase::StepBegin);
    clumsy.at = where;
    rig.conductor.enterPhase(StepPhase::Forward);
    EXPECT_EQ(rig.conductor.phase(), StepPhase::Forward);
    ASSERT_EQ(rig.warnings.size(), 1u);
    EXPECT_NE(rig.warnings[0].find("PHASE_ORDER: conductor: an adapter asked for a phase or block"), std::string::npos)
        << rig.warnings[0];
    clumsy.at.clear();
    EXPECT_TRUE(rig.conductor.enterPhase(StepPhase::Backward)); // and all goes on
  }
}

// A service that cannot save its knobs is not attached.
TEST(ConductorAdapter, AttachesWholeOrNotAtAll) {
  Clumsy clumsy;
  ConductorRig rig;
  clumsy.at = "save";
  EXPECT_THROW(rig.conductor.attach(clumsy), std::runtime_error);
  EXPECT_EQ(rig.conductor.service("clumsy"), std::nullopt);
  clumsy.at = "restore";
  rig.conductor.detach(rig.conductor.attach(clumsy));
  EXPECT_EQ(rig.warnings.size(), 1u);
}

// Losers are told what was taken, after all of it was.
TEST(ConductorAdapter, TellsOwnersWhatWasReclaimed) {
  Clumsy clumsy;
  ConductorRig rig(R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 200})");
  ServiceId id = rig.conductor.attach(clumsy);
  rig.reserve(BudgetMode::Soft, 60, {.owner = id, .priority = Priority::Speculative});
  rig.reserve(BudgetMode::Soft, 40, {.owner = id, .priority = Priority::Background});
  clumsy.at = "reclaimed";
  EXPECT_EQ(rig.reserve(BudgetMode::Hard, 50).status, GrantStatus::Granted);
  EXPECT_EQ(clumsy.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{2, 40 * MiB}, {1, 10 * MiB}}));
  EXPECT_EQ(rig.conductor.record()["adapter_errors"], 2);
  ASSERT_EQ(rig.warnings.size(), 1u);
  EXPECT_EQ(rig.warnings[0], "conductor, IDLE: service \"clumsy\": no reclaimed; service \"clumsy\": no reclaimed");
}

// Detached while holding: tokens, waits and reservations go, FLOOR too, those
// who waited behind them get the slots, and it is counted.
TEST(ConductorAdapter, ReleasesWhatADetachedServiceHolds) {
  ConductorRig rig(R"({"h2d_slots": 1, "d2h_slots": 1})");
  rig.go(StepPhase::Forward);
  rig.reserve(BudgetMode::Floor, 5);
  rig.reserve(BudgetMode::Hard, 5, {.resource = BudgetResource::Pinned, .scope = BudgetScope::Step});
  rig.reserve(BudgetMode::Hard, 5, {.owner = rig.b});
  rig.acquire(1, LinkDirection::H2d);
  rig.acquire(2, LinkDirection::D2h);
  rig.wait(3, LinkDirection::H2d, Priority::Critical);
  rig.conductor.acquireOrWait({.id = 4, .owner = rig.b, .direction = LinkDirection::H2d});
  Conductor::Detached held = rig.conductor.detach(rig.a);
  EXPECT_EQ(held.reservations, 2u);
  EXPECT_EQ(held.tokens, 2u);
  EXPECT_EQ(held.waiters, 1u);
  EXPECT_EQ(rig.granted, (std::vector<uint64_t>{4}));
  EXPECT_EQ(rig.conductor.inflight(LinkDirection::H2d), 1);
  EXPECT_EQ(rig.conductor.inflight(LinkDirection::D2h), 0);
  EXPECT_EQ(rig.conductor.holders().size(), 1u);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Pinned), 0);
  EXPECT_EQ(rig.conductor.record()["adapter_errors"], 1);
  ASSERT_EQ(rig.warnings.size(), 1u);
  EXPECT_NE(rig.warnings[0].find("it was detached while it held 2 reservations and 2 tokens, and waited for 1"),
            std::string::npos);
  expectDenied(rig.reserve(BudgetMode::Hard, 1), DenyReason::UnknownOwner);
  expectToken(rig.acquire(5, LinkDirection::D2h), TokenStatus::Denied, DenyReason::UnknownOwner);
  EXPECT_EQ(rig.conductor.detach(rig.a).tokens, 0u); // once
}
