//===- ResidencyTest.cpp - items leave, return and lose nothing -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Residency/Residency.h"
#include "../ErrorOf.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

using namespace segue;

// What comes back, changes and leaves again while its last value is on its way home
// has the last change there in the end, in whatever order the queues run.
TEST(ResidencyTest, ChangesWhileTheLastValueGoesHomeAreKept) {
  constexpr int64_t count = 64;
  constexpr int rounds = 4;
  for (int seed = 0; seed < 40; ++seed) {
    DeviceRef device =
        Device::open("sim:dram=1MiB,pinned=1MiB,threads=1,adversarial=" + std::to_string(seed));
    Residency residency(device);
    residency.setPlaced(true);
    TensorDesc onHost({count}, ElementType::f32, Layout{.space = Space::HostPinned});
    Tensor home = Tensor::zeros(device, onHost);
    auto onDevice = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
    Item &item = residency.adopt(home, "w", /*owner=*/0, onDevice);
    for (int round = 0; round < rounds; ++round) {
      Tensor there = residency.need(item, /*isWritten=*/true);
      Storage &storage = *there.storage();
      auto add = [data = reinterpret_cast<float *>(there.bytes())] {
        for (int64_t i = 0; i < count; ++i)
          data[i] += 1;
      };
      storage.addWrite(
          Fence(Queue::Compute, device->enqueue(Queue::Compute, storage.uses(), Work{add, {}, "add"})));
      residency.leave(item);
    }
    residency.writeBack();
    EXPECT_EQ(home.data<float>()[count - 1], rounds) << "seed " << seed;
  }
}

namespace {
constexpr int64_t count = 256;

/// A device on which `residency` moves saved tensors of 1 KiB.
struct SavedTensors {
  explicit SavedTensors(const std::string &options)
      : device(Device::open("sim:dram=64KiB,pinned=1MiB," + options)), residency(device) {
    residency.setWarn([this](const std::string &text) { warnings.push_back(text); });
  }

  /// An item whose values are first, first + 1, ...
  Item &save(float first) {
    Tensor there = Tensor::empty(device, TensorDesc({count}, ElementType::f32));
    auto values = std::make_shared<std::vector<float>>(count);
    std::iota(values->begin(), values->end(), first);
    Device *raw = device.get();
    Storage &storage = *there.storage();
    auto fill = [=, data = storage.data()] { raw->copy(data, values->data(), count * sizeof(float)); };
    storage.addWrite(
        Fence(Queue::HostToDevice, device->enqueue(Queue::HostToDevice, storage.uses(), Work{fill, {}, "fill"})));
    return residency.hold(there, "h.saved", /*owner=*/0, ItemLifetime::Step);
  }
  /// Takes the item, and expects what save(first) gave it.
  void expect(Item &item, float first) {
    Tensor there = residency.take(item);
    device->wait(there.storage()->writes());
    there.storage()->requireUsable("what came back");
    std::vector<float> found(count);
    device->copy(found.data(), there.bytes(), count * sizeof(float));
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(found[i], first + float(i)) << i;
  }

  DeviceRef device;
  Residency residency;
  std::vector<std::string> warnings;
};
} // namespace

TEST(ItemTest, HasTheTransitionsOfTheMachineAndNoOther) {
  using enum CopyState;
  std::vector<std::pair<CopyState, CopyState>> legal = {
      {Absent, Coming}, {Coming, Present},  {Coming, Absent}, {Present, Leaving},
      {Present, Absent}, {Leaving, Present}, {Leaving, Absent}};
  for (CopyState now : {Absent, Coming, Present, Leaving})
    for (CopyState next : {Absent, Coming, Present, Leaving})
      EXPECT_EQ(canFollow(now, next), std::ranges::find(legal, std::pair(now, next)) != legal.end())
          << name(now) << " " << name(next);
}

