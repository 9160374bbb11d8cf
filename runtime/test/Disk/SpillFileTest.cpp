//===- SpillFileTest.cpp - room on a disk, beside memory ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "SpillTestFile.h"
#include <algorithm>
#include <atomic>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <thread>

using namespace segue;

namespace {
class SpillFileTest : public testing::TestWithParam<SpillWay> {
protected:
  DiskFolder folder;
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Ways, SpillFileTest, testing::ValuesIn(spillWays()),
                         [](const auto &info) { return (std::ostringstream() << info.param).str(); });

TEST_P(SpillFileTest, ReadsWhatWasWritten) {
  constexpr size_t capacity = 24 << 20;
  auto file = SpillFile::open(folder.path, capacity, optionsOf(GetParam()));
  EXPECT_EQ(folder.fileCount(), 0u) << "the file has a name";
  EXPECT_EQ(file->isDirect(), GetParam().mayBeDirect);
  EXPECT_EQ(file->engine(), GetParam().engine == SpillOptions::Engine::Ring ? "io_uring" : "threads");
  EXPECT_EQ(file->capacity(), capacity);
  EXPECT_EQ(file->folder(), folder.path);
  ShiftedMemory source(capacity), target(capacity);
  source.fill(1);
  file->write(0, source.data(), capacity);
  file->read(target.data(), 0, capacity);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity), 0);
  EXPECT_EQ(std::memcmp(source.data(), file->data(), capacity), 0);
  EXPECT_EQ(file->writeTraffic().calls, 1u);
  EXPECT_EQ(file->writeTraffic().bytes, capacity);
  EXPECT_GT(file->writeTraffic().seconds, 0);
  EXPECT_EQ(file->readTraffic().calls, 1u);
  EXPECT_EQ(file->readTraffic().bytes, capacity);
  EXPECT_GT(file->readTraffic().seconds, 0);
}

TEST_P(SpillFileTest, BeginsWithZeros) {
  auto file = SpillFile::open(folder.path, 10000, optionsOf(GetParam()));
  EXPECT_EQ(file->capacity(), 12288u);
  ShiftedMemory target(file->capacity());
  target.fill(1);
  file->read(target.data(), 0, target.size());
  EXPECT_TRUE(std::all_of(target.data(), target.data() + target.size(), [](std::byte b) { return b == std::byte(); }));
}

// Offsets, addresses and sizes around 512 and 4096: what lies around each range stays as it is, in the file and in
// memory.
TEST_P(SpillFileTest, EveryAlignment) {
  constexpr size_t capacity = 128 << 10, room = 40 << 10;
  SpillOptions options = optionsOf(GetParam());
  options.pieceBytes = 8192;
  options.depth = 4;
  auto file = SpillFile::open(folder.path, capacity, options);
  ShiftedMemory shadow(capacity), all(capacity);
  shadow.fill(1);
  file->write(0, shadow.data(), capacity);
  const size_t near[] = {0, 1, 511, 512, 4095, 4097};
  uint64_t seed = 2;
  for (size_t shift : {0, 1, 512, 513})
    for (size_t offset : near)
      for (size_t base : {0, 12288})
        for (size_t odd : near) {
          size_t bytes = base + odd;
          SCOPED_TRACE(testing::Message() << bytes << " bytes at " << offset << " from an address of " << shift);
          ShiftedMemory memory(room, shift);
          memory.fill(seed++);
          file->write(offset, memory.data(), bytes);
          std::memcpy(shadow.data() + offset, memory.data(), bytes);
          ShiftedMemory back(room, shift), expected(room, shift);
          back.fill(seed);
          expected.fill(seed++);
          file->read(back.data(), offset, bytes);
          std::memcpy(expected.data(), memory.data(), bytes);
          ASSERT_EQ(std::memcmp(back.data(), expected.data(), room), 0);
        }
  file->read(all.data(), 0, capacity);
  EXPECT_EQ(std::memcmp(all.data(), shadow.data(), capacity), 0);
  EXPECT_EQ(std::memcmp(file->data(), shadow.data(), capacity), 0);
}

// One thread writes and one reads, ranges of any bytes beside each other, some of which share a block.
TEST_P(SpillFileTest, RandomRangesInBothDirections) {
  constexpr size_t capacity = 16 << 20, areas = 64, area = capacity / areas - 77;
  auto file = SpillFile::open(folder.path, capacity, optionsOf(GetParam()));
  ShiftedMemory shadow(capacity);
  shadow.fill(1);
  file->write(0, shadow.data(), capacity);
  // An area belongs to the writer or the reader; they change hands when both have been through theirs.
  for (int round = 0; round < 4; ++round) {
    std::thread writer([&] {
      std::mt19937_64 random(100 + round);
      for (size_t i = round % 2; i < areas; i += 2) {
        size_t begin = i * area + random() % 5000, bytes = std::min(random() % area + 1, (i + 1) * area - begin);
        ShiftedMemory memory(bytes, random() % 3 ? 0 : random() % 4096);
        memory.fill(random());
        file->write(begin, memory.data(), bytes);
        std::memcpy(shadow.data() + begin, memory.data(), bytes);
      }
    });
    std::mt19937_64 random(200 + round);
    size_t wrong = 0;
    for (size_t i = 1 - round % 2; i < areas; i += 2) {
      size_t begin = i * area + random() % 5000, bytes = std::min(random() % area + 1, (i + 1) * area - begin);
      ShiftedMemory memory(bytes, random() % 3 ? 0 : random() % 4096);
      file->read(memory.data(), begin, bytes);
      wrong += std::memcmp(memory.data(), shadow.data() + begin, bytes) != 0;
    }
    writer.join();
    EXPECT_EQ(wrong, 0u);
  }
  EXPECT_EQ(std::memcmp(file->data(), shadow.data(), capacity), 0);
}
