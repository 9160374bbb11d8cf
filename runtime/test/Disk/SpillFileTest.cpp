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
#include <string>
#include <sys/stat.h>
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
  EXPECT_EQ(std::memcmp(source.data(), file->data(), 100000), 0);
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
  ShiftedMemory all(capacity);
  file->read(all.data(), 0, capacity);
  EXPECT_EQ(std::memcmp(all.data(), shadow.data(), capacity), 0);
}

// The mapping shows what was written, also where it was looked at before; reads give what was stored through it.
TEST_P(SpillFileTest, TheMappingIsTheSameFile) {
  constexpr size_t capacity = 1 << 20;
  auto file = SpillFile::open(folder.path, capacity, optionsOf(GetParam()));
  ShiftedMemory memory(capacity), back(capacity);
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    size_t begin = random() % capacity, bytes = random() % (capacity - begin) + 1;
    volatile std::byte looked = file->data()[begin + bytes / 2];
    (void)looked;
    memory.fill(random());
    file->write(begin, memory.data(), bytes);
    ASSERT_EQ(std::memcmp(file->data() + begin, memory.data(), bytes), 0) << bytes << " bytes at " << begin;
    memory.fill(random());
    std::memcpy(file->data() + begin, memory.data(), bytes);
    file->read(back.data(), begin, bytes);
    ASSERT_EQ(std::memcmp(back.data(), memory.data(), bytes), 0) << bytes << " bytes at " << begin;
  }
}

// The host stores to every other page while its neighbours are written and read: nothing of either is lost.
TEST_P(SpillFileTest, TheMappingBesideTransfersOfItsNeighbours) {
  constexpr size_t page = 4096, pages = 256, rounds = 6;
  auto file = SpillFile::open(folder.path, pages * page, optionsOf(GetParam()));
  ShiftedMemory written(pages * page);
  written.fill(1);
  std::atomic<bool> isDone = false;
  std::atomic<size_t> wrong = 0;
  auto storedAt = [](size_t i, uint32_t round) { return uint32_t(i * 7919 + round * 104729 + 1); };
  std::thread host([&] {
    for (uint32_t round = 0; !isDone; ++round)
      for (size_t i = 1; i < pages; i += 2) {
        uint32_t *words = reinterpret_cast<uint32_t *>(file->data() + i * page);
        wrong += round > 0 && (words[0] != storedAt(i, round - 1) || words[1023] != storedAt(i, round - 1));
        words[0] = words[1023] = storedAt(i, round);
      }
  });
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < pages; i += 2)
      file->write(i * page, written.data() + (i + round) % pages * page, page);
    ShiftedMemory back(page);
    for (size_t i = 0; i < pages; i += 2) {
      file->read(back.data(), i * page, page);
      wrong += std::memcmp(back.data(), written.data() + (i + round) % pages * page, page) != 0;
    }
  }
  isDone = true;
  host.join();
  EXPECT_EQ(wrong, 0u);
}

// Two writers and the host have bytes of every block in common, and no byte.
TEST_P(SpillFileTest, OwnersOfBytesShareBlocks) {
  constexpr size_t block = 4096, blocks = 48;
  auto file = SpillFile::open(folder.path, blocks * block, optionsOf(GetParam()));
  ShiftedMemory first(1500), second(1700), back(block);
  for (int round = 0; round < 3; ++round) {
    first.fill(10 + round);
    second.fill(20 + round);
    auto write = [&](size_t at, const ShiftedMemory &memory) {
      for (size_t i = 0; i < blocks; ++i)
        file->write(i * block + at, memory.data(), memory.size());
    };
    std::thread one([&] { write(0, first); });
    std::thread host([&] {
      for (size_t i = 0; i < blocks; ++i)
        std::memset(file->data() + i * block + 1500, round + 1, 896);
    });
    write(2396, second);
    one.join();
    host.join();
    for (size_t i = 0; i < blocks; ++i) {
      file->read(back.data(), i * block, block);
      ASSERT_EQ(std::memcmp(back.data(), first.data(), 1500), 0);
      ASSERT_EQ(std::memcmp(back.data() + 2396, second.data(), 1700), 0);
      ASSERT_EQ(std::count(back.data() + 1500, back.data() + 2396, std::byte(round + 1)), 896);
    }
  }
}

// What lies on the disk is in no memory: neither in that of the process nor in the page cache.
TEST_P(SpillFileTest, TakesNoMemory) {
  constexpr size_t capacity = 256 << 20, chunk = 8 << 20;
  auto file = SpillFile::open(folder.path, capacity, optionsOf(GetParam()));
  ShiftedMemory memory(chunk);
  memory.fill(1);
  auto residentBytes = [] {
    size_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident * size_t(::sysconf(_SC_PAGESIZE));
  };
  file->write(0, memory.data(), chunk);
  file->read(memory.data(), 0, chunk); // what an engine keeps, it has by now
  size_t before = residentBytes();
  for (size_t at = 0; at < capacity; at += chunk)
    file->write(at, memory.data(), chunk);
  for (size_t at = 0; at < capacity; at += chunk)
    file->read(memory.data(), at, chunk);
  EXPECT_LT(residentBytes(), before + (2 << 20));
  EXPECT_EQ(residentPages(*file, 0, capacity), 0u);
}

