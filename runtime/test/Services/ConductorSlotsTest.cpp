//===- ConductorSlotsTest.cpp - slots of the link -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"

using namespace segue;
using enum LinkDirection;
using enum TokenStatus;

static constexpr const char *oneSlot = R"({"h2d_slots": 1, "d2h_slots": 1})";

// Rules (1) to (4) of try_acquire in their order.
TEST(ConductorSlots, DecidesInTheOrderOfTheSpec) {
  ConductorRig rig;
  rig.go(StepPhase::Optimizer); // suppressed; one H2D slot
  TokenRequest stranger{.id = 1, .owner = ServiceId(99), .priority = Priority::Speculative};
  expectToken(rig.conductor.tryAcquire(stranger), Denied, DenyReason::UnknownOwner);
  expectToken(rig.acquire(1, H2d), Acquired);
  expectToken(rig.acquire(1, H2d), Denied, DenyReason::InvalidRequest); // that id is held
  for (Priority weak : {Priority::Speculative, Priority::Background})
    for (LinkDirection direction : {H2d, D2h})
      expectToken(rig.acquire(9, direction, weak), Denied, DenyReason::PhaseRuleSuppressedSpeculative);
  expectToken(rig.acquire(2, H2d), Denied, DenyReason::H2dSlotsExhausted);
  expectToken(rig.acquire(3, D2h), Acquired);
  expectToken(rig.acquire(4, D2h), Acquired);
  expectToken(rig.acquire(5, D2h, Priority::Critical), Denied, DenyReason::D2hSlotsExhausted);
  Json record = rig.conductor.record();
  EXPECT_EQ(record["h2d_inflight"], 1);
  EXPECT_EQ(record["d2h_inflight"], 2);
  EXPECT_EQ(record["d2h_peak"], 2);
  EXPECT_EQ(record["h2d_denied"], 5);
  EXPECT_EQ(record["d2h_denied"], 3);
  EXPECT_EQ(record["deny_count"], 0); // reservations only
  EXPECT_EQ(record["deny_reasons"]["PHASE_RULE_SUPPRESSED_SPECULATIVE"], 4);
}

// A phase that lowers the limit below what is in flight ends no transfer.
TEST(ConductorSlots, LetsRunningTransfersFinish) {
  ConductorRig rig;
  rig.go(StepPhase::Backward);
  rig.acquire(1, H2d);
  rig.acquire(2, H2d);
  rig.conductor.enterPhase(StepPhase::Optimizer); // limit 1
  EXPECT_EQ(rig.conductor.inflight(H2d), 2);
  expectToken(rig.acquire(3, H2d), Denied, DenyReason::H2dSlotsExhausted);
  rig.conductor.releaseToken(1, rig.a);
  expectToken(rig.acquire(3, H2d), Denied, DenyReason::H2dSlotsExhausted); // 1 of 1 is in use
  rig.conductor.releaseToken(2, rig.a);
  expectToken(rig.acquire(3, H2d), Acquired);
}

// Weak requests never wait; a freed slot goes to the highest priority, first
// come within one.
TEST(ConductorSlots, QueuesByPriorityThenOrder) {
  ConductorRig rig(oneSlot);
  expectToken(rig.wait(1, H2d), Acquired);
  expectToken(rig.wait(2, H2d, Priority::Speculative), Denied, DenyReason::H2dSlotsExhausted);
  expectToken(rig.wait(3, H2d, Priority::Background), Denied, DenyReason::H2dSlotsExhausted);
  expectToken(rig.wait(4, H2d), Waiting, DenyReason::H2dSlotsExhausted);
  expectToken(rig.wait(5, H2d), Waiting, DenyReason::H2dSlotsExhausted);
  expectToken(rig.wait(6, H2d, Priority::Critical), Waiting, DenyReason::H2dSlotsExhausted);
  expectToken(rig.wait(7, D2h), Acquired); // the other direction
  expectToken(rig.wait(5, H2d), Denied, DenyReason::InvalidRequest);
  EXPECT_EQ(rig.conductor.releaseToken(7, rig.a), std::nullopt);
  EXPECT_EQ(rig.conductor.releaseToken(1, rig.a), 6u);
  EXPECT_EQ(rig.conductor.releaseToken(6, rig.a), 4u);
  EXPECT_EQ(rig.conductor.releaseToken(4, rig.a), 5u);
  EXPECT_EQ(rig.conductor.releaseToken(5, rig.a), std::nullopt);
  EXPECT_EQ(rig.granted, (std::vector<uint64_t>{6, 4, 5}));
  EXPECT_EQ(rig.conductor.inflight(H2d), 0);
}

// Progress is never lost to accounting: a wait that lasted too long goes on
// over the limit and is counted, and its slot is not there for others.
TEST(ConductorSlots, TimesOutOverTheLimit) {
  ConductorRig rig(oneSlot);
  rig.wait(1, D2h);
  rig.wait(2, D2h);
  rig.wait(3, D2h);
  expectToken(rig.conductor.timeOut(2), Acquired);
  EXPECT_EQ(rig.conductor.inflight(D2h), 2);
  EXPECT_EQ(rig.conductor.record()["slot_overruns"], 1);
  EXPECT_EQ(rig.conductor.record()["d2h_peak"], 2);
  EXPECT_EQ(rig.conductor.releaseToken(1, rig.a), std::nullopt); // 1 of 1 still in flight
  EXPECT_EQ(rig.conductor.releaseToken(2, rig.a), 3u);
  EXPECT_ERROR(rig.conductor.timeOut(3), TokenInvalid, "nobody waits for token 3");
}