TEST(ItemTest, NeverLosesItsLastTruth) {
  DeviceRef device = Device::open("sim:dram=64KiB,pinned=64KiB");
  Residency residency(device);
  Tensor value = Tensor::zeros(device, TensorDesc({count}, ElementType::f32));
  Item &item = residency.hold(value, "w", 0, ItemLifetime::Session);
  auto [code, text] = errorOf([&] { item.enter(Tier::Device, CopyState::Absent); });
  EXPECT_EQ(code, ErrorCode::StateTransition);
  EXPECT_NE(text.find("\"w\" cannot go from PRESENT to ABSENT on the device: no other copy"),
            std::string::npos)
      << text;
  EXPECT_EQ(item.device().state, CopyState::Present);
  residency.leave(item);
  residency.settle();
  EXPECT_EQ(item.device().state, CopyState::Absent);
  EXPECT_EQ(item.host().state, CopyState::Present);
  // What changes on the device is newer than the home, which no longer is a truth.
  residency.need(item, /*isWritten=*/true);
  EXPECT_TRUE(item.isStale(Tier::Host));
  EXPECT_EQ(errorOf([&] { item.enter(Tier::Device, CopyState::Absent); }).first, ErrorCode::StateTransition);
}

TEST(ResidencyTest, WhatLeavesComesBackWheneverItIsNeeded) {
  for (const char *options : {"threads=1", "adversarial=1", "adversarial=2", "adversarial=3,latency=50us"})
    for (bool isPlaced : {false, true}) {
      SavedTensors saved(options);
      saved.residency.setPlaced(isPlaced);
      for (int wait = 0; wait < 3; ++wait) {
        Item &item = saved.save(float(wait));
        EXPECT_TRUE(saved.residency.leave(item));
        if (wait > 0) // else it is needed while it leaves, and is rescued
          saved.residency.settle();
        if (wait > 1)
          saved.residency.fetch(item);
        saved.expect(item, float(wait));
      }
      EXPECT_TRUE(saved.warnings.empty());
    }
}

// A plan may have the next copy of an item where the one lies that is leaving still:
// that one stays, and nothing is displaced.
TEST(ResidencyTest, WhatStillLiesAtItsNextAddressStaysThere) {
  DeviceRef device = Device::open("sim:dram=1MiB,pinned=1MiB,threads=1,link=100KB/s");
  DeviceMemory &memory = device->memory();
  MemoryOwner owner{.value = "w", .role = "parameter"};
  AddressPlan plan;
  plan.lines = {{owner, {{{0, 1024}, {0, 1024}}}}};
  plan.ranges = {{0, 1024}};
  Residency residency(device);
  ASSERT_TRUE(memory.followAddresses(std::move(plan), [&] { return residency.awaitDeparture(); }));
  residency.setPlaced(true);
  Tensor home = Tensor::zeros(device, TensorDesc({count}, ElementType::f32, Layout{.space = Space::HostPinned}));
  auto onDevice = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
  Item &item = residency.adopt(home, "w", memory.intern(owner), onDevice);
  for (int step = 0; step < 3; ++step) {
    memory.beginPlannedStep();
    residency.need(item, /*isWritten=*/true);
    residency.leave(item);
    residency.need(item);
    memory.endPlannedStep();
    residency.settle();
    residency.leave(item);
    residency.settle();
  }
  EXPECT_EQ(memory.addressFigures().displaced, 0u) << memory.addressFigures().lastDisplaced;
  EXPECT_EQ(memory.addressFigures().placed, 6u);
}

// And where it lies over a part of the one that is leaving, that leaves first.
TEST(ResidencyTest, WhatOverlapsItsNextAddressLeavesFirst) {
  DeviceRef device = Device::open("sim:dram=1MiB,pinned=1MiB,threads=1,link=100KB/s");
  DeviceMemory &memory = device->memory();
  MemoryOwner owner{.value = "w", .role = "gradient"};
  AddressPlan plan;
  plan.lines = {{owner, {{{0, 1024}, {512, 1024}}}}};
  plan.ranges = {{0, 1536}};
  Residency residency(device);
  ASSERT_TRUE(memory.followAddresses(std::move(plan), [&] { return residency.awaitDeparture(); }));
  residency.setPlaced(true);
  Tensor home = Tensor::zeros(device, TensorDesc({count}, ElementType::f32, Layout{.space = Space::HostPinned}));
  auto onDevice = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
  Item &item = residency.adopt(home, "w", memory.intern(owner), onDevice);
  memory.beginPlannedStep();
  const std::byte *first = residency.need(item, /*isWritten=*/true).bytes();
  residency.leave(item);
  EXPECT_EQ(residency.need(item).bytes(), first + 512);
  memory.endPlannedStep();
  EXPECT_EQ(memory.addressFigures().displaced, 0u) << memory.addressFigures().lastDisplaced;
}

