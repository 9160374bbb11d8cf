//===- PlanFollowerTest.cpp - a step by its plan --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/PlanFollower.h"
#include <gtest/gtest.h>

using namespace segue;

using Kind = StepEvent::Kind;
using Gaps = std::vector<uint32_t>;

namespace {

/// Two tensors saved, b needed before a; a is away and comes back at b's need.
class PlanFollowerTest : public testing::Test {
protected:
  PlanFollowerTest() {
    profile.events = {{.kind = Kind::Phase, .label = "step_begin"},
                      {.kind = Kind::Save, .label = "a"},
                      {.kind = Kind::Save, .label = "b"},
                      {.kind = Kind::Restore, .label = "b"},
                      {.kind = Kind::Restore, .label = "a"}};
    profile.gaps = {{.tensor = "a", .leaves = 1, .needed = 4}, {.tensor = "b", .leaves = 2, .needed = 3}};
    plan.away = {{.gap = 0, .returns = 3}};
  }

  static std::pair<Gaps, Gaps> lists(PlanFollower::Decisions now) {
    return {Gaps(now.leaves.begin(), now.leaves.end()), Gaps(now.returns.begin(), now.returns.end())};
  }

  StepProfile profile;
  ResidencyPlan plan;
};

TEST_F(PlanFollowerTest, SaysWhatLeavesAndReturns) {
  PlanFollower follower(profile, plan);
  for (int step = 0; step < 2; ++step) {
    follower.beginStep();
    EXPECT_EQ(lists(follower.next(Kind::Phase, "step_begin")), std::pair(Gaps{}, Gaps{}));
    EXPECT_EQ(lists(follower.next(Kind::Save, "a")), std::pair(Gaps{0}, Gaps{}));
    EXPECT_EQ(lists(follower.next(Kind::Save, "b")), std::pair(Gaps{}, Gaps{}));
    EXPECT_EQ(lists(follower.next(Kind::Restore, "b")), std::pair(Gaps{}, Gaps{0}));
    EXPECT_EQ(lists(follower.next(Kind::Restore, "a")), std::pair(Gaps{}, Gaps{}));
    EXPECT_FALSE(follower.hasDiverged());
  }
  EXPECT_EQ(follower.divergences(), 0u);
}

// What is made again is dropped, and nothing fetches it.
TEST_F(PlanFollowerTest, SaysWhatIsDropped) {
  plan.away = {{.gap = 1, .returns = 3, .isRemade = true}, {.gap = 0, .returns = 4}};
  PlanFollower follower(profile, plan);
  follower.beginStep();
  follower.next(Kind::Phase, "step_begin");
  EXPECT_TRUE(follower.next(Kind::Save, "a").drops.empty());
  PlanFollower::Decisions now = follower.next(Kind::Save, "b");
  EXPECT_EQ(Gaps(now.drops.begin(), now.drops.end()), Gaps{1});
  EXPECT_TRUE(now.leaves.empty());
  EXPECT_EQ(lists(follower.next(Kind::Restore, "b")), std::pair(Gaps{}, Gaps{}));
  EXPECT_EQ(lists(follower.next(Kind::Restore, "a")), std::pair(Gaps{}, Gaps{0}));
}

TEST_F(PlanFollowerTest, LetsNothingLeaveOnceTheStepDiffers) {
  PlanFollower follower(profile, plan);
  follower.beginStep();
  follower.next(Kind::Phase, "step_begin");
  EXPECT_EQ(lists(follower.next(Kind::Save, "b")), std::pair(Gaps{}, Gaps{}));
  EXPECT_TRUE(follower.hasDiverged());
  EXPECT_EQ(follower.divergence(), "event 1: planned save \"a\", came save \"b\"");
  EXPECT_EQ(lists(follower.next(Kind::Save, "a")), std::pair(Gaps{}, Gaps{}));
  EXPECT_EQ(follower.divergences(), 1u);
  // The next step is as planned again.
  follower.beginStep();
  follower.next(Kind::Phase, "step_begin");
  EXPECT_EQ(lists(follower.next(Kind::Save, "a")).first, Gaps{0});
}

TEST_F(PlanFollowerTest, ALongerStepDiverges) {
  PlanFollower follower(profile, plan);
  follower.beginStep();
  for (const StepEvent &event : profile.events)
    follower.next(event.kind, event.label);
  EXPECT_FALSE(follower.hasDiverged());
  follower.next(Kind::Save, "c");
  EXPECT_EQ(follower.divergence(), "event 5: planned the end of the step, came save \"c\"");
}

} // namespace
