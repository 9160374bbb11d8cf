//===- PinnedPoolTest.cpp - page-locked slabs in size classes -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Residency/PinnedPool.h"
#include <gtest/gtest.h>

using namespace segue;

class PinnedPoolTest : public testing::Test {
protected:
  static constexpr uint64_t mib = 1 << 20;
  DeviceRef device = Device::open("cpu:threads=1");
  uint64_t held() { return device->memory().liveBytes(Space::HostPinned); }
  PinnedPool make(std::vector<uint64_t> sizes, std::vector<uint32_t> counts) {
    return PinnedPool(device, sizes, counts);
  }
};

// The fallback of the activation spec: classes 1 and 4 MiB, one slab each.
TEST_F(PinnedPoolTest, FallsBackToTheNextLargerClass) {
  PinnedPool pool = make({mib, 4 * mib}, {1, 1});
  EXPECT_EQ(pool.totalBytes(), 5 * mib);
  EXPECT_EQ(pool.naturalClass(mib), 0u);
  EXPECT_EQ(pool.naturalClass(mib + 1), 1u);
  EXPECT_EQ(pool.naturalClass(5 * mib), std::nullopt);
  auto first = pool.tryTake(*pool.find(mib));
  EXPECT_EQ(first->classIndex, 0u);
  auto second = pool.tryTake(*pool.find(mib));
  EXPECT_EQ(second->classIndex, 1u);
  EXPECT_EQ(pool.find(mib), std::nullopt);
  EXPECT_EQ(pool.tryTake(0), std::nullopt);
  pool.give(std::move(*second));
  EXPECT_EQ(pool.find(3 * mib), 1u) << "a slab goes back to its own class";
}

TEST_F(PinnedPoolTest, ComesWholeOrNotAtAll) {
  device->memory().setBudget(Space::HostPinned, 6 * mib);
  EXPECT_THROW(make({mib, 4 * mib}, {3, 1}), OutOfMemory);
  EXPECT_EQ(held(), 0u);
  {
    PinnedPool pool = make({mib, 4 * mib}, {2, 1});
    EXPECT_EQ(held(), 6 * mib);
    EXPECT_EQ(pool.grow(0, 2), 0u) << "the budget is used up";
    device->memory().setBudget(Space::HostPinned, 7 * mib);
    EXPECT_EQ(pool.grow(0, 2), 1u);
    EXPECT_EQ(pool.slabs(0), 3u);
    EXPECT_EQ(pool.freeSlabs(0), 3u);
  }
  EXPECT_EQ(held(), 0u);
}

TEST_F(PinnedPoolTest, MisuseIsNamed) {
  auto message = [](auto &&call) -> std::string {
    try {
      call();
    } catch (const Error &error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { make({mib, mib}, {1, 1}); }).find("class 1 (1048576 bytes) is not above"), std::string::npos);
  EXPECT_NE(message([&] { make({0}, {1}); }).find("class 0"), std::string::npos);
  EXPECT_NE(message([&] { make({mib}, {1, 2}); }).find("1 classes, 2 counts"), std::string::npos);
  PinnedPool pool = make({mib}, {1});
  auto slab = pool.tryTake(0);
  PinnedSlab copy = *slab;
  pool.give(std::move(*slab));
  EXPECT_NE(message([&] { pool.give(copy); }).find("given back twice"), std::string::npos);
}