// Where the budget is short as well, room is made until the planned address is free, and
// not until any is.
TEST(ResidencyTest, RoomIsMadeAtThePlannedAddress) {
  DeviceRef device = Device::open("sim:dram=2KiB,pinned=1MiB,threads=1,link=100KB/s");
  DeviceMemory &memory = device->memory();
  AddressPlan plan;
  plan.ranges = {{0, 2048}};
  plan.steps = 2;
  Residency residency(device);
  std::vector<Item *> items;
  auto onDevice = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
  for (auto [name, offset] : {std::pair("first", 0), std::pair("second", 1024), std::pair("third", 1024)}) {
    MemoryOwner owner{.value = name, .role = "state"};
    AddressPlan::Block block{uint64_t(offset), 1024};
    plan.lines.push_back({owner, {{block}, {block}}});
    Tensor home = Tensor::zeros(device, TensorDesc({count}, ElementType::f32, Layout{.space = Space::HostPinned}));
    items.push_back(&residency.adopt(home, name, memory.intern(owner), onDevice));
  }
  DeviceMemory::RoomMakerHandle maker = memory.addRoomMaker(
      "residency", 0, [&](Space space, uint64_t wanted) { return space == Space::DeviceDram ? residency.makeRoom(wanted) : 0; });
  ASSERT_TRUE(memory.followAddresses(std::move(plan), [&] { return residency.awaitDeparture(); }));
  residency.setPlaced(true);
  memory.beginPlannedStep();
  for (Item *item : {items[0], items[1]}) {
    residency.need(*item, /*isWritten=*/true);
    residency.leave(*item);
  }
  residency.need(*items[2]);
  memory.endPlannedStep();
  EXPECT_EQ(memory.addressFigures().displaced, 0u) << memory.addressFigures().lastDisplaced;
  EXPECT_EQ(memory.addressFigures().placed, 3u);
}

TEST(ResidencyTest, ACopyThatFailsLosesNothing) {
  SavedTensors saved("fail-d2h=1x2");
  Item &item = saved.save(7);
  saved.residency.leave(item);
  saved.residency.settle();
  EXPECT_EQ(item.device().state, CopyState::Present);
  EXPECT_EQ(saved.residency.counts().kept, 1u);
  ASSERT_EQ(saved.warnings.size(), 1u);
  EXPECT_NE(saved.warnings[0].find("\"h.saved\""), std::string::npos) << saved.warnings[0];
  saved.residency.leaveKept();
  saved.residency.settle();
  EXPECT_EQ(item.device().state, CopyState::Absent);
  saved.expect(item, 7);
}

TEST(ResidencyTest, BytesThatChangedOnTheHostAreNotUsed) {
  for (bool isChecked : {false, true}) {
    SavedTensors saved("threads=1");
    saved.residency.checkCopies(isChecked);
    Item &item = saved.save(1);
    saved.residency.leave(item);
    saved.residency.settle();
    item.host().tensor.data<float>()[3] = -1;
    Tensor there = saved.residency.take(item);
    saved.device->wait(there.storage()->writes());
    ASSERT_EQ(there.storage()->failure() != nullptr, isChecked);
    if (isChecked) {
      EXPECT_EQ(there.storage()->failure()->code(), ErrorCode::ChecksumMismatch);
    }
  }
}

TEST(ResidencyTest, RoomIsMadeByWhatLeaves) {
  SavedTensors saved("latency=1ms");
  auto maker = saved.device->memory().addRoomMaker("residency", 0, [&](Space space, uint64_t wanted) {
    return space == Space::DeviceDram ? saved.residency.makeRoom(wanted) : 0;
  });
  std::vector<Item *> items;
  for (int i = 0; i < 60; ++i) {
    items.push_back(&saved.save(float(i)));
    saved.residency.leave(*items.back());
  }
  // The device holds 64 such tensors; 60 more want the room of those that leave.
  for (int i = 0; i < 60; ++i)
    items.push_back(&saved.save(float(60 + i)));
  for (int i = 119; i >= 60; --i)
    saved.expect(*items[i], float(i));
  for (int i = 0; i < 60; ++i)
    saved.expect(*items[i], float(i));
}
