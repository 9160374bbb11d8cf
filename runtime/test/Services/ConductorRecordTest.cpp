//===- ConductorRecordTest.cpp - telemetry, states, event logs ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"
#include <set>

using namespace segue;

// Exactly the keys of docs/specs/conductor.md.
TEST(ConductorRecord, HasTheKeysOfTheSpec) {
  const std::set<std::string> expected = {"step_id",           "vram_allocated_mb",
                                          "vram_headroom_mb",  "pinned_granted_mb",
                                          "h2d_inflight",      "d2h_inflight",
                                          "grant_count",       "deny_count",
                                          "partial_count",     "phase_durations",
                                          "runtime_snapshots", "vram_reserved_uncommitted_mb",
                                          "h2d_peak",          "d2h_peak",
                                          "h2d_denied",        "d2h_denied",
                                          "slot_overruns",     "deny_reasons",
                                          "pressure_max",      "suppressed_at",
                                          "reclaimed_mb",      "ceiling_exceeded",
                                          "adapter_errors",    "h2d_gbps",
                                          "d2h_gbps",          "aborted"};
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  rig.conductor.endStep();
  ASSERT_EQ(rig.records.size(), 1u);
  std::set<std::string> found;
  for (const auto &[key, value] : rig.records[0].items())
    found.insert(key);
  EXPECT_EQ(found, expected);
}

// Every telemetry_interval_steps-th step, counted by its number.
TEST(ConductorRecord, IsWrittenAtItsInterval) {
  ConductorRig rig(R"({"telemetry_interval_steps": 3})");
  for (int64_t step = 0; step < 8; ++step) {
    rig.go(StepPhase::Optimizer, step);
    rig.conductor.endStep();
  }
  ASSERT_EQ(rig.records.size(), 3u);
  EXPECT_EQ(rig.records[2]["step_id"], 6);
  ConductorRig off(R"({"telemetry_interval_steps": 1, "telemetry_enabled": false})");
  off.go(StepPhase::Optimizer);
  off.conductor.endStep();
  off.conductor.beginStep(1);
  off.conductor.abortStep();
  EXPECT_TRUE(off.records.empty());
}

// Durations are what the caller measured, summed over re-entries.
TEST(ConductorRecord, SumsPhaseDurations) {
  ConductorRig rig;
  rig.conductor.beginStep(0);
  rig.conductor.enterPhase(StepPhase::Forward, 0.5);
  rig.conductor.enterPhase(StepPhase::Backward, 1);
  rig.conductor.enterPhase(StepPhase::Forward, 2);
  rig.conductor.enterPhase(StepPhase::Backward, 4);
  rig.conductor.endStep(8);
  EXPECT_EQ(rig.records.at(0)["phase_durations"],
            Json::parse(R"({"step_begin": 0.5, "forward": 5.0, "backward": 10.0})"));
  rig.conductor.beginStep(10);
  rig.conductor.abortStep(3);
  EXPECT_EQ(rig.records.at(1)["phase_durations"], Json::parse(R"({"step_begin": 3.0})"));
}

// grant, partial and deny counts are disjoint and of this step alone.
TEST(ConductorRecord, CountsOneStep) {
  ConductorRig rig(R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 200})");
  rig.reserve(BudgetMode::Hard, 10); // before the step
  rig.go(StepPhase::Forward);
  rig.reserve(BudgetMode::Hard, 50);
  rig.reserve(BudgetMode::Soft, 50);
  rig.reserve(BudgetMode::Hard, 50);
  rig.reserve(BudgetMode::Burst, 500);
  rig.reserve(BudgetMode::Burst, 501);
  rig.conductor.endStep();
  EXPECT_EQ(rig.records.at(0)["grant_count"], 1);
  EXPECT_EQ(rig.records.at(0)["partial_count"], 1);
  EXPECT_EQ(rig.records.at(0)["deny_count"], 3);
  EXPECT_EQ(rig.records.at(0)["deny_reasons"],
            Json::parse(R"({"VRAM_SOFT_CAP_EXCEEDED": 1, "VRAM_HARD_CAP_EXCEEDED": 2})"));
  EXPECT_EQ(rig.records.at(0)["vram_reserved_uncommitted_mb"], 100.0);
  rig.conductor.beginStep(1);
  Json fresh = rig.conductor.record();
  EXPECT_EQ(fresh["grant_count"], 0);
  EXPECT_EQ(fresh["deny_reasons"], Json::object());
}

