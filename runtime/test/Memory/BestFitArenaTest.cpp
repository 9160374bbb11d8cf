//===- BestFitArenaTest.cpp - an address range in blocks ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Memory/BestFitArena.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

// The smallest range that holds the block, of equal ones the lowest.
TEST(BestFitArenaTest, TakesTheBestFit) {
  BestFitArena arena(1000);
  // Ranges of 100, 50, 60 and 50 bytes, between blocks of 10, and the rest.
  uint64_t at = 0;
  for (uint64_t bytes : {100, 50, 60, 50}) {
    EXPECT_EQ(arena.take(bytes, 1)->offset, at);
    EXPECT_EQ(arena.take(10, 1)->offset, at + bytes);
    at += bytes + 10;
  }
  at = 0;
  for (uint64_t bytes : {100, 50, 60, 50}) {
    arena.give(at, bytes, {});
    at += bytes + 10;
  }
  EXPECT_EQ(arena.freeMemory().ranges, 5u);
  EXPECT_EQ(arena.take(50, 1)->offset, 110u) << "the first of the two that fit exactly";
  EXPECT_EQ(arena.take(50, 1)->offset, 240u);
  EXPECT_EQ(arena.take(51, 1)->offset, 170u);
  EXPECT_EQ(arena.take(61, 1)->offset, 0u);
  EXPECT_EQ(arena.take(500, 1)->offset, 300u);
  EXPECT_EQ(arena.take(201, 1), std::nullopt);
}

// A range counts by what is left of it behind its first aligned address, and
// what lies before that stays free.
TEST(BestFitArenaTest, AlignsAddressesNotOffsets) {
  BestFitArena arena(1024, /*origin=*/48);
  EXPECT_EQ(arena.take(100, 64)->offset, 16u);
  EXPECT_EQ(arena.freeMemory().bytes, 924u);
  EXPECT_EQ(arena.take(16, 16)->offset, 0u);
  EXPECT_EQ(arena.take(908, 1)->offset, 116u) << "nothing was lost";
  EXPECT_EQ(arena.freeMemory().bytes, 0u);
}

TEST(BestFitArenaTest, HoldsItsCapacityExactly) {
  BestFitArena arena(100);
  EXPECT_EQ(arena.take(101, 1), std::nullopt);
  EXPECT_EQ(arena.take(UINT64_MAX, 64), std::nullopt);
  EXPECT_EQ(arena.take(100, 64)->offset, 0u);
  EXPECT_EQ(arena.take(1, 1), std::nullopt);
  EXPECT_TRUE(arena.take(0, 64).has_value());
  arena.give(0, 0, {});
  arena.give(0, 100, {});
  EXPECT_EQ(arena.freeMemory().largestRange, 100u);
  EXPECT_EQ(BestFitArena(0).take(1, 1), std::nullopt);
}

// Who gets a range that was merged from several waits for the users of all.
TEST(BestFitArenaTest, MergedRangesJoinTheirFences) {
  BestFitArena arena(300);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(arena.take(100, 1)->after, Fence());
  arena.give(0, 100, Fence(Queue::Compute, 5));
  arena.give(200, 100, Fence(Queue::HostToDevice, 7));
  EXPECT_EQ(arena.take(100, 1)->after, Fence(Queue::Compute, 5)) << "not merged yet";
  arena.give(0, 100, Fence(Queue::Compute, 6));
  arena.give(100, 100, Fence(Queue::Compute, 3));
  Fence all(Queue::Compute, 6);
  all.join(Fence(Queue::HostToDevice, 7));
  EXPECT_EQ(arena.take(10, 1)->after, all);
  EXPECT_EQ(arena.take(290, 1)->after, all) << "the rest of a range keeps its fence";
}

