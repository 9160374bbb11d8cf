//===- ConductorBudgetTest.cpp - grants of memory -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorRig.h"
#include "Session/ExpectError.h"

using namespace segue;
using enum BudgetMode;
using enum GrantStatus;

static constexpr const char *noReclaim =
    R"({"vram_soft_cap_mb": 22000, "vram_hard_cap_mb": 23500, "reclaim_enabled": false})";
static constexpr const char *smallCaps = R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 200, "pinned_cap_mb": 50})";

// The table of docs/specs/conductor.md, row by row.
TEST(ConductorBudget, FollowsTheWorkedTable) {
  ConductorRig rig(noReclaim);
  rig.measure(18000);
  expectGrant(rig.reserve(Hard, 4000), Granted, 4000); // equality
  uint64_t hard = rig.lastId;
  expectDenied(rig.reserve(Soft, 100), DenyReason::VramSoftCapExceeded);
  expectGrant(rig.reserve(Burst, 1500), Granted, 1500); // exactly the hard cap
  expectDenied(rig.reserve(Burst, 1), DenyReason::VramHardCapExceeded);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 23500 * MiB);
  rig.conductor.release(hard);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 19500 * MiB);
  expectGrant(rig.reserve(Soft, 5000), Partial, 2500);
  rig.conductor.release(rig.lastId);
  expectDenied(rig.reserve(Floor, 2501), DenyReason::VramSoftCapExceeded);
  expectGrant(rig.reserve(Floor, 2500), Granted, 2500);
}

// headroom = hard cap − allocated, as in v0's sample record: 21456.3 + 2043.7.
TEST(ConductorBudget, ReportsHeadroomAlsoNegative) {
  ConductorRig rig;
  rig.measure(21456.3);
  EXPECT_NEAR(rig.conductor.record()["vram_headroom_mb"].get<double>(), 2043.7, 1e-6);
  rig.measure(23501);
  EXPECT_EQ(rig.conductor.record()["vram_headroom_mb"], -1.0);
}

// HARD is all or nothing, SOFT takes what is left above its least, BURST goes
// up to the hard cap and is never partial. A byte decides.
TEST(ConductorBudget, DecidesByTheByte) {
  ConductorRig rig(smallCaps);
  rig.measure(40);
  expectDenied(rig.reserve(Hard, 61), DenyReason::VramSoftCapExceeded);
  expectGrant(rig.reserve(Soft, 61, {.minBytes = 60 * MiB}), Partial, 60);
  rig.conductor.release(rig.lastId);
  expectDenied(rig.reserve(Soft, 62, {.minBytes = 60 * MiB + 1}), DenyReason::VramSoftCapExceeded);
  expectGrant(rig.reserve(Soft, 60), Granted, 60);
  rig.conductor.release(rig.lastId);
  EXPECT_EQ(rig.conductor.reserve({.id = 900, .owner = rig.a, .bytes = 60 * MiB + 1}).status, Denied);
  EXPECT_EQ(rig.conductor.reserve({.id = 901, .owner = rig.a, .bytes = 60 * MiB}).status, Granted);
  // One byte is SOFT's default least.
  EXPECT_EQ(rig.conductor.reserve({.id = 902, .owner = rig.a, .bytes = MiB, .mode = Soft}).status, Denied);
  rig.conductor.release(901);
  EXPECT_EQ(rig.conductor.reserve({.id = 903, .owner = rig.a, .bytes = 60 * MiB - 1}).status, Granted);
  Grant byte = rig.conductor.reserve({.id = 904, .owner = rig.a, .bytes = MiB, .mode = Soft});
  EXPECT_EQ(byte.status, Partial);
  EXPECT_EQ(byte.bytes, 1);
  expectGrant(rig.reserve(Burst, 100), Granted, 100);
  expectDenied(rig.reserve(Burst, 1), DenyReason::VramHardCapExceeded);
}

// used(vram) counts what is granted and not committed; commitment moves bytes
// into the allocator's own figure.
TEST(ConductorBudget, CountsCommittedBytesOnce) {
  ConductorRig rig(smallCaps);
  expectGrant(rig.reserve(Hard, 30), Granted, 30);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 30 * MiB);
  rig.conductor.commit(1, 20 * MiB);
  rig.measure(20);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 30 * MiB);
  EXPECT_EQ(rig.conductor.record()["vram_reserved_uncommitted_mb"], 10.0);
  rig.conductor.uncommit(1, 5 * MiB);
  rig.measure(15);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 30 * MiB);
  rig.conductor.release(1); // 15 stay allocated
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 15 * MiB);
}