/// A Conductor in the middle of things, with something of everything.
static void busy(ConductorRig &rig) {
  rig.conductor.setBlockPrecision({{"h.1", "int8"}});
  rig.go(StepPhase::Backward, 6);
  rig.conductor.setBlockPrecision({{"h.1", "bf16"}});
  rig.measure(60);
  rig.reserve(BudgetMode::Soft, 30, {.owner = rig.b, .priority = Priority::Speculative});
  rig.reserve(BudgetMode::Floor, 5, {.scope = BudgetScope::Phase});
  rig.reserve(BudgetMode::Ceiling, 7, {.scope = BudgetScope::Step});
  rig.reserve(BudgetMode::Hard, 7, {.resource = BudgetResource::Pinned});
  rig.conductor.commit(1, 3 * MiB);
  rig.acquire(101, LinkDirection::H2d);
  rig.acquire(102, LinkDirection::H2d);
  rig.conductor.complete(101, 5000000, 1);
  rig.wait(103, LinkDirection::H2d);
  rig.wait(104, LinkDirection::H2d, Priority::Critical);
  rig.measure(90);
  rig.conductor.enterBlock("h.1");
}

/// Goes on from there; what it gets.
static std::vector<std::string> goOn(ConductorRig &rig) {
  std::vector<std::string> answers;
  auto note = [&](const Json &json) { answers.push_back(json.dump()); };
  auto token = [&](std::optional<uint64_t> id) { note(id ? Json(*id) : Json()); };
  rig.lastId = 200;
  note(toJson(rig.conductor.hints()));
  note(toJson(rig.reserve(BudgetMode::Soft, 8)));
  note(toJson(rig.reserve(BudgetMode::Hard, 2, {.priority = Priority::Speculative})));
  note(toJson(rig.reserve(BudgetMode::Hard, 8)));
  token(rig.conductor.releaseToken(101, rig.a));
  token(rig.conductor.releaseToken(102, rig.a));
  EXPECT_ERROR(rig.conductor.complete(101, 1, 1), TokenInvalid, "");
  rig.conductor.enterPhase(StepPhase::Optimizer, 1.5);
  note(toJson(rig.conductor.hints()));
  rig.conductor.endStep(0.5);
  note(rig.conductor.record());
  rig.conductor.beginStep(7);
  note(toJson(rig.conductor.hints()));
  note(rig.conductor.saveState());
  return answers;
}

static constexpr const char *busyConfig =
    R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 110, "contention_checks": 0})";

// A restored Conductor answers as the saved one would have, to the byte, also
// from text and with its owners in another order.
TEST(ConductorRecord, RestoresItsState) {
  ConductorRig one(busyConfig), two(busyConfig);
  busy(one);
  std::string saved = one.conductor.saveState().dump();
  two.conductor.restoreState(Json::parse(saved));
  EXPECT_EQ(two.conductor.saveState().dump(), saved);
  EXPECT_EQ(goOn(one), goOn(two));

  ConductorRig three(busyConfig);
  three.conductor.detach(three.a);
  three.a = three.conductor.registerOwner("a");
  three.conductor.restoreState(Json::parse(saved));
  EXPECT_EQ(three.conductor.saveState().dump(), saved);
}

// Services attached to a Conductor that is restored in mid-step get its hints.
TEST(ConductorRecord, PushesRestoredHints) {
  ConductorRig one(busyConfig), two(busyConfig);
  busy(one);
  StagehandKnobs knobs;
  StagehandAdapter adapter("stagehand", knobs);
  two.conductor.attach(adapter);
  two.conductor.restoreState(one.conductor.saveState());
  EXPECT_EQ(knobs.prefetchWindow, 1);
}

// A state that cannot be is refused, and nothing has changed.
TEST(ConductorRecord, RefusesStatesThatCannotBe) {
  ConductorRig rig(busyConfig), other(busyConfig);
  busy(rig);
  const Json good = rig.conductor.saveState();
  const Json before = other.conductor.saveState();
  auto refused = [&](auto change, const char *message) {
    Json bad = good;
    change(bad);
    EXPECT_ERROR(other.conductor.restoreState(bad), InvalidArgument, message);
    EXPECT_EQ(other.conductor.saveState(), before);
  };
  refused([](Json &s) { s["version"] = 2; }, "version 2 found, 1 read");
  refused([](Json &s) { s["phase"] = "LUNCH"; }, "no such name: \"LUNCH\"");
  refused([](Json &s) { s["reservations"][0]["owner"] = "zoe"; }, "owner \"zoe\" is not registered");
  refused([](Json &s) { s["reservations"][1]["id"] = s["reservations"][0]["id"]; }, "reservation 1 cannot be");
  refused([](Json &s) { s["reservations"][0]["committed"] = -1; }, "reservation 1 cannot be");
  refused([](Json &s) { s["reservations"][0]["granted"] = 1; }, "reservation 1 cannot be");
  refused([](Json &s) { s["reservations"][3]["granted"] = int64_t(1) << 61; }, "reservation 4 cannot be");
  refused([](Json &s) { s["waiting"][0]["id"] = 101; }, "token 101 stands twice");
  refused([](Json &s) { s["allocated"] = -5; }, "-5 bytes allocated");
  refused([](Json &s) { s.erase("tokens"); }, "conductor state: ");
  refused([](Json &s) { s["hints"]["h2d"] = "two"; }, "conductor state: ");
  refused([](Json &s) { s = Json::array(); }, "conductor state: ");
  EXPECT_NO_THROW(other.conductor.restoreState(good));
}
