//===- DramCompactionTest.cpp - tensors that move in DRAM -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On simulated devices, in real time and in the hands of an adversary: an allocation
// for which there are bytes is served, whatever holes they lie in, behind the work
// that is queued, and no tensor loses a byte by it.
//
//===----------------------------------------------------------------------===//

#include "CompactionFixture.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include <random>

using namespace segue;
using namespace segue::test;

namespace {
constexpr uint64_t unit = 4096, units = 32;
constexpr Space dram = Space::DeviceDram;

class DramCompactionTest : public CompactionFixture {
protected:
  DramCompactionTest() : CompactionFixture("sim:dram=128KiB,pinned=1MiB,latency=1us", dram) {}

  /// Moves that nobody asked for come on top.
  bool isRestless() const { return compactor.isRestless(); }

  DramCompactor &compactor = *device->dramCompactor();
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Sim, DramCompactionTest,
                         testing::Values("", ",adversarial=0", ",adversarial=1", ",adversarial=2", ",adversarial=3",
                                         ",adversarial=4", ",adversarial=5"));

// Every second of so many tensors is freed: half of the memory is free, and a tensor
// of two units has no place until a single one moves.
TEST_P(DramCompactionTest, MovesTheFewestBytes) {
  std::vector<Held> held;
  for (int i = 0; i < int(units); ++i)
    held.push_back(fill(unit, i));
  for (int i = int(units) - 2; i >= 0; i -= 2)
    held.erase(held.begin() + i);
  held.push_back(fill(2 * unit, 99));
  if (!isRestless()) {
    EXPECT_EQ(compactor.compactions(), 1u);
    EXPECT_EQ(compactor.movedBytes(), unit);
  }
  for (const Held &one : held)
    check(one);
  // The rest of the free half in one piece.
  held.push_back(fill(device->freeMemory(dram).bytes, 100));
  EXPECT_EQ(device->freeMemory(dram).bytes, 0u);
  for (const Held &one : held)
    check(one);
}

// A long tensor between two short holes overlaps its new place.
TEST_P(DramCompactionTest, SlidesOverItself) {
  for (bool up : {false, true}) {
    Held below = fill(unit, 1), middle = fill((units - 3) * unit, 2), above = fill(2 * unit, 3);
    // It goes the longer way, in fewer pieces.
    Held rest = std::move(up ? below : above);
    (up ? above : below).storage.reset();
    rest.storage.reset();
    Held large = fill(3 * unit, 4);
    check(middle);
    check(large);
  }
}

// Work that is queued reads what was there when it was queued.
TEST_P(DramCompactionTest, QueuedWorkComesFirst) {
  Held below = fill(unit, 1), middle = fill((units - 2) * unit, 2), above = fill(unit, 3);
  auto read = std::make_shared<std::vector<std::byte>>(middle.expected.size());
  Fence copy(Queue::DeviceToHost,
             device->enqueue(Queue::DeviceToHost, middle.storage->writes(),
                             {[raw = device.get(), read, source = middle.storage->data()] {
                                raw->copy(read->data(), source, read->size());
                              },
                              {},
                              "read"}));
  middle.storage->addRead(copy);
  below.storage.reset();
  above.storage.reset();
  Held large = fill(2 * unit, 4);
  device->wait(copy);
  EXPECT_EQ(*read, middle.expected);
  check(middle);
  check(large);
}

// Blocks that belong to no storage have an address that somebody keeps; what fails
// for them says how the free memory lies, and changes nothing.
TEST_P(DramCompactionTest, RawBlocksStay) {
  Held below = fill(12 * unit, 1);
  MemoryBlock raw = device->memory().allocate(dram, 4 * unit, 64);
  Held kept = fill(6 * unit, 2);
  below.storage.reset();
  try {
    fill(22 * unit, 3);
    EXPECT_TRUE(isRestless()) << "nothing had moved past the block";
  } catch (const OutOfMemory &error) {
    EXPECT_EQ(error.report().free.bytes, 22 * unit);
    EXPECT_GE(error.report().free.ranges, 2u);
    EXPECT_NE(std::string(error.what()).find("no free range is long enough"), std::string::npos) << error.what();
  }
  check(kept);
  Held above = fill(10 * unit, 4);
  device->memory().free(dram, raw.data, 4 * unit, 64, raw.account, {});
  check(above);
  check(kept);
}

// Who holds bytes between two blocks that stay is asked until they are in one piece.
TEST_P(DramCompactionTest, AsksForWhatIsContiguous) {
  std::vector<Held> held;
  std::vector<MemoryBlock> fixed;
  for (int i = 0; i < 4; ++i) {
    held.push_back(fill(4 * unit, i));
    fixed.push_back(device->memory().allocate(dram, 4 * unit, 64));
  }
  std::vector<size_t> order = {0, 2, 1, 3};
  size_t asked = 0;
  auto maker = device->memory().addRoomMaker("holders", 0, [&](Space, uint64_t) -> uint64_t {
    if (asked == order.size())
      return 0;
    held[order[asked++]].storage.reset();
    return 4 * unit;
  });
  device->memory().free(dram, fixed[1].data, 4 * unit, 64, fixed[1].account, {});
  Held large = fill(8 * unit, 9);
  if (!isRestless()) {
    EXPECT_EQ(asked, 2u);
  }
  check(large);
  for (size_t i : {0, 2, 3})
    device->memory().free(dram, fixed[i].data, 4 * unit, 64, fixed[i].account, {});
}

// Random tensors come and go, written again by queued copies between moves: nothing
// is refused that there are bytes for, but for what alignment leaves between them.
TEST_P(DramCompactionTest, NothingIsLostUnderRandomUse) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " on " + device->name());
    std::mt19937 random(seed);
    std::vector<Held> held;
    for (int step = 0; step < 120; ++step) {
      if (!held.empty() && random() % 3 == 0) {
        held.erase(held.begin() + ptrdiff_t(random() % held.size()));
        continue;
      }
      uint64_t bytes = 1 + random() % 20000, alignment = uint64_t(1) << random() % 10;
      uint64_t lost = 512 * (held.size() + 1);
      bool fits = bytes + lost <= device->freeMemory(dram).bytes;
      try {
        held.push_back(fill(bytes, step, uint32_t(alignment)));
      } catch (const OutOfMemory &error) {
        EXPECT_FALSE(fits) << error.what();
        held.erase(held.begin());
      }
      if (!held.empty() && random() % 8 == 0)
        check(held[random() % held.size()]);
    }
    for (const Held &one : held)
      check(one);
  }
  EXPECT_GT(compactor.compactions(), 0u);
}