TEST(ConductorSlots, GivesUpAWait) {
  ConductorRig rig(oneSlot);
  rig.wait(1, H2d);
  rig.wait(2, H2d);
  rig.conductor.cancelWait(2);
  EXPECT_ERROR(rig.conductor.cancelWait(2), TokenInvalid, "nobody waits for token 2");
  EXPECT_EQ(rig.conductor.releaseToken(1, rig.a), std::nullopt);
}

// Who waited through OPTIMIZER's limit of one gets the slot that STEP_BEGIN
// gives back.
TEST(ConductorSlots, WakesWaitersWhenALimitRises) {
  ConductorRig rig;
  rig.go(StepPhase::Optimizer);
  rig.acquire(1, H2d);
  expectToken(rig.wait(2, H2d), Waiting, DenyReason::H2dSlotsExhausted);
  rig.conductor.endStep();
  EXPECT_TRUE(rig.granted.empty());
  rig.conductor.beginStep(1);
  EXPECT_EQ(rig.granted, (std::vector<uint64_t>{2}));
  EXPECT_EQ(rig.conductor.inflight(H2d), 2);
}

// Twice, never acquired, somebody else's: TOKEN_INVALID and nothing changes.
TEST(ConductorSlots, RefusesTokensThatAreNotHeld) {
  ConductorRig rig(oneSlot);
  rig.acquire(1, H2d);
  rig.wait(2, H2d);
  Json before = ConductorInspection::state(rig.conductor);
  EXPECT_ERROR(rig.conductor.releaseToken(1, rig.b), TokenInvalid, "token 1 is held by \"a\", not by \"b\"");
  EXPECT_ERROR(rig.conductor.releaseToken(1, ServiceId(99)), TokenInvalid, "not by a known owner");
  EXPECT_ERROR(rig.conductor.releaseToken(2, rig.a), TokenInvalid, "token 2 is not held"); // it waits
  EXPECT_ERROR(rig.conductor.releaseToken(3), TokenInvalid, "token 3 is not held");
  EXPECT_ERROR(rig.conductor.complete(2, 1, 1), TokenInvalid, "token 2 is not held");
  EXPECT_EQ(ConductorInspection::state(rig.conductor), before);
  rig.conductor.releaseToken(1);
  rig.conductor.releaseToken(2);
  EXPECT_ERROR(rig.conductor.releaseToken(1, rig.a), TokenInvalid,
               "token 1 is not held: it was never acquired, or released already");
  EXPECT_EQ(rig.conductor.inflight(H2d), 0);
}

// ewma = 0.8 · old + 0.2 · new, the first sample whole; failed transfers, which
// are released without completing, do not count.
TEST(ConductorSlots, MeasuresBandwidth) {
  ConductorRig rig;
  EXPECT_EQ(rig.conductor.bandwidth(H2d), std::nullopt);
  EXPECT_TRUE(rig.conductor.record()["h2d_gbps"].is_null());
  rig.acquire(1, H2d);
  rig.conductor.complete(1, 12000000000, 1000);
  EXPECT_EQ(rig.conductor.bandwidth(H2d), 12.0);
  EXPECT_ERROR(rig.conductor.complete(1, 1, 1), TokenInvalid, "the transfer of token 1 is complete already");
  rig.conductor.releaseToken(1);
  rig.acquire(2, H2d);
  rig.conductor.complete(2, 2000000000, 1000);
  EXPECT_DOUBLE_EQ(*rig.conductor.bandwidth(H2d), 0.8 * 12 + 0.2 * 2);
  EXPECT_EQ(rig.conductor.bandwidth(D2h), std::nullopt);
  rig.acquire(3, H2d);
  rig.conductor.releaseToken(3); // failed
  EXPECT_DOUBLE_EQ(*rig.conductor.bandwidth(H2d), 10.0);
  EXPECT_DOUBLE_EQ(rig.conductor.record()["h2d_gbps"].get<double>(), 10.0);
  // No time, no bytes: no figure.
  for (auto [bytes, ms] : {std::pair(1, 0.0), std::pair(0, 1.0)}) {
    rig.acquire(4, H2d);
    rig.conductor.complete(4, bytes, ms);
    rig.conductor.releaseToken(4);
  }
  EXPECT_DOUBLE_EQ(*rig.conductor.bandwidth(H2d), 10.0);
  rig.acquire(5, H2d);
  EXPECT_ERROR(rig.conductor.complete(5, -1, 1), InvalidArgument, "a transfer of -1 bytes");
  EXPECT_ERROR(rig.conductor.complete(5, 1, -1), InvalidArgument, "a transfer of 1 bytes in -1");
  EXPECT_NO_THROW(rig.conductor.complete(5, 1000, 1)); // not completed by the errors
}