// Where they may, ends and small ranges stay, and later direct transfers of whole blocks see what they hold.
TEST_P(SpillFileTest, SmallRangesStayInThePageCache) {
  SpillOptions options = optionsOf(GetParam());
  options.cachedBelow = 2 * SpillFile::block + 1;
  constexpr size_t capacity = 1 << 20, block = SpillFile::block;
  auto file = SpillFile::open(folder.path, capacity, options);
  ShiftedMemory memory(capacity), back(capacity);
  memory.fill(1);
  file->write(0, memory.data(), capacity);
  memory.fill(2);
  file->write(2 * block, memory.data() + 2 * block, 1000);              // less than a block
  file->write(4 * block, memory.data() + 4 * block, 3 * block + 2000);  // a tail
  file->write(20 * block, memory.data() + 20 * block, 2 * block);       // small
  file->read(back.data(), 2 * block, 1000);
  EXPECT_EQ(std::memcmp(back.data(), memory.data() + 2 * block, 1000), 0);
  EXPECT_EQ(residentPages(*file, 0, capacity), file->isDirect() ? 4u : 0u);
  file->read(back.data(), 0, capacity); // blocks as a whole, with what only the page cache has
  EXPECT_EQ(std::memcmp(back.data() + 2 * block, memory.data() + 2 * block, 1000), 0);
  EXPECT_EQ(std::memcmp(back.data() + 4 * block, memory.data() + 4 * block, 3 * block + 2000), 0);
  EXPECT_EQ(std::memcmp(back.data() + 20 * block, memory.data() + 20 * block, 2 * block), 0);
  memory.fill(3);
  file->write(0, memory.data(), capacity);
  file->read(back.data(), 2 * block, 1000);
  EXPECT_EQ(std::memcmp(back.data(), memory.data() + 2 * block, 1000), 0);
  EXPECT_EQ(std::memcmp(file->data(), memory.data(), capacity), 0);
}

TEST_P(SpillFileTest, WhatWasLookedAtIsDropped) {
  constexpr size_t capacity = 1 << 20;
  auto file = SpillFile::open(folder.path, capacity, optionsOf(GetParam()));
  ShiftedMemory memory(capacity), back(capacity);
  memory.fill(1);
  std::memcpy(file->data() + 100, memory.data(), 50000);
  EXPECT_GE(residentPages(*file, 100, 50000), 13u);
  file->dropCached(100, 50000);
  EXPECT_EQ(residentPages(*file, 0, capacity), 0u);
  file->read(back.data(), 100, 50000);
  EXPECT_EQ(std::memcmp(back.data(), memory.data(), 50000), 0);
  // Announced, all of it comes, and nothing beside it.
  file->expectLook(8192, 65536);
  for (int i = 0; i < 1000 && residentPages(*file, 8192, 65536) < 16; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(residentPages(*file, 8192, 65536), 16u);
  EXPECT_EQ(residentPages(*file, 0, capacity), 16u);
  EXPECT_EQ(std::memcmp(file->data() + 8192, memory.data() + 8092, 41908), 0);
  file->dropCached(0, capacity);
  EXPECT_EQ(residentPages(*file, 0, capacity), 0u);
}

TEST_P(SpillFileTest, RangesBehindItsEnd) {
  auto file = SpillFile::open(folder.path, 8192, optionsOf(GetParam()));
  std::byte one = {};
  file->read(nullptr, 8192, 0);
  file->write(8192, nullptr, 0);
  file->dropCached(8192, 0);
  file->expectLook(8192, 0);
  EXPECT_ERROR(file->read(&one, 8192, 1), InvalidArgument, "1 bytes at 8192 ends behind the spill file of 8192 bytes");
  EXPECT_ERROR(file->write(1, &one, 8192), InvalidArgument, "ends behind");
  EXPECT_ERROR(file->write(UINT64_MAX, &one, 2), InvalidArgument, "ends behind");
  EXPECT_ERROR(file->dropCached(0, 8193), InvalidArgument, "ends behind");
  EXPECT_ERROR(file->expectLook(8193, 0), InvalidArgument, "ends behind");
}

// Not later, when the kernel has closed the ring: the next file may need it.
TEST_P(SpillFileTest, TheRoomGoesBackAtOnce) {
  auto file = SpillFile::open(folder.path, 1 << 20, optionsOf(GetParam()));
  int kept = ::dup(descriptorIn(folder.path));
  file.reset();
  struct stat status;
  ASSERT_EQ(::fstat(kept, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  ::close(kept);
}

// What a child of fork destroys at its end is the parent's still.
TEST_P(SpillFileTest, AChildLeavesItToTheParent) {
  auto file = SpillFile::open(folder.path, 1 << 20, optionsOf(GetParam()));
  ShiftedMemory source(1 << 20), target(1 << 20);
  source.fill(1);
  file->write(0, source.data(), source.size());
  int status = inChild([&] {
    ::alarm(20); // a thread that is waited for is none of the child's
    file.reset();
    return 0;
  });
  EXPECT_EQ(status, 0);
  file->read(target.data(), 0, target.size());
  EXPECT_EQ(std::memcmp(source.data(), target.data(), source.size()), 0);
  EXPECT_EQ(std::memcmp(source.data(), file->data(), source.size()), 0);
}

// More threads than directions: calls wait for their turn, and none meets the pieces of another.
TEST_P(SpillFileTest, ManyThreadsTakeTurns) {
  constexpr size_t threads = 6, part = 700000;
  auto file = SpillFile::open(folder.path, threads * part, optionsOf(GetParam()));
  std::atomic<size_t> wrong = 0;
  std::vector<std::thread> all;
  for (size_t i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      ShiftedMemory source(part, i), target(part);
      for (uint64_t round = 0; round < 4; ++round) {
        source.fill(i * 100 + round);
        file->write(i * part, source.data(), part);
        file->read(target.data(), i * part, part);
        wrong += std::memcmp(source.data(), target.data(), part) != 0;
      }
    });
  for (std::thread &thread : all)
    thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(file->writeTraffic().calls, threads * 4);
  EXPECT_EQ(file->readTraffic().bytes, threads * 4 * part);
}
