//===- L1CompactionTest.cpp - tensors that move in L1 ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// R9 on simulated devices, in real time and in the hands of an adversary: an
// allocation that fragmentation blocks moves the fewest bytes, behind the work
// that is queued, and no tensor loses a byte by it.
//
//===----------------------------------------------------------------------===//

#include "CompactionFixture.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/L1Compactor.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <random>

using namespace segue;
using namespace segue::test;

namespace {
constexpr uint64_t unit = 4096;

class L1CompactionTest : public CompactionFixture {
protected:
  L1CompactionTest() : CompactionFixture("sim:dram=1MiB,pinned=1MiB,l1=64KiB,latency=1us", Space::DeviceL1) {}

  L1Compactor &compactor = *device->l1Compactor();
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Sim, L1CompactionTest,
                         testing::Values("", ",adversarial=0", ",adversarial=1", ",adversarial=2", ",adversarial=3",
                                         ",adversarial=4", ",adversarial=5", ",adversarial=6", ",adversarial=7"));

// Sixteen tensors, every second one freed: half of L1 is free, and one tensor
// of two units has no place until a single one moves.
TEST_P(L1CompactionTest, MovesTheFewestBytes) {
  std::vector<Held> held;
  for (int i = 0; i < 16; ++i)
    held.push_back(fill(unit, i));
  for (int i = 14; i >= 0; i -= 2)
    held.erase(held.begin() + i);
  EXPECT_EQ(device->freeMemory(Space::DeviceL1).largestRange, unit);
  held.push_back(fill(2 * unit, 99));
  EXPECT_EQ(compactor.compactions(), 1u);
  EXPECT_EQ(compactor.movedBytes(), unit);
  EXPECT_EQ(compactor.bounces(), 0u);
  for (const Held &one : held)
    check(one);
  // The rest of the free half in one piece.
  held.push_back(fill(6 * unit, 100));
  EXPECT_EQ(device->freeMemory(Space::DeviceL1).bytes, 0u);
  for (const Held &one : held)
    check(one);
}

// One tensor in the middle that overlaps its new place: through DRAM and back.
TEST_P(L1CompactionTest, BouncesThroughDram) {
  Held first = fill(4 * unit, 1), middle = fill(8 * unit, 2);
  first.storage.reset();
  device->transfer().record(0); // what came before
  Held large = fill(8 * unit, 3);
  StitchTelemetry line = device->transfer().record(1);
  EXPECT_EQ(line.bounces, 1u);
  EXPECT_EQ(line.l1_compactions, 1u);
  EXPECT_EQ(line.d2d_bytes, 16 * unit) << "to DRAM and back";
  EXPECT_EQ(compactor.bounces(), 1u);
  EXPECT_EQ(compactor.movedBytes(), 8 * unit);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u) << "the bounce is given back";
  check(middle);
  check(large);
}

TEST_P(L1CompactionTest, AForbiddenBounceIsOutOfMemory) {
  compactor.setBounceAllowed(false);
  Held first = fill(4 * unit, 1), middle = fill(8 * unit, 2);
  first.storage.reset();
  try {
    fill(8 * unit, 3);
    FAIL();
  } catch (const OutOfMemory &error) {
    EXPECT_EQ(error.report().space, Space::DeviceL1);
    ASSERT_EQ(error.report().tried.size(), 1u);
    EXPECT_EQ(error.report().tried[0], std::pair(std::string("L1 compaction"), uint64_t(0)));
    ASSERT_EQ(error.report().holders.size(), 1u);
    EXPECT_EQ(error.report().holders[0].liveBytes, 8 * unit);
    EXPECT_NE(std::string(error.what()).find("no free range is long enough"), std::string::npos) << error.what();
  }
  check(middle);
}

// Blocks that belong to no storage have an address that somebody keeps.
TEST_P(L1CompactionTest, RawBlocksStay) {
  Held below = fill(4 * unit, 1);
  MemoryBlock raw = device->memory().allocate(Space::DeviceL1, 4 * unit, 64);
  below.storage.reset();
  EXPECT_THROW(fill(9 * unit, 2), OutOfMemory);
  Held above = fill(8 * unit, 3);
  device->memory().free(Space::DeviceL1, raw.data, 4 * unit, 64, raw.account, {});
  check(above);
}

// Random tensors come and go, written again by queued copies between moves.
TEST_P(L1CompactionTest, NothingIsLostUnderRandomUse) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " on " + device->name());
    std::mt19937 random(seed);
    std::vector<Held> held;
    for (int step = 0; step < 120; ++step) {
      if (!held.empty() && random() % 3 == 0) {
        held.erase(held.begin() + ptrdiff_t(random() % held.size()));
        continue;
      }
      try {
        held.push_back(fill(64 * (1 + random() % 200), step));
      } catch (const OutOfMemory &) {
        EXPECT_LT(device->freeMemory(Space::DeviceL1).bytes, 2 * 64 * 200u) << "the bytes were there";
        held.erase(held.begin());
      }
      if (random() % 8 == 0)
        check(held[random() % held.size()]);
    }
    for (const Held &one : held)
      check(one);
  }
  EXPECT_GT(compactor.compactions(), 0u);
}
