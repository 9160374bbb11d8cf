//===- DeviceMemoryTest.cpp - the books over a device's memory ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Tensor/Storage.h"
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <random>

using namespace segue;

static constexpr Space dram = Space::DeviceDram;

class DeviceMemoryTest : public testing::Test {
protected:
  std::shared_ptr<Storage> take(uint64_t bytes, OwnerId owner = 0) {
    return Storage::allocate(device, dram, bytes, 64, owner);
  }
  DeviceRef device = Device::open("cpu:threads=1");
  DeviceMemory &memory = device->memory();
};

TEST_F(DeviceMemoryTest, BudgetIsKeptToTheByte) {
  memory.setBudget(dram, 1000);
  auto first = take(600);
  auto second = take(400); // lands on the budget
  EXPECT_THROW(take(1), OutOfMemory);
  EXPECT_EQ(memory.liveBytes(dram), 1000u);
  first.reset();
  auto third = take(600);
  EXPECT_EQ(memory.peakBytes(dram), 1000u);
  EXPECT_NE(Storage::allocate(device, Space::Host, 5000, 64), nullptr) << "other spaces have budgets of their own";
}

// A budget may shrink below what is held: nothing is taken away, nothing more
// is given.
TEST_F(DeviceMemoryTest, ShrunkBudgetHoldsForWhatComes) {
  auto held = take(800);
  memory.setBudget(dram, 500);
  EXPECT_THROW(take(1), OutOfMemory);
  held.reset();
  EXPECT_NE(take(500), nullptr);
  memory.setBudget(dram, UINT64_MAX);
  EXPECT_LT(memory.budget(dram), UINT64_MAX) << "never above the capacity";
}

// Sessions come and go in any order: each cap counts as long as it is there, and leaves nothing behind.
TEST_F(DeviceMemoryTest, CapsOfSeveralEndInAnyOrder) {
  uint64_t capacity = memory.budget(dram);
  auto first = std::optional(memory.addCap(dram, 1000)), second = std::optional(memory.addCap(dram, 3000));
  EXPECT_EQ(memory.budget(dram), 1000u);
  EXPECT_THROW(take(1001), OutOfMemory);
  first.reset();
  EXPECT_EQ(memory.budget(dram), 3000u) << "the cap of who is still there";
  DeviceMemory::CapHandle third = memory.addCap(dram, 2000);
  memory.setBudget(dram, 2500);
  EXPECT_EQ(memory.budget(dram), 2000u);
  third = memory.addCap(dram, 2800);
  EXPECT_EQ(memory.budget(dram), 2500u);
  third = {};
  memory.setBudget(dram, UINT64_MAX);
  EXPECT_EQ(memory.budget(dram), 3000u);
  second.reset();
  EXPECT_EQ(memory.budget(dram), capacity);
}

TEST_F(DeviceMemoryTest, FailureSaysWhoHoldsWhatAndWhatWouldDo) {
  OwnerId saved = memory.intern({"forward", "h.0.saved.1", "saved", "h.0", "model.py:12:3"});
  OwnerId weights = memory.intern({"forward", "h.0.weight", "parameter", "", ""});
  EXPECT_EQ(memory.intern({"forward", "h.0.weight", "parameter", "", ""}), weights);
  memory.setBudget(dram, 3 << 20);
  memory.setPhase("forward");
  auto a = take(1 << 20, saved), b = take(1 << 20, saved);
  memory.setPhase("");
  auto c = take(100, weights);
  auto nothing = memory.addRoomMaker("derived layouts", 0, [](Space, uint64_t) { return uint64_t(0); });
  try {
    take(2 << 20, weights);
    FAIL();
  } catch (const OutOfMemory &thrown) {
    // What is known stays when the error is kept, or becomes part of another's sentence.
    Error error = thrown.within("a program").within("a step");
    EXPECT_EQ(error.code(), ErrorCode::DeviceOom);
    ASSERT_NE(error.details<OutOfMemory::Report>(), nullptr) << error.what();
    const OutOfMemory::Report &report = *error.details<OutOfMemory::Report>();
    EXPECT_EQ(report.wantedBytes, 2u << 20);
    EXPECT_EQ(report.liveBytes, (2u << 20) + 100);
    EXPECT_EQ(report.smallestBudgetBytes, (4u << 20) + 100);
    ASSERT_EQ(report.holders.size(), 2u);
    EXPECT_EQ(report.holders[0].owner.value, "h.0.saved.1");
    EXPECT_EQ(report.holders[0].phase, "forward");
    EXPECT_EQ(report.holders[0].blocks, 2u);
    EXPECT_EQ(report.holders[0].liveBytes, 2u << 20);
    ASSERT_EQ(report.tried.size(), 1u);
    std::string message = error.what();
    for (const char *part : {"2.00 MiB for forward: h.0.weight (parameter)", "budget 3.00 MiB",
                             "derived layouts gave 0 B", "smallest budget that would do is 4.00 MiB (4194404 bytes)",
                             "2.00 MiB in 2  forward: h.0.saved.1 (saved, block h.0, model.py:12:3) [forward]"})
      EXPECT_NE(message.find(part), std::string::npos) << part << "\nin " << message;
  }
  // With that budget it fits.
  memory.setBudget(dram, (4 << 20) + 100);
  EXPECT_NE(take(2 << 20, weights), nullptr);
}