TEST(ConductorBudget, RefusesWhatCannotBeCommitted) {
  ConductorRig rig(smallCaps);
  rig.reserve(Hard, 30);
  EXPECT_ERROR(rig.conductor.commit(1, 30 * MiB + 1), InvalidArgument,
               "reservation 1: 31457281 bytes to commit, 31457280 of 31457280 are left");
  EXPECT_ERROR(rig.conductor.commit(1, -1), InvalidArgument, "-1 bytes to commit");
  EXPECT_ERROR(rig.conductor.uncommit(1, 1), InvalidArgument, "1 bytes to uncommit, 0 are committed");
  EXPECT_ERROR(rig.conductor.commit(2, 1), InvalidArgument, "reservation 2 is not live");
  EXPECT_ERROR(rig.conductor.uncommit(2, 1), InvalidArgument, "reservation 2 is not live");
  rig.conductor.release(1);
  EXPECT_ERROR(rig.conductor.release(1), InvalidArgument, "reservation 1 is not live");
  EXPECT_ERROR(rig.conductor.measure(-1), InvalidArgument, "-1 bytes allocated");
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 0);
}

// Pinned memory has one cap for all modes, and counts what is granted.
TEST(ConductorBudget, CapsPinnedMemory) {
  ConductorRig rig(smallCaps);
  auto pinned = [](BudgetMode) { return ReservationRequest{.resource = BudgetResource::Pinned}; };
  expectGrant(rig.reserve(Hard, 40, pinned(Hard)), Granted, 40);
  rig.conductor.commit(1, 40 * MiB);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Pinned), 40 * MiB);
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 0);
  expectDenied(rig.reserve(Burst, 11, pinned(Burst)), DenyReason::PinnedCapExceeded);
  expectDenied(rig.reserve(Floor, 11, pinned(Floor)), DenyReason::PinnedCapExceeded);
  expectGrant(rig.reserve(Soft, 11, pinned(Soft)), Partial, 10);
  expectDenied(rig.reserve(Soft, 11, pinned(Soft)), DenyReason::PinnedCapExceeded);
  // Without a cap it is tracked, never denied.
  ConductorRig free;
  expectGrant(free.reserve(Hard, 1 << 30, pinned(Hard)), Granted, 1 << 30);
  EXPECT_EQ(free.conductor.record()["pinned_granted_mb"], double(1 << 30));
}

// CEILING reserves nothing and bounds SOFT and BURST of its owner; HARD and
// FLOOR pass it and are counted. The lowest of several counts.
TEST(ConductorBudget, KeepsOwnersBelowTheirCeilings) {
  ConductorRig rig(smallCaps);
  expectGrant(rig.reserve(Ceiling, 1000), Granted, 0);
  expectGrant(rig.reserve(Ceiling, 30), Granted, 0);
  uint64_t low = rig.lastId;
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 0);
  expectDenied(rig.reserve(Burst, 31), DenyReason::OwnerCeilingExceeded);
  expectGrant(rig.reserve(Burst, 20), Granted, 20);
  expectGrant(rig.reserve(Soft, 20), Partial, 10);
  expectDenied(rig.reserve(Soft, 20), DenyReason::OwnerCeilingExceeded);
  expectGrant(rig.reserve(Hard, 5), Granted, 5);
  expectGrant(rig.reserve(Floor, 5), Granted, 5);
  EXPECT_EQ(rig.conductor.record()["ceiling_exceeded"], 2);
  // Of that owner and that resource alone.
  expectGrant(rig.reserve(Soft, 20, {.owner = rig.b}), Granted, 20);
  expectGrant(rig.reserve(Soft, 40, {.resource = BudgetResource::Pinned}), Granted, 40);
  // Where both stand in the way, the cap is the reason.
  expectDenied(rig.reserve(Burst, 500), DenyReason::VramHardCapExceeded);
  rig.conductor.release(low);
  expectGrant(rig.reserve(Soft, 20), Granted, 20);
  EXPECT_EQ(rig.conductor.record()["ceiling_exceeded"], 2);
}

