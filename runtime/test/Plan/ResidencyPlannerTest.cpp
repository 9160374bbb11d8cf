//===- ResidencyPlannerTest.cpp - what leaves when, for a budget ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>

using namespace segue;

namespace {

/// A step of `blocks` blocks that each save one tensor of `bytes`, over a base
/// of `base` bytes: saves are events 0 .. n-1, restores n .. 2n-1 in reverse.
StepProfile makeStack(uint32_t blocks, uint64_t bytes, uint64_t base, double seconds, double bandwidth) {
  StepProfile profile;
  profile.link = {bandwidth, bandwidth, 0};
  for (uint32_t event = 0; event < 2 * blocks; ++event) {
    bool forward = event < blocks;
    uint32_t block = forward ? event : 2 * blocks - 1 - event;
    profile.events.push_back({.kind = forward ? StepEvent::Kind::Save : StepEvent::Kind::Restore,
                              .phase = forward ? Phase::Forward : Phase::Backward,
                              .label = "b" + std::to_string(block),
                              .peakBytes = base + bytes * (block + 1),
                              .seconds = seconds});
  }
  for (uint32_t block = 0; block < blocks; ++block)
    profile.gaps.push_back({.tensor = "b" + std::to_string(block),
                            .bytes = bytes,
                            .outBytes = bytes,
                            .inBytes = bytes,
                            .leaves = block,
                            .needed = 2 * blocks - 1 - block});
  return profile;
}

/// Adds a resident that blocks touch at some events: between each two it may be
/// away if it is around the end of the step, as it is changed at the last.
void addResident(StepProfile &profile, const std::string &name, std::vector<uint32_t> touched, uint64_t bytes) {
  auto resident = uint32_t(profile.residents.size()), around = uint32_t(profile.gaps.size());
  profile.residents.push_back({name, Role::Parameter, bytes});
  for (StepEvent &event : profile.events)
    event.peakBytes += bytes;
  auto add = [&](uint32_t leaves, uint32_t needed, uint64_t outBytes) {
    profile.gaps.push_back({.tensor = name,
                            .bytes = bytes,
                            .outBytes = outBytes,
                            .inBytes = bytes,
                            .leaves = leaves,
                            .needed = needed,
                            .with = needed <= leaves ? noIndex : around,
                            .resident = resident});
  };
  // Touched from one event to the next.
  if (touched.back() + 1 < profile.events.size())
    add(touched.back() + 1, touched.front(), bytes);
  else
    around = noIndex;
  for (size_t i = 0; i + 1 < touched.size() && around != noIndex; ++i)
    if (touched[i] + 1 < touched[i + 1])
      add(touched[i] + 1, touched[i + 1], 0);
}

/// Weights of `bytes` are queued at `event`; the work of `waits` has to wait for
/// them that long.
void addWeights(StepProfile &profile, uint32_t event, uint64_t bytes, uint32_t waits, double seconds) {
  profile.events[event].h2dBytes += bytes;
  profile.events[waits].linkWaitSeconds = seconds;
  profile.events[waits].seconds += seconds;
}

/// A step whose saves, restores, weights and times are random.
StepProfile makeRandom(std::mt19937 &random) {
  auto pick = [&](uint64_t low, uint64_t high) { return std::uniform_int_distribution<uint64_t>(low, high)(random); };
  StepProfile profile;
  profile.link = {double(pick(1, 1000)), double(pick(1, 1000)), double(pick(0, 2))};
  auto events = uint32_t(pick(2, 60));
  for (uint32_t event = 0; event < events; ++event)
    profile.events.push_back(
        {.label = std::to_string(event), .peakBytes = pick(0, 200), .seconds = double(pick(0, 9))});
  for (uint64_t gap = 0, count = pick(0, 40); gap < count; ++gap) {
    auto leaves = uint32_t(pick(0, events - 2)), needed = uint32_t(pick(leaves + 1, events - 1));
    uint64_t bytes = pick(0, 300);
    profile.gaps.push_back({.tensor = std::to_string(gap),
                            .bytes = bytes,
                            .outBytes = pick(0, 2) ? bytes : 0,
                            .inBytes = bytes / pick(1, 2),
                            .leaves = leaves,
                            .needed = needed});
    for (uint32_t event = leaves; event < needed; ++event)
      profile.events[event].peakBytes += bytes;
  }
  for (uint64_t resident = 0, count = pick(0, 10); resident < count; ++resident) {
    std::set<uint32_t> touched;
    for (uint64_t use = 0, uses = pick(1, 4); use < uses; ++use)
      touched.insert(uint32_t(pick(0, events - 1)));
    addResident(profile, "w" + std::to_string(resident), {touched.begin(), touched.end()}, pick(1, 100));
  }
  if (pick(0, 2))
    return profile;
  profile.below = {{double(pick(1, 1000)), double(pick(1, 1000)), double(pick(0, 2))}, pick(0, 2000), pick(0, 500)};
  for (ResidencyGap &gap : profile.gaps)
    gap.isOnDisk = gap.resident != noIndex && gap.resident % 2;
  return profile;
}

/// Runs that make some of the saved tensors again, from some that were saved before and
/// from residents.
void addRemakes(StepProfile &profile, std::mt19937 &random) {
  auto pick = [&](uint64_t low, uint64_t high) { return std::uniform_int_distribution<uint64_t>(low, high)(random); };
  for (uint32_t gap = 0; gap < profile.gaps.size(); ++gap) {
    if (profile.gaps[gap].resident != noIndex || profile.gaps[gap].remake != noIndex || !pick(0, 1))
      continue;
    uint32_t first = profile.gaps[gap].leaves;
    auto number = uint32_t(profile.remakes.size());
    StepRemake &remake = profile.remakes.emplace_back();
    remake.seconds = double(pick(0, 20)) / 10;
    remake.bytes = profile.gaps[gap].bytes + pick(0, 60);
    profile.gaps[gap].remake = number;
    // Two may come from one run.
    if (uint32_t other = gap + 1; other < profile.gaps.size() && profile.gaps[other].resident == noIndex && !pick(0, 3)) {
      profile.gaps[other].remake = number;
      remake.bytes += profile.gaps[other].bytes;
      first = std::min(first, profile.gaps[other].leaves);
    }
    // The tensors that a run reads may be gone when the last that it makes is needed.
    if (!pick(0, 1))
      remake.latest = uint32_t(pick(profile.gaps[gap].leaves, profile.gaps[gap].needed + 1));
    for (uint32_t source = 0; source < profile.gaps.size(); ++source)
      if (profile.gaps[source].resident == noIndex && profile.gaps[source].leaves < first && !pick(0, 5))
        remake.gaps.push_back(source);
    for (uint32_t resident = 0; resident < profile.residents.size(); ++resident)
      if (!pick(0, 5))
        remake.residents.push_back(resident);
  }
  // Whatever is read at an event is there when it happens.
  for (StepEvent &event : profile.events)
    event.liveBytes = event.peakBytes;
  for (const ResidencyGap &gap : profile.gaps)
    if (gap.resident == noIndex) {
      profile.events[gap.needed].peakBytes += gap.bytes;
      profile.events[gap.needed].liveBytes += gap.bytes;
    }
}

/// The curve that follows from the plan's departures alone.
std::vector<uint64_t> replay(const StepProfile &profile, const ResidencyPlan &plan) {
  std::vector<uint64_t> curve;
  for (uint32_t event = 0; event < profile.events.size(); ++event) {
    uint64_t live = profile.events[event].peakBytes;
    for (const Departure &departure : plan.away) {
      const ResidencyGap &gap = profile.gaps[departure.gap];
      bool isGone = gap.passesEnd() ? event >= gap.leaves || event < departure.returns
                                    : event >= gap.leaves && event < departure.returns;
      live -= isGone ? gap.bytes : 0;
    }
    curve.push_back(live);
  }
  return curve;
}

TEST(ResidencyPlanner, LeavesAllWhereEverythingFits) {
  ResidencyPlanner planner(makeStack(5, 10, 3, 1, 10));
  EXPECT_EQ(planner.unconstrained().peakBytes, 53u);
  EXPECT_TRUE(planner.plan(53).away.empty());
  EXPECT_EQ(planner.plan(53).seconds, 10);
  EXPECT_EQ(planner.plan(53).stallSeconds, 0);
}

TEST(ResidencyPlanner, TheOneNeededLastLeavesFirst) {
  // Time to spare on the link: 1 s per tensor and event.
  ResidencyPlanner planner(makeStack(5, 10, 0, 1, 10));
  const ResidencyPlan &plan = planner.plan(40);
  ASSERT_EQ(plan.away.size(), 1u);
  EXPECT_EQ(planner.profile().gaps[plan.away[0].gap].tensor, "b0");
  EXPECT_EQ(plan.peakBytes, 40u);
  EXPECT_EQ(plan.stallSeconds, 0);
}

TEST(ResidencyPlanner, TheSmallestBudgetHoldsOneTensorAtATime) {
  ResidencyPlanner planner(makeStack(5, 10, 3, 1, 10));
  // A tensor that just came back is read while nothing else is there.
  EXPECT_EQ(planner.smallestBudget(), 13u);
  const ResidencyPlan &plan = planner.plan(13);
  EXPECT_EQ(plan.peakBytes, 13u);
  // The last one saved is the first one needed and stays.
  EXPECT_EQ(plan.away.size(), 4u);
  EXPECT_EQ(plan.outBytes, 40u);
  EXPECT_EQ(plan.inBytes, 40u);
  EXPECT_EQ(plan.hostPeakBytes, 40u);
}

TEST(ResidencyPlanner, FetchesAheadWhereMemoryLetsIt) {
  // A copy takes the time of half an event; with room, nothing waits.
  StepProfile profile = makeStack(6, 10, 0, 1, 20);
  ResidencyPlanner planner(profile);
  const ResidencyPlan &plan = planner.plan(30);
  EXPECT_LE(plan.peakBytes, 30u);
  EXPECT_EQ(plan.stallSeconds, 0);
  for (const Departure &departure : plan.away)
    EXPECT_LT(departure.returns, profile.gaps[departure.gap].needed) << profile.gaps[departure.gap].tensor;
}

TEST(ResidencyPlanner, WaitsForASlowLink) {
  // 10 s per copy and 1 s per event: waiting cannot be avoided, and is seen.
  ResidencyPlanner planner(makeStack(4, 10, 0, 1, 1));
  const ResidencyPlan &plan = planner.plan(10);
  EXPECT_GT(plan.stallSeconds, 10);
  EXPECT_NEAR(plan.seconds, planner.unconstrained().seconds + plan.stallSeconds, 1e-9);
}

// What leaves first is longest away: it has the host's memory, and the rest goes on to the disk.
TEST(ResidencyPlanner, WhatTheHostHasNoRoomForWaitsForTheDisk) {
  StepProfile profile = makeStack(8, 100, 50, 10, 100);
  double before = ResidencyPlanner(profile).plan(150).seconds, seconds = before;
  for (uint64_t room : {800, 300, 0}) {
    profile.below = {{5, 5, 0}, room, 100};
    ResidencyPlanner planner(profile);
    const ResidencyPlan &plan = planner.plan(150);
    ASSERT_EQ(plan.outBytes, 700u);
    EXPECT_EQ(plan.diskOutBytes, 700 - std::min<uint64_t>(room, 700));
    EXPECT_EQ(plan.diskInBytes, plan.diskOutBytes);
    EXPECT_LE(plan.hostPeakBytes, room);
    EXPECT_GE(plan.seconds, seconds);
    // Each direction of the disk works in order.
    EXPECT_GE(plan.seconds, double(plan.diskInBytes) / 5);
    seconds = plan.seconds;
  }
  EXPECT_GT(seconds, before);
}

// Bytes for the host and for the disk go over the link one after the other, but the disk works beside it: on
// edges that are as busy the step takes as long as on one of them.
TEST(ResidencyPlanner, LinkAndDiskWorkBesideEachOther) {
  StepProfile profile = makeStack(8, 100, 50, 20, 10);
  double onHost = ResidencyPlanner(profile).plan(150).seconds;
  profile.below = {{10, 10, 0}, 0, 1000};
  EXPECT_LT(ResidencyPlanner(profile).plan(150).seconds, 1.05 * onHost);
}

TEST(ResidencyPlanner, PrefersWhatNeedNotBeCopiedOut) {
  // The same gap twice: a weight that the host has, and a saved value.
  StepProfile profile = makeStack(3, 10, 10, 1, 10);
  for (StepEvent &event : profile.events)
    event.label = "x";
  profile.gaps.push_back({.tensor = "weight", .bytes = 10, .outBytes = 0, .inBytes = 10, .leaves = 0, .needed = 5});
  const ResidencyPlan plan = ResidencyPlanner(profile).plan(30);
  ASSERT_EQ(plan.away.size(), 1u);
  EXPECT_EQ(profile.gaps[plan.away[0].gap].tensor, "weight");
  EXPECT_EQ(plan.outBytes, 0u);
}

TEST(ResidencyPlanner, AWeightLeavesBetweenItsBlocksAndAroundTheEnd) {
  StepProfile profile;
  profile.link = {10, 10, 0};
  for (uint32_t event = 0; event < 10; ++event)
    profile.events.push_back({.label = std::to_string(event), .peakBytes = 5, .seconds = 1});
  addResident(profile, "w", {1, 5, 7}, 10);
  ResidencyPlanner planner(profile);
  EXPECT_EQ(planner.unconstrained().peakBytes, 15u);
  // Wherever it is touched it must be.
  EXPECT_EQ(planner.smallestBudget(), 15u);

  for (uint32_t event : {0, 2, 3, 4, 6, 8, 9})
    profile.events[event].peakBytes += 10;
  ResidencyPlanner tight(profile);
  EXPECT_EQ(tight.unconstrained().peakBytes, 25u);
  const ResidencyPlan &plan = tight.plan(15);
  EXPECT_EQ(plan.peakBytes, 15u);
  // Between 5 and 7 there is one event; it goes for that one, too.
  ASSERT_EQ(plan.away.size(), 3u);
  EXPECT_EQ(plan.outBytes, 10u) << "only what the last block wrote";
  EXPECT_EQ(plan.inBytes, 30u);

  // Room in the middle of the step, not at its ends: it stays there.
  profile.events[3].peakBytes = profile.events[4].peakBytes = profile.events[2].peakBytes = 15;
  profile.events[6].peakBytes = 15;
  const ResidencyPlan ends = ResidencyPlanner(profile).plan(15);
  ASSERT_EQ(ends.away.size(), 1u);
  EXPECT_TRUE(profile.gaps[ends.away[0].gap].passesEnd());
}

TEST(ResidencyPlanner, RemovedGapsTakeTheirDependentsAlong) {
  StepProfile profile = makeStack(3, 10, 0, 1, 10);
  addResident(profile, "w", {0, 2, 4}, 7);
  ASSERT_EQ(profile.gaps.size(), 6u);
  StepProfile without = profile;
  removeGaps(without, {0});
  ASSERT_EQ(without.gaps.size(), 5u);
  EXPECT_EQ(without.gaps[3].with, 2u);
  EXPECT_EQ(without.gaps[2].tensor, "w");
  removeGaps(profile, {});
  EXPECT_EQ(profile.gaps[0].tensor, "b0");
  // What does not leave is there for those that are made from it.
  StepProfile again = makeStack(3, 10, 0, 1, 10);
  again.remakes = {{.gaps = {0, 1}}};
  again.gaps[2].remake = 0;
  removeGaps(again, {0});
  EXPECT_EQ(again.remakes[0].gaps, std::vector<uint32_t>{0});
  EXPECT_EQ(again.gaps[1].remake, 0u);
  removeGaps(profile, {3});
  EXPECT_EQ(profile.gaps.size(), 3u);
}

TEST(ResidencyPlanner, RefusesABudgetWithTheSmallestOne) {
  ResidencyPlanner planner(makeStack(5, 10, 3, 1, 10));
  try {
    planner.plan(12);
    FAIL() << "a plan for too little";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::BudgetInfeasible);
    EXPECT_NE(std::string(error.what())
                  .find("no plan keeps to 12 bytes of device_dram: the smallest budget is 13 bytes, "
                        "set after restore \"b4\" in backward"),
              std::string::npos)
        << error.what();
  }
}

