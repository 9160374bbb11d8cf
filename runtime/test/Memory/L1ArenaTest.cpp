//===- L1ArenaTest.cpp - addresses in a small scratch memory --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/L1Arena.h"
#include <gtest/gtest.h>
#include <random>

using namespace segue;

TEST(L1Arena, FillsFromBothEnds) {
  L1Arena arena(1000, 10);
  EXPECT_EQ(arena.take(95, 1, Lifetime::Long)->offset, 0u);
  EXPECT_EQ(arena.take(95, 1, Lifetime::Short)->offset, 900u);
  EXPECT_EQ(arena.take(10, 1, Lifetime::Long)->offset, 100u);
  EXPECT_EQ(arena.take(10, 40, Lifetime::Short)->offset, 880u);
  EXPECT_EQ(arena.free().bytes, 1000u - 100 - 100 - 10 - 10);
  EXPECT_FALSE(arena.take(800, 1, Lifetime::Long));
}

TEST(L1Arena, RangesKeepTheFenceOfTheirLastUse) {
  L1Arena arena(100, 10);
  auto a = arena.take(50, 1, Lifetime::Long), b = arena.take(50, 1, Lifetime::Long);
  EXPECT_TRUE(a->after.empty());
  arena.give(b->offset, Fence(Queue::HostToDevice, 7));
  arena.give(a->offset, Fence(Queue::Compute, 3));
  auto whole = arena.take(100, 1, Lifetime::Short);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->after[Queue::Compute], 3u);
  EXPECT_EQ(whole->after[Queue::HostToDevice], 7u);
}

// 10 and 30 bytes stand between free ranges; moving the 10 is enough.
TEST(L1Arena, MovesTheFewestBytes) {
  L1Arena arena(200, 10);
  std::vector<uint64_t> at;
  for (uint64_t bytes : {40, 10, 40, 30, 40, 40})
    at.push_back(arena.take(bytes, 1, Lifetime::Long)->offset);
  for (size_t i : {0, 2, 4})
    arena.give(at[i], {});
  EXPECT_FALSE(arena.take(80, 1, Lifetime::Long));
  auto moves = arena.planCompaction(80, 1);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].from, 40u);
  EXPECT_EQ(moves[0].bytes, 10u);
  EXPECT_EQ(moves[0].to, 80u) << "the smallest hole that holds it";
  EXPECT_FALSE(moves[0].bounces);
  arena.apply(moves, Fence(Queue::Compute, 9));
  auto placed = arena.take(80, 1, Lifetime::Long);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->after[Queue::Compute], 9u) << "waits until the block has moved away";
}

// No hole outside of a window holds the block: everything slides down.
TEST(L1Arena, PacksWhenNothingElseHelps) {
  L1Arena arena(100, 10);
  auto hole = arena.take(20, 1, Lifetime::Long), block = arena.take(60, 1, Lifetime::Long);
  arena.give(hole->offset, {});
  auto moves = arena.planCompaction(40, 1);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].from, block->offset);
  EXPECT_EQ(moves[0].to, 0u);
  EXPECT_TRUE(moves[0].bounces) << "source and target overlap";
  EXPECT_TRUE(arena.planCompaction(40, 1, {block->offset}).empty()) << "a fixed block stays";
  EXPECT_TRUE(arena.planCompaction(50, 1).empty()) << "the bytes are not there";
}

// Random use: a plan always makes room when it is not empty, keeps blocks
// apart, and is empty only if even packing would not do.
TEST(L1Arena, PlansHoldUnderRandomUse) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    L1Arena arena(4096, 16);
    std::map<uint64_t, uint64_t> live; // offset → bytes
    auto total = [&] {
      uint64_t bytes = 0;
      for (auto &[offset, size] : live)
        bytes += size;
      return bytes;
    };
    for (int step = 0; step < 200; ++step) {
      uint64_t bytes = 1 + random() % 900, alignment = uint64_t(1) << random() % 8;
      if (random() % 3 == 0 && !live.empty()) {
        auto it = std::next(live.begin(), long(random() % live.size()));
        arena.give(it->first, {});
        live.erase(it);
        continue;
      }
      auto lifetime = random() % 2 ? Lifetime::Long : Lifetime::Short;
      auto placed = arena.take(bytes, alignment, lifetime);
      if (!placed) {
        auto moves = arena.planCompaction(bytes, alignment);
        if (moves.empty()) {
          // Alignment gaps apart, packing fails only without the bytes.
          ASSERT_LT(arena.free().bytes, bytes + 16 + 128 * (live.size() + 1));
          continue;
        }
        std::map<uint64_t, uint64_t> after = live;
        for (auto &move : moves)
          ASSERT_EQ(after.erase(move.from), 1u);
        for (auto &move : moves)
          ASSERT_TRUE(after.emplace(move.to, live.at(move.from)).second);
        live = after;
        arena.apply(moves, {});
        placed = arena.take(bytes, alignment, lifetime);
        ASSERT_TRUE(placed) << "the plan made room";
      }
      ASSERT_EQ(placed->offset % alignment, 0u);
      live[placed->offset] = arena.takenBytes(bytes);
      uint64_t end = 0;
      for (auto &[offset, size] : live) {
        ASSERT_GE(offset, end) << "blocks overlap";
        end = offset + size;
      }
      ASSERT_LE(end, 4096u);
      ASSERT_EQ(arena.free().bytes, 4096 - total());
    }
  }
}
