//===- DiskBelowHostTest.cpp - device, memory of the host, disk -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tensors that leave a device with a link and a disk: to the host's memory while that has
// room, then through it to the disk, and back.
//
//===----------------------------------------------------------------------===//

#include "AboveDisk.h"
#include "Disk/SpillTestFile.h"
#include "ErrorOf.h"
#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <atomic>
#include <cerrno>
#include <deque>
#include <gtest/gtest.h>
#include <numeric>

using namespace segue;
using namespace segue::test;

namespace {
/// The operations of a disk that end with an error, from now on.
struct DiskFaults {
  std::atomic<int> reads{0}, writes{0};
  std::atomic<int> cause{EIO};
};

class FailingEngine : public SpillEngine {
public:
  FailingEngine(std::unique_ptr<SpillEngine> engine, std::atomic<int> &left, std::atomic<int> &cause)
      : engine_(std::move(engine)), left_(left), cause_(cause) {}

  std::string_view name() const override { return engine_->name(); }
  uint32_t depth() const override { return engine_->depth(); }
  void begin(const SpillOperation &operation) override {
    if (left_ <= 0)
      return engine_->begin(operation);
    --left_;
    failed_.push_back({operation.tag, -cause_.load()});
  }
  SpillEnd waitForOne() override {
    if (failed_.empty())
      return engine_->waitForOne();
    SpillEnd end = failed_.front();
    failed_.pop_front();
    return end;
  }

private:
  std::unique_ptr<SpillEngine> engine_;
  std::atomic<int> &left_, &cause_;
  std::deque<SpillEnd> failed_;
};

class DiskBelowHostTest : public testing::Test {
protected:
  static constexpr uint64_t hostBytes = 1 << 20;

  /// A device with a megabyte of host memory.
  void open(const std::string &way = "", uint64_t capacity = 32 << 20) {
    residency.reset();
    device.reset();
    device = openAboveDisk("dram=16MiB,host=" + std::to_string(hostBytes) + ",disk=" + folder.path.string() +
                               "?capacity=" + std::to_string(capacity),
                           way, &seam);
    residency = std::make_unique<Residency>(device);
    residency->checkCopies(true);
    residency->setWarn([this](const std::string &text) { warnings.push_back(text); });
  }

  /// An adversary lets copies of the test fail, too.
  void copyAnyhow(void *target, const void *source, uint64_t bytes) {
    for (bool again = true; std::exchange(again, false);)
      try {
        device->copy(target, source, bytes);
      } catch (const Error &) {
        again = true;
      }
  }
  /// An item of `count` floats: first, first + 1, ...
  Item &save(int64_t count, float first) {
    Tensor there = Tensor::empty(device, TensorDesc({count}, ElementType::f32));
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    device->wait(there.storage()->uses());
    copyAnyhow(there.bytes(), values.data(), uint64_t(count) * sizeof(float));
    return residency->hold(there, "t" + std::to_string(count), /*owner=*/0, ItemLifetime::Step);
  }
  /// Takes the item, and expects what save(count, first) gave it.
  void expect(Item &item, int64_t count, float first) {
    residency->need(item, /*isWritten=*/false, /*mustArrive=*/true);
    Tensor there = residency->take(item);
    std::vector<float> found(count);
    copyAnyhow(found.data(), there.bytes(), uint64_t(count) * sizeof(float));
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(found[i], first + float(i)) << i << " of " << count;
  }
  /// An item on the disk: the host has no room for its 3 MiB.
  Item &large() {
    Item &item = save(largeCount, 1);
    EXPECT_TRUE(residency->leave(item));
    EXPECT_EQ(item.host().tensor.desc().layout.space, Space::Disk);
    return item;
  }
  static constexpr int64_t largeCount = (3 << 18) + 5;

  DiskFolder folder;
  DiskFaults faults;
  SpillSeam seam{.replaceEngine = [this](std::unique_ptr<SpillEngine> engine, bool isForWrites) {
    return std::make_unique<FailingEngine>(std::move(engine), isForWrites ? faults.writes : faults.reads,
                                           faults.cause);
  }};
  DeviceRef device;
  std::unique_ptr<Residency> residency;
  std::vector<std::string> warnings;
};
} // namespace

// The host's memory is filled and never passed; what has no room there has the same bits on the disk,
// whatever order the queues run in and whichever copies fail.
TEST_F(DiskBelowHostTest, WhatLeavesGoesOnWhereTheHostIsFull) {
  for (const std::string &way : waysAboveDisk()) {
    SCOPED_TRACE(way);
    open(way);
    uint64_t passing = 2 * device->transfer().passingBytes();
    EXPECT_LE(passing, hostBytes / 8);
    constexpr int items = 60;
    std::vector<Item *> left;
    uint64_t onDisk = 0, onHost = 0;
    for (int i = 0; i < items; ++i) {
      left.push_back(&save(1000 + 331 * i, float(i)));
      ASSERT_TRUE(residency->leave(*left.back()));
      const TensorDesc &home = left.back()->host().tensor.desc();
      (home.layout.space == Space::Disk ? onDisk : onHost) += home.spanBytes();
      ASSERT_TRUE(home.layout.space == Space::Disk || home.layout.space == Space::HostPinned);
    }
    EXPECT_GT(onDisk, 1u << 20);
    EXPECT_GT(onHost, hostBytes / 2);
    EXPECT_EQ(device->transfer().counters().diskWriteBytes, onDisk);
    residency->settle();
    for (int i = 0; i < items; i += 2)
      expect(*left[i], 1000 + 331 * i, float(i));
    for (int i = items - 1; i > 0; i -= 2)
      expect(*left[i], 1000 + 331 * i, float(i));
    EXPECT_LE(device->memory().peakBytes(Space::HostPinned), hostBytes);
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), passing);
    EXPECT_EQ(device->memory().liveBytes(Space::Disk), 0u);
  }
}

