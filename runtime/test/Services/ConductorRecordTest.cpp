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