// Blocks never overlap and are aligned, the books are exact, everything merges
// in the end, and the same calls give the same offsets.
TEST(BestFitArenaTest, RandomUseKeepsTheBooks) {
  constexpr uint64_t capacity = 1 << 20, origin = 7;
  auto play = [&](unsigned seed) {
    std::mt19937 random(seed);
    BestFitArena arena(capacity, origin);
    std::vector<std::pair<uint64_t, uint64_t>> blocks; // offset, bytes
    std::vector<uint64_t> trace;
    uint64_t live = 0;
    for (int i = 0; i < 3000; ++i) {
      if (blocks.empty() || random() % 5 < 3) {
        uint64_t bytes = random() % 20 ? random() % 5000 : random() % capacity, alignment = 1u << random() % 12;
        uint64_t largest = arena.freeMemory().largestRange;
        auto block = arena.take(bytes, alignment);
        trace.push_back(block ? block->offset : UINT64_MAX);
        if (!block) {
          EXPECT_LT(largest, bytes + alignment - 1) << "refused though a range holds it anyhow";
          continue;
        }
        if (!bytes)
          continue;
        EXPECT_EQ((origin + block->offset) % alignment, 0u);
        EXPECT_LE(block->offset + bytes, capacity);
        for (auto [offset, size] : blocks)
          EXPECT_TRUE(block->offset + bytes <= offset || offset + size <= block->offset);
        blocks.emplace_back(block->offset, bytes);
        live += bytes;
      } else {
        size_t which = random() % blocks.size();
        arena.give(blocks[which].first, blocks[which].second, {});
        live -= blocks[which].second;
        blocks.erase(blocks.begin() + ptrdiff_t(which));
      }
      FreeMemory free = arena.freeMemory();
      EXPECT_EQ(free.bytes, capacity - live);
      EXPECT_LE(free.largestRange, free.bytes);
      EXPECT_LE(free.ranges, blocks.size() + 1);
    }
    for (auto [offset, bytes] : blocks)
      arena.give(offset, bytes, {});
    FreeMemory free = arena.freeMemory();
    EXPECT_EQ(free.largestRange, capacity);
    EXPECT_EQ(free.ranges, 1u);
    return trace;
  };
  for (unsigned seed = 0; seed < 8; ++seed)
    EXPECT_EQ(play(seed), play(seed)) << "seed " << seed;
}

// An arena says which ranges were free if some blocks were given back, and takes none of them back.
TEST(BestFitArenaTest, SaysWhatWouldBeFree) {
  BestFitArena arena(1000);
  for (uint64_t begin = 0; begin < 400; begin += 100)
    EXPECT_EQ(arena.take(100, 1)->offset, begin);
  EXPECT_EQ(arena.freeRanges({{300, 100}, {100, 100}}), (std::vector<AddressRange>{{100, 100}, {300, 700}}));
  EXPECT_EQ(arena.freeRanges(), (std::vector<AddressRange>{{400, 600}}));
}

// What is set aside serves takeReserved alone, also at a given offset; blocks that lay
// there before go back to whom their bytes belong then.
TEST(BestFitArenaTest, SetsRangesAside) {
  BestFitArena arena(1000);
  EXPECT_EQ(arena.take(100, 1)->offset, 0u);
  EXPECT_FALSE(arena.reserve({{50, 100}})) << "part of it is taken";
  ASSERT_TRUE(arena.reserve({{200, 300}, {600, 100}}));
  EXPECT_EQ(arena.freeRanges(), (std::vector<AddressRange>{{100, 900}}));
  EXPECT_EQ(arena.freeMemory().bytes, 900u);
  EXPECT_EQ(arena.take(150, 1)->offset, 700u) << "nothing that is set aside";
  EXPECT_EQ(arena.take(301, 1), std::nullopt);
  EXPECT_EQ(arena.takeReserved(40, 1, 230)->offset, 230u);
  EXPECT_EQ(arena.takeReserved(1, 1, 269), std::nullopt) << "it is taken";
  EXPECT_EQ(arena.takeReserved(30, 1, 200)->offset, 200u);
  EXPECT_EQ(arena.takeReserved(1, 1, 550), std::nullopt) << "it is not set aside";
  EXPECT_EQ(arena.takeReserved(60, 1, 640)->offset, 640u);
  EXPECT_EQ(arena.takeReserved(61, 1, 640), std::nullopt);
  EXPECT_EQ(arena.takeReserved(2, 16, 610), std::nullopt) << "it is not aligned";
  EXPECT_EQ(arena.takeReserved(35, 1, std::nullopt)->offset, 600u) << "the best fit";
  arena.give(230, 40, {});
  EXPECT_EQ(arena.takeReserved(270, 1, 230)->offset, 230u) << "what was given back there is set aside still";
  ASSERT_TRUE(arena.reserve({}));
  arena.give(200, 30, {});
  arena.give(230, 270, {});
  EXPECT_EQ(arena.take(300, 1)->offset, 100u) << "with its neighbours";
  arena.give(600, 35, {});
  arena.give(640, 60, {});
  arena.give(700, 150, {});
  arena.give(100, 300, {});
  arena.give(0, 100, {});
  EXPECT_EQ(arena.freeMemory().ranges, 1u);
  EXPECT_EQ(arena.freeMemory().bytes, 1000u);
}