// The decision order: the first rule that applies wins.
TEST(ConductorBudget, DecidesInTheOrderOfTheSpec) {
  ConductorRig rig(smallCaps);
  ServiceId stranger = ServiceId(99);
  // (1) nonsense, before the unknown owner, before the scope.
  expectDenied(rig.reserve(Hard, 0, {.owner = stranger}), DenyReason::InvalidRequest);
  expectDenied(rig.reserve(Hard, -1, {.scope = BudgetScope::Step}), DenyReason::InvalidRequest);
  expectDenied(rig.reserve(Soft, 1, {.minBytes = MiB + 1}), DenyReason::InvalidRequest);
  expectGrant(rig.reserve(Hard, 1, {.minBytes = 2 * MiB}), Granted, 1); // SOFT's alone
  EXPECT_EQ(rig.conductor.reserve({.id = rig.lastId, .owner = rig.a, .bytes = 1}).reason, DenyReason::InvalidRequest);
  expectDenied(rig.reserve(Hard, 1, {.owner = stranger, .scope = BudgetScope::Step}), DenyReason::UnknownOwner);
  expectDenied(rig.reserve(Ceiling, 1, {.owner = stranger}), DenyReason::UnknownOwner);
  expectDenied(rig.reserve(Ceiling, 0), DenyReason::InvalidRequest);
  // (2) a scope outside a step, before CEILING.
  expectDenied(rig.reserve(Hard, 1, {.scope = BudgetScope::Phase}), DenyReason::NotInStep);
  expectDenied(rig.reserve(Ceiling, 1, {.scope = BudgetScope::Step}), DenyReason::NotInStep);
  // (3) CEILING, before suppression; (4) suppression, before the caps.
  rig.go(StepPhase::Optimizer);
  expectGrant(rig.reserve(Ceiling, 150, {.priority = Priority::Speculative}), Granted, 0);
  for (Priority weak : {Priority::Speculative, Priority::Background})
    expectDenied(rig.reserve(Hard, 1000, {.priority = weak}), DenyReason::PhaseRuleSuppressedSpeculative);
  // Suppression is about device memory only.
  expectGrant(rig.reserve(Hard, 1, {.resource = BudgetResource::Pinned, .priority = Priority::Speculative}), Granted,
              1);
  for (Priority strong : {Priority::Required, Priority::Critical})
    expectGrant(rig.reserve(Hard, 1, {.priority = strong}), Granted, 1);
}

// Lowest priority first, newest first within it, only what is missing, and
// every loser is told.
TEST(ConductorBudget, ReclaimsInOrder) {
  ConductorRig rig(smallCaps);
  rig.go(StepPhase::Forward);
  rig.reserve(Soft, 20, {.owner = rig.b, .priority = Priority::Speculative}); // 1
  rig.reserve(Burst, 20, {.owner = rig.b, .priority = Priority::Background}); // 2
  rig.reserve(Soft, 20, {.owner = rig.b, .priority = Priority::Speculative}); // 3
  rig.reserve(Hard, 20, {.owner = rig.b, .priority = Priority::Background});  // 4: HARD is safe
  rig.reserve(Soft, 20, {.owner = rig.b, .priority = Priority::Required});    // 5: not lower
  rig.conductor.commit(2, 5 * MiB);                                           // committed bytes are safe
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 95 * MiB);
  Grant grant = rig.reserve(Hard, 40);
  expectGrant(grant, Granted, 40);
  EXPECT_EQ(grant.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{2, 15 * MiB}, {3, 20 * MiB}}));
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 100 * MiB);
  EXPECT_EQ(rig.conductor.record()["reclaimed_mb"], 35.0);
  // The loser is live with what it has committed, and may go on.
  EXPECT_EQ(rig.conductor.holders()[1].grantedBytes, 5 * MiB);
  EXPECT_ERROR(rig.conductor.commit(2, 1), InvalidArgument, "0 of 5242880 are left");
  EXPECT_NO_THROW(rig.conductor.release(2));
  EXPECT_NO_THROW(rig.conductor.release(3));
}

