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

namespace {
/// Items of 1 KiB that live on the host, on a slow link, with the address of each copy in a
/// step by a plan.
struct PlacedItems {
  explicit PlacedItems(const char *dram)
      : device(Device::open("sim:pinned=1MiB,threads=1,link=100KB/s,dram=" + std::string(dram))), residency(device) {
    maker = device->memory().addRoomMaker("residency", 0, [this](Space space, uint64_t wanted) {
      return space == Space::DeviceDram ? residency.makeRoom(wanted) : 0;
    });
  }

  /// `offsets`: of its copies in a step, in turn.
  Item &add(const char *name, std::vector<uint64_t> offsets) {
    MemoryOwner owner{.value = name, .role = "state"};
    std::vector<AddressPlan::Block> blocks;
    for (uint64_t offset : offsets) {
      blocks.push_back({offset, 1024});
      end = std::max(end, offset + 1024);
    }
    plan.lines.push_back({owner, {std::move(blocks)}});
    Tensor home = Tensor::zeros(device, TensorDesc({count}, ElementType::f32, Layout{.space = Space::HostPinned}));
    auto onDevice = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
    return residency.adopt(home, name, device->memory().intern(owner), onDevice);
  }
  void follow() {
    plan.ranges = {{0, end}};
    ASSERT_TRUE(device->memory().followAddresses(std::move(plan), [this] { return residency.awaitDeparture(); }));
    residency.setPlaced(true);
  }
  void expectPlaced(uint64_t copies) {
    AddressFigures figures = device->memory().addressFigures();
    EXPECT_EQ(figures.displaced, 0u) << figures.lastDisplaced;
    EXPECT_EQ(figures.placed, copies);
  }

  DeviceRef device;
  Residency residency;
  DeviceMemory::RoomMakerHandle maker;
  AddressPlan plan;
  uint64_t end = 0;
};
} // namespace

// A plan may have the next copy of an item where the one lies that is leaving still:
// that one stays, and nothing is displaced.
TEST(ResidencyTest, WhatStillLiesAtItsNextAddressStaysThere) {
  PlacedItems items("1MiB");
  Item &item = items.add("w", {0, 0});
  items.follow();
  for (int step = 0; step < 3; ++step) {
    items.device->memory().beginPlannedStep();
    items.residency.need(item, /*isWritten=*/true);
    items.residency.leave(item);
    items.residency.need(item);
    items.device->memory().endPlannedStep();
    items.residency.settle();
    items.residency.leave(item);
    items.residency.settle();
  }
  items.expectPlaced(6);
}

// And where it lies over a part of the one that is leaving, that leaves first.
TEST(ResidencyTest, WhatOverlapsItsNextAddressLeavesFirst) {
  PlacedItems items("1MiB");
  Item &item = items.add("w", {0, 512});
  items.follow();
  items.device->memory().beginPlannedStep();
  const std::byte *first = items.residency.need(item, /*isWritten=*/true).bytes();
  items.residency.leave(item);
  EXPECT_EQ(items.residency.need(item).bytes(), first + 512);
  items.device->memory().endPlannedStep();
  items.expectPlaced(2);
}