TEST(ResidencyPlanner, RefusesProfilesThatContradictThemselves) {
  auto refusal = [](StepProfile profile) -> std::string {
    try {
      ResidencyPlanner planner(std::move(profile));
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  StepProfile profile = makeStack(2, 10, 0, 1, 10);
  profile.gaps[1].needed = 9;
  EXPECT_NE(refusal(profile).find("tensor \"b1\" leaves at event 1 and is needed at 9 of 4"), std::string::npos);
  profile = makeStack(2, 10, 0, 1, 10);
  profile.gaps[0].bytes = 11;
  EXPECT_NE(refusal(profile).find("at event 0 tensors of 11 bytes may be away, but only 10 are live"),
            std::string::npos);
  profile = makeStack(2, 10, 0, 1, 0);
  EXPECT_NE(refusal(profile).find("positive bandwidth"), std::string::npos);
  EXPECT_NE(refusal({}).find("no events"), std::string::npos);
  profile = makeStack(2, 10, 0, 1, 10);
  addResident(profile, "w", {0, 2}, 5);
  profile.gaps[3].with = 0;
  EXPECT_NE(refusal(profile).find("a gap of tensor \"w\" goes with gap 0, which is none of it"), std::string::npos);
  profile = makeStack(2, 10, 0, 1, 10);
  profile.gaps[0].remake = 0;
  EXPECT_NE(refusal(profile).find("tensor \"b0\" is made again by run 0 of 0"), std::string::npos);
  profile.remakes = {{.gaps = {2}}};
  EXPECT_NE(refusal(profile).find("reads others, or takes a time, that there are not"), std::string::npos);
}

/// 1000 steps × 10 budgets: peak ≤ budget, a smaller budget never uses more,
/// and one below the smallest is refused.
TEST(ResidencyPlanner, ABudgetIsAPromise) {
  std::mt19937 random(20261121);
  size_t plans = 0, away = 0;
  for (int graph = 0; graph < 1000; ++graph) {
    StepProfile profile = makeRandom(random);
    ResidencyPlanner planner(profile);
    uint64_t least = planner.smallestBudget(), most = planner.unconstrained().peakBytes;
    uint64_t before = UINT64_MAX;
    for (uint64_t i = 10; i-- > 0;) {
      uint64_t budget = least + (most - least) * i / 9;
      const ResidencyPlan &plan = planner.plan(budget);
      ASSERT_LE(plan.peakBytes, budget);
      ASSERT_LE(plan.peakBytes, before);
      before = plan.peakBytes;
      std::vector<uint64_t> curve = replay(profile, plan);
      ASSERT_EQ(curve, plan.curve);
      ASSERT_EQ(*std::ranges::max_element(curve), plan.peakBytes);
      uint32_t last = 0;
      std::set<uint32_t> gone;
      for (const Departure &departure : plan.away)
        gone.insert(departure.gap);
      for (const Departure &departure : plan.away) {
        const ResidencyGap &gap = profile.gaps[departure.gap];
        ASSERT_TRUE(gap.passesEnd() || departure.returns > gap.leaves);
        ASSERT_LE(departure.returns, gap.needed);
        ASSERT_TRUE(gap.with == noIndex || gone.contains(gap.with));
        ASSERT_GE(departure.returns, last);
        last = departure.returns;
      }
      ASSERT_GE(plan.stallSeconds, 0);
      // On the host: copies of saved tensors, from where they leave to where they
      // are needed. Residents are there all the time.
      std::vector<uint64_t> host(profile.events.size());
      for (const Departure &departure : plan.away)
        if (const ResidencyGap &gap = profile.gaps[departure.gap]; gap.resident == noIndex)
          for (uint32_t event = gap.leaves; event <= gap.needed; ++event)
            host[event] += gap.outBytes;
      if (profile.below) // some of them go on to the disk
        ASSERT_LE(plan.hostPeakBytes, *std::ranges::max_element(host));
      else
        ASSERT_EQ(plan.hostPeakBytes, *std::ranges::max_element(host));
      ++plans;
      away += plan.away.size();
    }
    if (least > 0) {
      ASSERT_THROW(planner.plan(least - 1), Error);
    }
  }
  EXPECT_EQ(plans, 10000u);
  EXPECT_GT(away, plans);
}

/// The smallest budget is that of the best choice of all.
TEST(ResidencyPlanner, TheSmallestBudgetIsTheSmallestOfAllSubsets) {
  std::mt19937 random(7);
  int tried = 0;
  while (tried < 50) {
    StepProfile profile = makeRandom(random);
    if (profile.gaps.size() > 10)
      continue;
    ++tried;
    uint64_t best = UINT64_MAX;
    for (uint32_t subset = 0; subset < 1u << profile.gaps.size(); ++subset) {
      ResidencyPlan plan;
      for (uint32_t gap = 0; gap < profile.gaps.size(); ++gap)
        if (subset >> gap & 1)
          plan.away.push_back({gap, profile.gaps[gap].needed});
      std::vector<uint64_t> curve = replay(profile, plan);
      best = std::min(best, *std::ranges::max_element(curve));
    }
    EXPECT_EQ(ResidencyPlanner(profile).smallestBudget(), best);
  }
}

} // namespace

namespace {
bool isGone(const ResidencyGap &gap, const Departure &departure, uint32_t event) {
  return gap.passesEnd() ? event >= gap.leaves || event < departure.returns
                         : event >= gap.leaves && event < departure.returns;
}

/// Plays the runs of a plan: what each reads is there, and it has room.
void checkRuns(const StepProfile &profile, const ResidencyPlan &plan) {
  std::vector<uint64_t> curve = replay(profile, plan);
  std::set<uint32_t> events;
  for (const Departure &made : plan.away) {
    if (!made.isRemade)
      continue;
    uint32_t event = made.returns;
    const StepRemake &run = profile.remakes[profile.gaps[made.gap].remake];
    events.insert(event);
    ASSERT_EQ(profile.gaps[made.gap].resident, noIndex);
    ASSERT_GT(event, profile.gaps[made.gap].leaves);
    ASSERT_LE(event, profile.gaps[made.gap].needed);
    ASSERT_LE(event, run.latest) << "it reads what was freed";
    uint64_t live = profile.events[event].liveBytes + run.bytes;
    for (const Departure &other : plan.away) {
      const ResidencyGap &gap = profile.gaps[other.gap];
      bool isOfRun = other.isRemade && gap.remake == profile.gaps[made.gap].remake;
      ASSERT_TRUE(!isOfRun || other.returns == event) << "one run gives all that it makes";
      bool isRead = std::ranges::count(run.gaps, other.gap) ||
                    (gap.resident != noIndex && std::ranges::count(run.residents, gap.resident));
      ASSERT_FALSE(isRead && isGone(gap, other, event)) << "it reads what is away";
      if (isGone(gap, other, event) || (other.isRemade && other.returns == event))
        live -= gap.bytes;
    }
    ASSERT_LE(live, plan.curve[event]);
  }
  for (uint32_t event = 0; event < curve.size(); ++event)
    if (events.contains(event))
      ASSERT_GE(plan.curve[event], curve[event]);
    else
      ASSERT_EQ(plan.curve[event], curve[event]);
}
} // namespace

// 500 steps by ten budgets: with runs that make tensors again all holds that holds
// without, no budget is larger, and no plan slower than the best without.
TEST(ResidencyPlanner, RunsReadWhatIsThereAndKeepTheBudget) {
  std::mt19937 random(14);
  size_t remade = 0, moved = 0, faster = 0;
  for (int graph = 0; graph < 500; ++graph) {
    StepProfile profile = makeRandom(random);
    addRemakes(profile, random);
    StepProfile without = profile;
    without.remakes.clear();
    for (ResidencyGap &gap : without.gaps)
      gap.remake = noIndex;
    ResidencyPlanner planner(profile), mover(without);
    uint64_t least = planner.smallestBudget(), most = planner.unconstrained().peakBytes, before = UINT64_MAX;
    ASSERT_LE(least, mover.smallestBudget());
    ASSERT_EQ(planner.unconstrained().remakeSeconds, 0);
    for (uint64_t i = 10; i-- > 0;) {
      uint64_t budget = least + (most - least) * i / 9;
      const ResidencyPlan &plan = planner.plan(budget);
      ASSERT_LE(plan.peakBytes, std::min(budget, before));
      before = plan.peakBytes;
      ASSERT_EQ(*std::ranges::max_element(plan.curve), plan.peakBytes);
      checkRuns(profile, plan);
      ASSERT_TRUE(std::ranges::is_sorted(plan.away, {}, &Departure::returns));
      for (const Departure &departure : plan.away)
        ++(departure.isRemade ? remade : moved);
      double grain = planner.unconstrained().seconds * 1e-3;
      ASSERT_LE(plan.seconds, mover.plan(budget).seconds + grain);
      faster += plan.seconds < mover.plan(budget).seconds - grain;
    }
  }
  EXPECT_GT(remade, 1000u);
  EXPECT_GT(moved, 1000u);
  EXPECT_GT(faster, 500u);
}

// Events 0 to 5 save and 6 to 11 need, a second each; the link takes 20 s for a tensor
// to leave and return, a run half a second.
TEST(ResidencyPlanner, WhatIsSoonerComputedThanMovedIsMadeAgain) {
  StepProfile profile = makeStack(6, 10, 0, 1, 1);
  ResidencyPlan moved = ResidencyPlanner(profile).plan(40);
  EXPECT_GT(moved.seconds, 12 + 5);
  for (uint32_t gap = 1; gap < 6; ++gap) { // the first is made from nothing that is saved
    profile.remakes.push_back({.seconds = 0.5, .bytes = 10, .gaps = {gap - 1}});
    profile.gaps[gap].remake = gap - 1;
  }
  for (StepEvent &event : profile.events)
    event.liveBytes = event.peakBytes;
  ResidencyPlanner planner(profile);
  const ResidencyPlan &plan = planner.plan(40);
  EXPECT_LT(plan.seconds, moved.seconds);
  // What stays is what the others are made from, one after the other.
  EXPECT_GT(plan.remakeSeconds, 0);
  EXPECT_LT(plan.outBytes, moved.outBytes);
  // A fast link moves them all.
  profile.link = {1000, 1000, 0};
  EXPECT_EQ(ResidencyPlanner(profile).plan(40).remakeSeconds, 0);
}

// What a run takes beside what it gives has to have room.
TEST(ResidencyPlanner, ARunThatDoesNotFitIsNone) {
  StepProfile profile = makeStack(6, 10, 0, 1, 1);
  profile.remakes = {{.seconds = 0.5, .bytes = 10}};
  profile.gaps[0].remake = 0;
  for (StepEvent &event : profile.events)
    event.liveBytes = event.peakBytes;
  auto seconds = [](const StepProfile &profile) { return ResidencyPlanner(profile).plan(50).remakeSeconds; };
  EXPECT_EQ(seconds(profile), 0.5);
  profile.remakes[0].bytes = 50; // 10 live at event 11
  EXPECT_EQ(seconds(profile), 0.5);
  profile.remakes[0].bytes = 51;
  EXPECT_EQ(seconds(profile), 0);
}

// A run gives two tensors, and what it reads is freed once the first is needed: with that,
// it makes the other, too, but not the other alone.
TEST(ResidencyPlanner, ARunIsNoLaterThanWhatItReads) {
  StepProfile profile = makeStack(4, 10, 0, 1, 1);
  profile.remakes = {{.seconds = 0.5, .bytes = 10}};
  profile.gaps[0].remake = 0; // needed at 7
  for (StepEvent &event : profile.events)
    event.liveBytes = event.peakBytes;
  auto seconds = [&](uint32_t latest) {
    profile.remakes[0].latest = latest;
    return ResidencyPlanner(profile).plan(30).remakeSeconds;
  };
  EXPECT_EQ(seconds(7), 0.5);
  EXPECT_EQ(seconds(6), 0);
  profile.gaps[1].remake = 0; // needed at 6
  profile.remakes[0].bytes = 20;
  EXPECT_EQ(seconds(6), 0.5);
}

// Two tensors of one run are made at once, where the first is needed; from there on the
// other takes its room.
TEST(ResidencyPlanner, ARunGivesAllThatItMakes) {
  StepProfile profile = makeStack(4, 10, 0, 1, 1);
  profile.remakes = {{.seconds = 0.5, .bytes = 20}};
  profile.gaps[0].remake = profile.gaps[1].remake = 0; // needed at 7 and at 6
  for (StepEvent &event : profile.events)
    event.liveBytes = event.peakBytes;
  ResidencyPlanner planner(profile);
  const ResidencyPlan &plan = planner.plan(20);
  ASSERT_EQ(plan.away.size(), 2u);
  for (const Departure &departure : plan.away) {
    EXPECT_TRUE(departure.isRemade);
    EXPECT_EQ(departure.returns, 6u);
  }
  EXPECT_EQ(plan.remakeSeconds, 0.5);
  EXPECT_EQ(plan.curve, (std::vector<uint64_t>{0, 0, 10, 20, 20, 10, 20, 10}));
}

// Eight residents are written one after the other, a second each, which is what the link takes for one each way. With
// room for three at a time, all leave: one is computed with while the one before goes and the next comes. Were two of
// them to stay, as a peak of three allows, the others would come and go in turns.
TEST(ResidencyPlanner, LeavesRoomForWhatIsOnTheLink) {
  StepProfile profile;
  profile.link = {10, 10, 0};
  for (uint32_t event = 0; event < 24; ++event)
    profile.events.push_back({.label = std::to_string(event), .seconds = 1});
  for (uint32_t resident = 0; resident < 8; ++resident)
    addResident(profile, "m" + std::to_string(resident), {8 + resident}, 10);
  ResidencyPlanner planner(profile);
  const ResidencyPlan &plan = planner.plan(30);
  EXPECT_LE(plan.peakBytes, 30u);
  EXPECT_EQ(plan.away.size(), 8u);
  EXPECT_DOUBLE_EQ(plan.seconds, 24);
  EXPECT_LT(planner.plan(70).away.size(), 8u); // where there is time, what fits stays
  EXPECT_DOUBLE_EQ(planner.plan(70).seconds, 24);
}

// Events 0 to 5 save and 6 to 11 need, a second each; the link brings a tensor in
// one. It has no time from 8 to 11 where weights come.
TEST(ResidencyPlanner, WhatReturnsTakesTheTimeThatWeightsLeaveOfTheLink) {
  StepProfile profile = makeStack(6, 10, 0, 1, 10);
  auto returnOf = [](const StepProfile &profile) {
    ResidencyPlanner planner(profile);
    const ResidencyPlan &plan = planner.plan(50);
    EXPECT_EQ(plan.away.size(), 1u);
    EXPECT_EQ(profile.gaps[plan.away[0].gap].tensor, "b0");
    EXPECT_DOUBLE_EQ(plan.stallSeconds, 0);
    return plan.away[0].returns;
  };
  EXPECT_EQ(returnOf(profile), 9u); // just in time for 11, with a margin
  addWeights(profile, 8, 30, 10, 0);
  EXPECT_EQ(returnOf(profile), 7u); // as soon as there is room, before the weights
}

// The link brings weights all the time, a second's in each second, and the last
// of them are awaited: whatever returns before makes them later by as much.
TEST(ResidencyPlanner, WhatReturnsHoldsUpWeightsThatAreAwaited) {
  StepProfile idle = makeStack(6, 5, 0, 1, 10);
  idle.events[11].seconds += 1;
  StepProfile busy = idle;
  for (StepEvent &event : busy.events)
    event.h2dBytes = 10;
  busy.events[11].linkWaitSeconds = 1;
  auto stallOf = [](const StepProfile &profile) {
    ResidencyPlanner planner(profile);
    EXPECT_DOUBLE_EQ(planner.unconstrained().stallSeconds, 0);
    const ResidencyPlan &plan = planner.plan(20);
    EXPECT_EQ(plan.away.size(), 2u);
    return plan.stallSeconds;
  };
  // Two returns of half a second each.
  EXPECT_DOUBLE_EQ(stallOf(idle), 0);
  EXPECT_DOUBLE_EQ(stallOf(busy), 1);
}