// All or nothing: a request that cannot be satisfied takes nothing.
TEST(ConductorBudget, ReclaimsAllOrNothing) {
  ConductorRig rig(smallCaps);
  rig.reserve(Soft, 50, {.owner = rig.b, .priority = Priority::Speculative});
  rig.reserve(Hard, 50, {.owner = rig.b});
  Grant grant = rig.reserve(Hard, 51);
  expectDenied(grant, DenyReason::VramSoftCapExceeded);
  EXPECT_TRUE(grant.reclaimed.empty());
  EXPECT_EQ(rig.conductor.holders()[0].grantedBytes, 50 * MiB);
  EXPECT_EQ(rig.conductor.record()["reclaimed_mb"], 0.0);
  expectGrant(rig.reserve(Hard, 50), Granted, 50);
}

// SOFT reclaims up to its least; the rest would be greed.
TEST(ConductorBudget, ReclaimsTheLeastOfASoftRequest) {
  ConductorRig rig(smallCaps);
  rig.reserve(Soft, 100, {.owner = rig.b, .priority = Priority::Background});
  Grant grant = rig.reserve(Soft, 60, {.minBytes = 10 * MiB});
  expectGrant(grant, Partial, 10);
  EXPECT_EQ(grant.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{1, 10 * MiB}}));
  // With room left nothing is taken, however little it is.
  rig.conductor.release(2);
  grant = rig.reserve(Soft, 60);
  expectGrant(grant, Partial, 10);
  EXPECT_TRUE(grant.reclaimed.empty());
}

// cap − used may be negative: then more than the request is missing.
TEST(ConductorBudget, ReclaimsBeyondAnExceededCap) {
  ConductorRig rig(smallCaps);
  rig.reserve(Burst, 60, {.owner = rig.b, .priority = Priority::Background});
  rig.measure(70); // used 130 of 100
  Grant grant = rig.reserve(Hard, 20);
  expectGrant(grant, Granted, 20);
  EXPECT_EQ(grant.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{1, 50 * MiB}}));
  EXPECT_EQ(rig.conductor.usedBytes(BudgetResource::Vram), 100 * MiB);
}

// BURST measures against the hard cap, with what it reclaims too.
TEST(ConductorBudget, ReclaimsForBurst) {
  ConductorRig rig(smallCaps);
  rig.measure(100);
  rig.reserve(Burst, 80, {.owner = rig.b, .priority = Priority::Speculative});
  Grant grant = rig.reserve(Burst, 50);
  expectGrant(grant, Granted, 50);
  EXPECT_EQ(grant.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{1, 30 * MiB}}));
}

// Only a cap is worth reclaiming for, only the strong may, and only where it
// is configured.
TEST(ConductorBudget, ReclaimsForNobodyElse) {
  ConductorRig rig(smallCaps);
  rig.reserve(Soft, 100, {.owner = rig.b, .priority = Priority::Background});
  expectDenied(rig.reserve(Hard, 10, {.priority = Priority::Speculative}), DenyReason::VramSoftCapExceeded);
  rig.reserve(Ceiling, 5);
  expectDenied(rig.reserve(Burst, 10), DenyReason::OwnerCeilingExceeded);
  expectDenied(rig.reserve(Soft, 10, {.minBytes = 6 * MiB}), DenyReason::VramSoftCapExceeded); // both
  EXPECT_EQ(rig.conductor.holders()[0].grantedBytes, 100 * MiB);
  // Pinned requests take no device memory from anybody.
  rig.reserve(Hard, 50, {.resource = BudgetResource::Pinned});
  expectDenied(rig.reserve(Hard, 1, {.resource = BudgetResource::Pinned}), DenyReason::PinnedCapExceeded);
  EXPECT_EQ(rig.conductor.holders()[0].grantedBytes, 100 * MiB);

  ConductorRig off(R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 200, "reclaim_enabled": false})");
  off.reserve(Soft, 100, {.owner = off.b, .priority = Priority::Background});
  expectDenied(off.reserve(Hard, 1), DenyReason::VramSoftCapExceeded);
}

// What an owner gives up to itself lets it pass its own ceiling.
TEST(ConductorBudget, ReclaimsFromTheOwnerItself) {
  ConductorRig rig(smallCaps);
  rig.reserve(Ceiling, 100);
  rig.reserve(Soft, 100, {.priority = Priority::Background}); // 2
  Grant grant = rig.reserve(Soft, 40, {.minBytes = 40 * MiB});
  expectGrant(grant, Granted, 40);
  EXPECT_EQ(grant.reclaimed, (std::vector<std::pair<uint64_t, int64_t>>{{2, 40 * MiB}}));
}