// Where the budget is short as well, room is made until the planned address is free, and
// not until any is.
TEST(ResidencyTest, RoomIsMadeAtThePlannedAddress) {
  PlacedItems items("2KiB");
  Item &first = items.add("first", {0}), &second = items.add("second", {1024}), &third = items.add("third", {1024});
  items.follow();
  items.device->memory().beginPlannedStep();
  for (Item *item : {&first, &second}) {
    items.residency.need(*item, /*isWritten=*/true);
    items.residency.leave(*item);
  }
  items.residency.need(third);
  items.device->memory().endPlannedStep();
  items.expectPlaced(3);
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

//===----------------------------------------------------------------------===//
// Sources
//===----------------------------------------------------------------------===//

namespace {
/// Two tensors of the host that lie in one place on the device.
struct Pair final : ItemSource {
  explicit Pair(const DeviceRef &device) : device(device) {
    for (int64_t i = 0; i < 2; ++i) {
      homes.push_back(Tensor::zeros(device, TensorDesc({count}, ElementType::f32, Layout{.space = Space::HostPinned})));
      std::iota(homes[size_t(i)].data<float>(), homes[size_t(i)].data<float>() + count, float(1000 * i));
      TensorDesc part({count}, ElementType::f32);
      part.layout.offset = uint64_t(i) * count * sizeof(float);
      parts.push_back(std::make_shared<const TensorDesc>(std::move(part)));
    }
  }
  bool fetchInto(const Tensor &place, const TransferOptions &how) override {
    for (size_t i = 0; i < homes.size() && !isDenied; ++i) {
      if (i == failsAt)
        throw Error(ErrorCode::IoFailed, "the file is gone");
      device->transfer().copyInto(homes[i], Tensor::in(place.storage(), parts[i]), how);
    }
    return !isDenied;
  }
  bool mayFetchAgain(const Error &) const override { return true; }
  Fence saveFrom(const Tensor &place, uint64_t since) override {
    Fence copied;
    for (size_t i = 0; i < homes.size(); ++i) {
      if (versions[i] <= since)
        continue;
      ++saved[i];
      device->transfer().copyInto(Tensor::in(place.storage(), parts[i]), homes[i]);
      copied.join(homes[i].storage()->writes());
    }
    return copied;
  }
  std::optional<Error> takeSaveFailure() override {
    std::optional<Error> cause;
    for (Tensor &home : homes)
      if (const Error *failure = home.storage()->failure()) {
        cause = *failure;
        home.storage()->forgetOutcome();
      }
    return cause;
  }

  DeviceRef device;
  std::vector<Tensor> homes;
  std::vector<std::shared_ptr<const TensorDesc>> parts;
  std::vector<uint64_t> versions{0, 0};
  std::vector<int> saved{0, 0};
  bool isDenied = false;
  size_t failsAt = SIZE_MAX;
};

/// An item of two parts in a slot, and what changes them.
struct SlotOfTwo {
  explicit SlotOfTwo(const std::string &options)
      : device(Device::open("sim:dram=64KiB,pinned=1MiB," + options)), residency(device), pair(device),
        item(residency.add(pair, "h.0")) {
    slot = Tensor::empty(device, TensorDesc({2 * count}, ElementType::f32));
    residency.setWarn([this](const std::string &text) { warnings.push_back(text); });
  }
  /// Fetches the item, and returns why that failed.
  std::optional<Error> fetch() {
    EXPECT_TRUE(residency.fetchInto(item, slot, {}));
    auto end = residency.awaitEnd(item);
    EXPECT_TRUE(end && end->item == item.id && end->tier == Tier::Device);
    return end ? end->failure : std::nullopt;
  }
  /// The next version of the part on the device is `value` everywhere.
  void write(size_t part, float value) {
    auto values = std::make_shared<std::vector<float>>(count, value);
    Tensor there = Tensor::in(slot.storage(), pair.parts[part]);
    Device *raw = device.get();
    auto fill = [=, data = there.bytes()] { raw->copy(data, values->data(), count * sizeof(float)); };
    slot.storage()->addWrite(Fence(Queue::HostToDevice, device->enqueue(Queue::HostToDevice, slot.storage()->uses(),
                                                                        Work{fill, {}, "fill"})));
    item.write();
    pair.versions[part] = item.version();
  }
  float last(size_t part) const { return pair.homes[part].data<float>()[count - 1]; }

  DeviceRef device;
  Residency residency;
  Pair pair;
  Item &item;
  Tensor slot;
  std::vector<std::string> warnings;
};
} // namespace

TEST(ItemSourceTest, ComesIntoItsPlaceAndLeavesWithWhatChanged) {
  for (const char *options : {"threads=1", "adversarial=1", "adversarial=2,latency=50us"}) {
    SlotOfTwo two(options);
    EXPECT_EQ(errorOf([&] { two.item.write(); }).first, ErrorCode::StateTransition);
    ASSERT_FALSE(two.fetch());
    EXPECT_EQ(two.item.device().tensor.storage(), two.slot.storage());
    EXPECT_EQ(errorOf([&] { two.residency.fetchInto(two.item, two.slot, {}); }).first, ErrorCode::StateTransition);
    two.residency.leave(two.item); // the source has it
    EXPECT_EQ(two.item.device().state, CopyState::Absent);
    EXPECT_FALSE(two.residency.takeEnd(Tier::Host, /*waits=*/true));
    ASSERT_FALSE(two.fetch());
    two.write(1, 5);
    EXPECT_EQ(errorOf([&] { two.residency.drop(two.item, Tier::Device); }).first, ErrorCode::StateTransition);
    two.residency.leave(two.item);
    auto end = two.residency.takeEnd(Tier::Host, /*waits=*/true);
    ASSERT_TRUE(end && !end->failure);
    EXPECT_EQ(two.item.device().state, CopyState::Absent);
    EXPECT_EQ(two.pair.saved, (std::vector{0, 1}));
    EXPECT_EQ(two.last(0), count - 1);
    EXPECT_EQ(two.last(1), 5);
  }
}

TEST(ItemSourceTest, WhatCannotBeFetchedLosesNothing) {
  SlotOfTwo two("threads=1");
  two.pair.isDenied = true;
  EXPECT_FALSE(two.residency.fetchInto(two.item, two.slot, {}));
  EXPECT_EQ(two.item.device().state, CopyState::Absent);
  two.pair.isDenied = false;
  two.pair.failsAt = 1;
  auto failure = two.fetch();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::IoFailed);
  EXPECT_EQ(two.item.device().state, CopyState::Absent);
  two.pair.failsAt = SIZE_MAX;
  EXPECT_FALSE(two.fetch());
  EXPECT_EQ(two.item.device().state, CopyState::Present);
}

