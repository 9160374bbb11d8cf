//===- CachingAllocatorTest.cpp - blocks are reused, within bounds --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Memory/CachingAllocator.h"
#include <array>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

#ifdef __SANITIZE_ADDRESS__
#define SKIP_WITHOUT_CACHE() GTEST_SKIP() << "nothing is cached under the address sanitizer"
#else
#define SKIP_WITHOUT_CACHE() (void)0
#endif

TEST(CachingAllocator, GivesTheSameBlockAgain) {
  SKIP_WITHOUT_CACHE();
  CachingAllocator memory;
  void *first = memory.allocate(10000, 64);
  memory.free(first, 10000, 64);
  EXPECT_EQ(memory.allocate(10001, 64), first) << "a like size shares the block";
  memory.free(first, 10001, 64);
}

// A step frees activations and then makes gradients, which are larger and have to fit where those were.
TEST(MappedRanges, MakesALargeBlockOfFreeNeighbours) {
  constexpr uint64_t mib = 1 << 20;
  MappedRanges ranges;
  void *all = ranges.map(64 * mib);
  ASSERT_NE(all, nullptr);
  ranges.give(all, 64 * mib);
  std::array<void *, 21> blocks;
  for (void *&block : blocks)
    block = ranges.take(3 * mib);
  EXPECT_EQ(ranges.freeBytes(), mib);
  EXPECT_EQ(ranges.take(2 * mib), nullptr);
  for (int parity : {0, 1}) // first without neighbours, then between two
    for (size_t i = parity; i < blocks.size(); i += 2)
      ranges.give(blocks[i], 3 * mib);
  EXPECT_EQ(ranges.take(64 * mib), all);
  EXPECT_EQ(ranges.freeBytes(), 0u);
  ranges.give(all, 64 * mib);
  EXPECT_TRUE(ranges.release());
  EXPECT_FALSE(ranges.release());
  EXPECT_EQ(ranges.freeBytes(), 0u);
}

TEST(MappedRanges, GivesBlocksThatDoNotOverlap) {
  MappedRanges ranges;
  std::mt19937 random(2);
  struct Block {
    uint8_t *data;
    uint64_t bytes;
    uint8_t mark;
  };
  std::vector<Block> live;
  for (int i = 0; i < 1000; ++i) {
    if (live.size() < 24 && random() % 2) {
      uint64_t bytes = (1 + random() % 600) * MappedRanges::pageBytes;
      void *data = ranges.take(bytes);
      if (!data)
        data = ranges.map(bytes);
      ASSERT_NE(data, nullptr);
      live.push_back({static_cast<uint8_t *>(data), bytes, uint8_t(random())});
      live.back().data[0] = live.back().data[bytes - 1] = live.back().mark;
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_EQ(live.back().data[0], live.back().mark);
      ASSERT_EQ(live.back().data[live.back().bytes - 1], live.back().mark);
      ranges.give(live.back().data, live.back().bytes);
      live.pop_back();
    }
    if (random() % 50 == 0)
      ranges.release();
  }
  for (const Block &block : live)
    ranges.give(block.data, block.bytes);
}

TEST(CachingAllocator, RefusesTheImpossible) {
  CachingAllocator memory;
  EXPECT_EQ(memory.allocate(UINT64_MAX, 64), nullptr);
  EXPECT_EQ(memory.allocate(UINT64_MAX - (1 << 20), 64), nullptr);
  EXPECT_EQ(memory.allocate(uint64_t(1) << 60, 64), nullptr);
  EXPECT_EQ(memory.liveBytes(), 0u);
}

TEST(CachingAllocator, MakesBlocksOfAnySizeOfWhatIsKept) {
  SKIP_WITHOUT_CACHE();
  constexpr uint64_t mib = 1 << 20;
  CachingAllocator memory;
  void *large = memory.allocate(48 * mib, 64);
  memory.free(large, 48 * mib, 64);
  std::array<void *, 16> blocks;
  for (void *&block : blocks)
    block = memory.allocate(3 * mib, 64);
  EXPECT_EQ(memory.liveBytes(), 48 * mib);
  EXPECT_EQ(memory.cachedBytes(), 0u);
  for (void *block : blocks)
    memory.free(block, 3 * mib, 64);
  EXPECT_EQ(memory.allocate(48 * mib, 64), large);
  memory.free(large, 48 * mib, 64);
}

// The footprint stays within a quarter and 64 MiB over the peak of live bytes.
TEST(CachingAllocator, CacheIsBounded) {
  SKIP_WITHOUT_CACHE();
  CachingAllocator memory;
  std::mt19937 random(1);
  struct Block {
    void *data;
    uint64_t bytes;
  };
  std::vector<Block> live;
  uint64_t peak = 0;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() < 8 && random() % 3) {
      uint64_t bytes = random() % (64 << 20);
      live.push_back({memory.allocate(bytes, 64), bytes});
      ASSERT_NE(live.back().data, nullptr);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      memory.free(live.back().data, live.back().bytes, 64);
      live.pop_back();
    }
    peak = std::max(peak, memory.liveBytes());
    ASSERT_LE(memory.liveBytes() + memory.cachedBytes(), peak + peak / 4 + (64 << 20));
  }
  for (const Block &block : live)
    memory.free(block.data, block.bytes, 64);
  EXPECT_EQ(memory.liveBytes(), 0u);
}