// Measured above the hard cap: nothing is granted, nothing wraps around.
TEST(ConductorBudget, GrantsNothingAboveTheHardCap) {
  ConductorRig rig(smallCaps);
  for (int64_t allocated : {201 * MiB, INT64_MAX}) {
    rig.conductor.measure(allocated);
    expectDenied(rig.reserve(Hard, 1), DenyReason::VramSoftCapExceeded);
    expectDenied(rig.reserve(Soft, 1), DenyReason::VramSoftCapExceeded);
    expectDenied(rig.reserve(Floor, 1), DenyReason::VramSoftCapExceeded);
    expectDenied(rig.reserve(Burst, 1), DenyReason::VramHardCapExceeded);
    EXPECT_EQ(rig.conductor.reserve({.id = 500, .owner = rig.a, .bytes = INT64_MAX}).status, Denied);
    EXPECT_EQ(rig.conductor.reserve({.id = 500, .owner = rig.a, .bytes = INT64_MAX, .mode = Burst}).status, Denied);
  }
  rig.measure(201);
  EXPECT_GT(rig.conductor.record()["pressure_max"].get<double>(), 1.0);
  rig.measure(0);
  expectGrant(rig.reserve(Hard, 100), Granted, 100);
}

// What an out-of-memory error shows.
TEST(ConductorBudget, ListsItsHolders) {
  ConductorRig rig(smallCaps);
  rig.reserve(Floor, 3);
  rig.reserve(Soft, 4, {.owner = rig.b, .resource = BudgetResource::Pinned});
  rig.conductor.commit(1, MiB);
  EXPECT_EQ(rig.conductor.holdersTable(), "  a, reservation 1, FLOOR vram: 3145728 bytes granted, 1048576 committed\n"
                                          "  b, reservation 2, SOFT pinned: 4194304 bytes granted, 0 committed\n");
}

// Off: unlimited, at once, and nothing is kept.
TEST(ConductorBudget, GrantsEverythingWhenOff) {
  Conductor conductor;
  EXPECT_FALSE(conductor.isEnabled());
  ServiceId owner = conductor.registerOwner("a");
  Grant grant = conductor.reserve({.id = 1, .owner = owner, .bytes = INT64_MAX});
  EXPECT_EQ(grant.status, Granted);
  EXPECT_EQ(grant.bytes, INT64_MAX);
  conductor.beginStep(5);
  EXPECT_FALSE(conductor.enterPhase(StepPhase::Optimizer));
  conductor.enterBlock("h.0");
  conductor.measure(-1);
  conductor.commit(1, 1);
  conductor.uncommit(2, 1);
  conductor.release(3);
  conductor.endStep();
  EXPECT_TRUE(conductor.abortStep().empty());
  EXPECT_EQ(conductor.phase(), StepPhase::Idle);
  EXPECT_EQ(conductor.usedBytes(BudgetResource::Vram), 0);
  EXPECT_EQ(conductor.hints().maxInflightH2d, INT32_MAX);
  EXPECT_FALSE(conductor.hints().suppressSpeculative);
  expectToken(conductor.tryAcquire({.id = 1}), TokenStatus::Acquired);
  expectToken(conductor.acquireOrWait({.id = 1}), TokenStatus::Acquired);
  expectToken(conductor.timeOut(1), TokenStatus::Acquired);
  conductor.cancelWait(1);
  conductor.complete(1, 1, 1);
  EXPECT_EQ(conductor.releaseToken(1, owner), std::nullopt);
  EXPECT_EQ(conductor.inflight(LinkDirection::H2d), 0);
  EXPECT_TRUE(conductor.record().is_null());
  EXPECT_TRUE(ConductorInspection::state(conductor).is_null());
  EXPECT_TRUE(conductor.holders().empty());
  EXPECT_EQ(conductor.detach(owner).tokens, 0u);
  // A config that does not enable it is the same.
  EXPECT_FALSE(Conductor(ConductorConfig(), ConductorConfig().limits(1 << 30)).isEnabled());
}