// A copy home that fails leaves the value on the device, with all that it was to save.
TEST(ItemSourceTest, WhatCannotBeSavedIsKept) {
  SlotOfTwo two("fail-d2h=2x2");
  ASSERT_FALSE(two.fetch());
  two.write(0, 7);
  two.write(1, 8);
  two.residency.leave(two.item);
  auto end = two.residency.awaitEnd(two.item);
  ASSERT_TRUE(end && end->failure);
  EXPECT_EQ(two.item.device().state, CopyState::Present);
  EXPECT_FALSE(two.item.isStale(Tier::Device));
  EXPECT_TRUE(two.item.isStale(Tier::Host));
  ASSERT_EQ(two.warnings.size(), 1u);
  EXPECT_NE(two.warnings[0].find("\"h.0\" could not be copied to the host and stays on the device"), std::string::npos);
  two.residency.writeBack(two.item);
  EXPECT_EQ(two.pair.saved, (std::vector{2, 2}));
  EXPECT_EQ(two.last(0), 7);
  EXPECT_EQ(two.last(1), 8);
  EXPECT_EQ(two.item.device().state, CopyState::Present);
  EXPECT_FALSE(two.item.isStale(Tier::Host));
}

// A block that is needed while it is saved back stays, whatever becomes of that copy,
// and what changes meanwhile goes home next.
TEST(ItemSourceTest, WhatIsNeededWhileItLeavesIsRescued) {
  for (const char *options : {"latency=5ms", "latency=5ms,fail-d2h=1x2", "adversarial=3,latency=1ms"}) {
    SlotOfTwo two(options);
    ASSERT_FALSE(two.fetch());
    two.write(0, 7);
    two.residency.leave(two.item);
    ASSERT_TRUE(two.residency.stay(two.item));
    two.write(1, 8);
    ASSERT_TRUE(two.residency.awaitEnd(two.item));
    EXPECT_EQ(two.item.device().state, CopyState::Present);
    EXPECT_TRUE(two.item.isStale(Tier::Host));
    EXPECT_FALSE(two.residency.stay(two.item));
    two.residency.leave(two.item);
    auto end = two.residency.awaitEnd(two.item);
    ASSERT_TRUE(end && !end->failure);
    EXPECT_EQ(two.item.device().state, CopyState::Absent);
    EXPECT_EQ(two.last(0), 7);
    EXPECT_EQ(two.last(1), 8);
  }
}

TEST(ItemSourceTest, AHomeThatWasWrittenIsReadAnew) {
  SlotOfTwo two("threads=1");
  ASSERT_FALSE(two.fetch());
  two.write(0, 7);
  two.residency.homeWritten(two.item);
  EXPECT_EQ(two.item.device().state, CopyState::Absent);
  ASSERT_FALSE(two.fetch());
  two.residency.writeBack(two.item);
  EXPECT_EQ(two.pair.saved, (std::vector{0, 0}));
  EXPECT_EQ(two.last(0), count - 1);
}