TEST_F(DeviceMemoryTest, RoomIsAskedForByRankUntilItFits) {
  memory.setBudget(dram, 1000);
  auto low = take(500), high = take(500);
  std::string order;
  auto second = memory.addRoomMaker("second", 2, [&](Space, uint64_t) {
    order += "2";
    high.reset();
    return uint64_t(500);
  });
  {
    auto gone = memory.addRoomMaker("gone", 0, [&](Space, uint64_t) { return order += "!", uint64_t(0); });
  }
  auto first = memory.addRoomMaker("first", 1, [&](Space space, uint64_t wanted) {
    EXPECT_EQ(space, dram);
    EXPECT_EQ(wanted, 400u);
    order += "1";
    return uint64_t(0);
  });
  auto fits = take(400);
  EXPECT_EQ(order, "12");
  EXPECT_EQ(high, nullptr);
  EXPECT_NE(low, nullptr);
}

// What each account held at the peak, against a model that copies the books.
TEST_F(DeviceMemoryTest, BooksAtThePeakAgreeWithAModel) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    memory.resetPeak();
    std::vector<OwnerId> owners;
    for (int i = 0; i < 4; ++i)
      owners.push_back(memory.intern({"p", "t" + std::to_string(i), "", "", ""}));
    std::map<std::string, uint64_t> live, atPeak;
    uint64_t total = 0, peak = 0;
    std::vector<std::pair<size_t, std::shared_ptr<Storage>>> blocks;
    for (int step = 0; step < 200; ++step) {
      if (blocks.empty() || random() % 2) {
        size_t who = random() % owners.size();
        uint64_t bytes = 1 + random() % 5000;
        blocks.push_back({who, take(bytes, owners[who])});
        total += bytes;
        live["t" + std::to_string(who)] += bytes;
        if (total > peak)
          peak = total, atPeak = live;
      } else {
        size_t which = random() % blocks.size();
        uint64_t bytes = blocks[which].second->bytes();
        total -= bytes;
        live["t" + std::to_string(blocks[which].first)] -= bytes;
        blocks.erase(blocks.begin() + long(which));
      }
      ASSERT_EQ(memory.liveBytes(dram), total);
      ASSERT_EQ(memory.peakBytes(dram), peak);
      std::map<std::string, uint64_t> said;
      for (const MemoryHolder &holder : memory.holders(dram)) {
        ASSERT_EQ(holder.liveBytes, live[holder.owner.value]);
        said[holder.owner.value] = holder.bytesAtPeak;
      }
      for (const auto &[name, bytes] : atPeak)
        ASSERT_EQ(said[name], bytes) << name << " after " << step;
    }
  }
}

TEST_F(DeviceMemoryTest, FreedStorageIsAnErrorToUse) {
  auto storage = take(64);
  storage->free();
  EXPECT_EQ(memory.liveBytes(dram), 0u);
  EXPECT_EQ(storage->state(), StorageState::Freed);
  try {
    storage->requireUsable("tensor \"h\"");
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::UseAfterFree);
    EXPECT_NE(std::string(error.what()).find("tensor \"h\" was freed"), std::string::npos);
  }
}

// The first error stays, and readers are told whose it was.
TEST_F(DeviceMemoryTest, FailedStorageKeepsItsError) {
  auto storage = take(64);
  storage->outcome()->fail(Error(ErrorCode::TransferFailed, "the link broke"));
  storage->outcome()->fail(Error(ErrorCode::IoFailed, "later"));
  EXPECT_EQ(storage->state(), StorageState::Failed);
  try {
    storage->requireUsable("tensor \"h\"");
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
    EXPECT_NE(std::string(error.what()).find("tensor \"h\" was never written: the link broke"), std::string::npos);
  }
}