// One that is larger than the host's memory passes it in pieces.
TEST_F(DiskBelowHostTest, PassesInPieces) {
  open();
  uint64_t before = device->memory().liveBytes(Space::HostPinned);
  Item &item = large();
  residency->settle();
  expect(item, largeCount, 1);
  EXPECT_EQ(device->memory().peakBytes(Space::HostPinned), std::max(before, 2 * device->transfer().passingBytes()));
}

TEST_F(DiskBelowHostTest, ADiskThatStumblesIsTriedAgain) {
  open();
  faults.writes = 1;
  Item &item = large();
  residency->settle();
  EXPECT_TRUE(warnings.empty());
  faults.reads = 1;
  expect(item, largeCount, 1);
  EXPECT_EQ(device->transfer().counters().retries, 2u);
}

// A disk that takes nothing: the tensor stays where it is, and leaves when the disk works again.
TEST_F(DiskBelowHostTest, WhatCannotLeaveStays) {
  for (int cause : {EIO, ENOSPC}) {
    open();
    faults.cause = cause;
    faults.writes = 1 << 20;
    warnings.clear();
    Item &item = large();
    residency->settle();
    EXPECT_EQ(item.device().state, CopyState::Present);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find(std::strerror(cause)), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find("on queue disk_write"), std::string::npos) << warnings[0];
    faults.writes = 0;
    residency->leaveKept();
    residency->settle();
    EXPECT_EQ(item.device().state, CopyState::Absent);
    expect(item, largeCount, 1);
  }
}

// A disk that gives nothing back: an error that names it, and the bytes are there when it works again.
TEST_F(DiskBelowHostTest, WhatCannotComeBackIsNotLost) {
  open();
  Item &item = large();
  residency->settle();
  faults.reads = 1 << 20;
  auto [code, what] = errorOf([&] { residency->need(item, /*isWritten=*/true, /*mustArrive=*/true); });
  EXPECT_EQ(code, ErrorCode::TransferFailed);
  EXPECT_NE(what.find("disk -> device_dram on queue disk_read"), std::string::npos) << what;
  faults.reads = 0;
  expect(item, largeCount, 1);
}

TEST_F(DiskBelowHostTest, OtherBytesOfTheDiskAreNotUsed) {
  open();
  Item &item = large();
  residency->settle();
  Tensor home = item.host().tensor;
  home.data<float>()[largeCount / 2] += 1;
  Tensor there = residency->need(item);
  device->wait(there.storage()->writes());
  const Error *failure = there.storage()->failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::ChecksumMismatch);
}

TEST_F(DiskBelowHostTest, AFullDiskIsNamed) {
  open("", /*capacity=*/2 << 20);
  Item &item = save(largeCount, 1);
  auto [code, what] = errorOf([&] { residency->leave(item); });
  EXPECT_EQ(code, ErrorCode::DeviceOom);
  EXPECT_NE(what.find("disk"), std::string::npos) << what;
  expect(item, largeCount, 1);
}

// Both edges are at work at once, and the busier one says how long it takes.
TEST(DiskBelowHost, TheBusiestEdgeDecides) {
  constexpr double linkRate = 4e9, diskRate = 1e9;
  DeviceRef device =
      Device::open("sim:virtual,dram=8GiB,pinned=1GiB,disk=8GiB,diskread=1GB/s,diskwrite=1GB/s,link=4GB/s");
  TensorDesc desc({16 << 18}, ElementType::f32); // 16 MiB
  double bytes = double(desc.spanBytes());
  auto emptyIn = [&](Space space) {
    TensorDesc home = desc;
    home.layout.space = space;
    return Tensor::empty(device, home);
  };
  std::vector<Tensor> homes, there;
  for (int i = 0; i < 32; ++i) {
    homes.push_back(emptyIn(i % 2 ? Space::HostPinned : Space::Disk));
    there.push_back(emptyIn(Space::DeviceDram));
  }
  auto timed = [&](auto copy) {
    device->drain();
    double begin = device->seconds();
    for (size_t i = 0; i < homes.size(); ++i)
      copy(homes[i], there[i]);
    device->drain();
    return device->seconds() - begin;
  };
  TransferEngine &engine = device->transfer();
  double busiest = std::max(16 * bytes / diskRate, 32 * bytes / linkRate);
  EXPECT_NEAR(timed([&](const Tensor &home, const Tensor &at) { engine.copyInto(home, at); }) / busiest, 1, 0.05);
  EXPECT_NEAR(timed([&](const Tensor &home, const Tensor &at) { engine.copyInto(at, home); }) / busiest, 1, 0.05);
  EXPECT_EQ(engine.counters().diskReadBytes, 16 * desc.spanBytes());
}
