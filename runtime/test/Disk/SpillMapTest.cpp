//===- SpillMapTest.cpp - where the bytes of a spill file lie -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Disk/SpillMap.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

static constexpr uint64_t block = SpillFile::block;

TEST(SpillMap, WhatIsSealedMovesOnceAndComesBackWithTheNextSeal) {
  SpillMap map(16 * block);
  map.addSpare(8 * block, 8 * block);
  EXPECT_EQ(map.movesFor(0, 4 * block)->size(), 0u) << "nothing is sealed";
  map.seal({{0, 4 * block}});
  auto moves = map.movesFor(0, 4 * block);
  ASSERT_TRUE(moves);
  ASSERT_EQ(moves->size(), 1u);
  EXPECT_EQ((*moves)[0].from, 0u);
  EXPECT_EQ((*moves)[0].to, 8 * block);
  map.renew(*moves);
  EXPECT_EQ(map.spareBytes(), 4 * block);
  EXPECT_EQ(map.movesFor(0, 4 * block)->size(), 0u) << "it was moved before";
  EXPECT_EQ(map.sealedExtents(), (std::vector<SpillExtent>{{0, 4 * block}}));
  map.seal({{0, 4 * block}});
  EXPECT_EQ(map.sealedExtents(), (std::vector<SpillExtent>{{8 * block, 4 * block}}));
  EXPECT_EQ(map.spareBytes(), 8 * block);
  // A part of it: the rest stays.
  map.renew(*map.movesFor(block, 2 * block));
  auto pieces = map.piecesOf(0, 4 * block);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_TRUE(pieces[0].isSealed);
  EXPECT_FALSE(pieces[1].isSealed);
  EXPECT_TRUE(pieces[2].isSealed);
  EXPECT_EQ(pieces[2].fileOffset, 11 * block);
}

TEST(SpillMap, TooFewSpareBlocksMoveNothing) {
  SpillMap map(8 * block);
  map.addSpare(7 * block, block);
  map.seal({{0, 2 * block}});
  EXPECT_FALSE(map.movesFor(0, 2 * block));
  EXPECT_EQ(map.spareBytes(), block);
  EXPECT_TRUE(map.movesFor(0, block));
}

TEST(SpillMap, TheShortestSpareThatHoldsAllIsTaken) {
  SpillMap map(64 * block);
  map.addSpare(10 * block, 8 * block);
  map.addSpare(20 * block, 3 * block);
  map.addSpare(30 * block, 2 * block);
  map.seal({{0, 3 * block}, {4 * block, 4 * block}});
  auto moves = map.movesFor(0, 8 * block);
  ASSERT_TRUE(moves);
  ASSERT_EQ(moves->size(), 2u);
  EXPECT_EQ((*moves)[0].to, 20 * block);
  EXPECT_EQ((*moves)[1].to, 10 * block);
}

// Against an account by block: what is sealed is never given out, no block lies behind two offsets, and none is lost.
TEST(SpillMap, RandomSealsAndWrites) {
  constexpr uint64_t blocks = 96, used = 48;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    SpillMap map(blocks * block);
    map.addSpare(used * block, (blocks - used) * block);
    std::vector<uint64_t> contents(blocks, 0), expected(used, 0), sealed(used, 0);
    std::vector<uint64_t> sealedAt(used, blocks);
    uint64_t next = 1;
    for (int i = 0; i < 300; ++i) {
      if (random() % 8 == 0) {
        std::vector<SpillExtent> ranges;
        std::fill(sealedAt.begin(), sealedAt.end(), blocks);
        for (uint64_t at = 0; at < used;) {
          uint64_t length = std::min(random() % 9 + 1, used - at);
          if (random() % 4) {
            ranges.push_back({at * block, length * block});
            for (const SpillMap::Piece &piece : map.piecesOf(at * block, length * block))
              for (uint64_t b = 0; b < piece.bytes / block; ++b) {
                sealedAt[piece.offset / block + b] = piece.fileOffset / block + b;
                sealed[piece.offset / block + b] = expected[piece.offset / block + b];
              }
          }
          at += length;
        }
        std::shuffle(ranges.begin(), ranges.end(), random);
        map.seal(ranges);
      } else {
        uint64_t at = random() % used, length = std::min(random() % 12 + 1, used - at);
        auto moves = map.movesFor(at * block, length * block);
        ASSERT_TRUE(moves) << "as many blocks are spare as can be sealed";
        for (const SpillMap::Move &move : *moves)
          std::copy_n(contents.begin() + long(move.from / block), move.bytes / block,
                      contents.begin() + long(move.to / block));
        map.renew(*moves);
        for (const SpillMap::Piece &piece : map.piecesOf(at * block, length * block)) {
          ASSERT_FALSE(piece.isSealed);
          for (uint64_t b = 0; b < piece.bytes / block; ++b)
            contents[piece.fileOffset / block + b] = expected[piece.offset / block + b] = next++;
        }
      }
      for (uint64_t at = 0; at < used; ++at) {
        ASSERT_EQ(contents[map.piecesOf(at * block, block)[0].fileOffset / block], expected[at]) << seed;
        if (sealedAt[at] != blocks) {
          ASSERT_EQ(contents[sealedAt[at]], sealed[at]) << seed;
        }
      }
    }
    map.seal({});
    EXPECT_EQ(map.spareBytes(), (blocks - used) * block);
  }
}
