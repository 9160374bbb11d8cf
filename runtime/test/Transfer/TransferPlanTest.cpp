//===- TransferPlanTest.cpp - worked tables of stitching -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/TransferPlan.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <gtest/gtest.h>

using namespace segue;
using Kind = TransferStep::Kind;

namespace {
class TransferPlanTest : public testing::Test {
protected:
  TransferPlan plan(const TensorDesc &given, const TensorDesc &wanted, const DeviceRef &device) {
    return planTransfer(given, wanted, *device, options);
  }
  TransferPlan plan(const TensorDesc &given, const TensorDesc &wanted) { return plan(given, wanted, sim); }

  static std::vector<Kind> kinds(const TransferPlan &plan) {
    std::vector<Kind> kinds;
    for (const TransferStep &step : plan.steps)
      kinds.push_back(step.kind);
    return kinds;
  }

  DeviceRef sim = Device::open("sim:dram=64MiB,l1=64KiB"), cpu = Device::open("cpu:threads=1");
  StitchOptions options;
};

Layout in(Space space) { return Layout{.space = space}; }
} // namespace

//===----------------------------------------------------------------------===//
// Equality
//===----------------------------------------------------------------------===//

// The table of docs/specs/runtime-stitching.md: what is elided and what is copied, on a discrete
// device and, where it differs, on one of unified memory.
TEST_F(TransferPlanTest, TheEqualityTable) {
  auto f32 = [](Shape shape, Layout layout) { return TensorDesc(std::move(shape), ElementType::f32, layout); };
  auto bf16 = [](Shape shape, Layout layout) { return TensorDesc(std::move(shape), ElementType::bf16, layout); };

  // The stride of an extent of 1 does not matter.
  EXPECT_TRUE(plan(f32({8, 1, 4}, {.strides = {4, 99, 1}}), f32({8, 1, 4}, {.strides = {4, 4, 1}})).elided);
  // A greater alignment satisfies a smaller one, not the reverse.
  EXPECT_TRUE(plan(bf16({64, 64}, {.alignment = 512}), bf16({64, 64}, {.alignment = 64})).elided);
  TransferPlan aligned = plan(bf16({64, 64}, {.alignment = 64}), bf16({64, 64}, {.alignment = 512}));
  EXPECT_FALSE(aligned.elided);
  EXPECT_EQ(kinds(aligned), std::vector{Kind::DeviceRelayout});
  EXPECT_EQ(aligned.d2dBytes, 8192u);
  // On the device, but in another tile: retiled there.
  TransferPlan retile = plan(bf16({64, 64}, {}), bf16({64, 64}, {.tile = {32, 32}}));
  EXPECT_FALSE(retile.elided);
  EXPECT_EQ(kinds(retile), std::vector{Kind::DeviceRelayout});
  EXPECT_EQ(retile.d2dBytes, 8192u);
  EXPECT_EQ(retile.h2dBytes + retile.d2hBytes + retile.hostBytes, 0u);
  // host to host_pinned is a memcpy; where memory is one, nothing.
  TransferPlan pin = plan(f32({4}, in(Space::Host)), f32({4}, in(Space::HostPinned)));
  EXPECT_FALSE(pin.elided);
  EXPECT_EQ(kinds(pin), std::vector{Kind::HostRelayout});
  EXPECT_EQ(pin.hostBytes, 16u);
  EXPECT_TRUE(plan(f32({4}, in(Space::Host)), f32({4}, in(Space::HostPinned)), cpu).elided);
  EXPECT_FALSE(plan(f32({4}, {.space = Space::Host, .alignment = 4}),
                    f32({4}, {.space = Space::HostPinned, .alignment = 512}), cpu)
                   .elided);
}

// The other rules of equality: dense strides may be written, tiles of ones are
// no tiles, nothing equals anything in its space.
TEST_F(TransferPlanTest, OtherEqualities) {
  auto f32 = [](Shape shape, Layout layout) { return TensorDesc(std::move(shape), ElementType::f32, layout); };
  EXPECT_TRUE(plan(f32({3, 5}, {.strides = {5, 1}}), f32({3, 5}, {})).elided);
  EXPECT_TRUE(plan(f32({3, 5}, {.tile = {1, 1}}), f32({3, 5}, {})).elided);
  EXPECT_TRUE(plan(f32({0, 5}, {.strides = {1, 7}}), f32({0, 5}, {})).elided);
  // Without elements, but elsewhere: new storage, and nothing to copy.
  TransferPlan none = plan(f32({0, 5}, in(Space::Host)), f32({0, 5}, {}));
  EXPECT_FALSE(none.elided);
  EXPECT_TRUE(none.steps.empty());
  // Both on the device is not equality.
  EXPECT_FALSE(plan(f32({8, 8}, {}), f32({8, 8}, {.storage = StorageType::Int8Row})).elided);
  EXPECT_FALSE(plan(f32({8, 8}, {}), f32({8, 8}, in(Space::DeviceL1))).elided);
  EXPECT_FALSE(plan(f32({8, 8}, {}), f32({8, 8}, in(Space::Host))).elided);
}

//===----------------------------------------------------------------------===//
// R3: bytes over the link
//===----------------------------------------------------------------------===//

TEST_F(TransferPlanTest, NarrowerIsCastOnTheHost) {
  TransferPlan down =
      plan(TensorDesc({1024, 1024}, ElementType::f32, in(Space::Host)), TensorDesc({1024, 1024}, ElementType::bf16));
  EXPECT_EQ(down.h2dBytes, 2'097'152u);
  EXPECT_EQ(kinds(down), (std::vector{Kind::HostRelayout, Kind::Link}));
}

TEST_F(TransferPlanTest, WiderIsCastOnTheDevice) {
  TransferPlan up =
      plan(TensorDesc({1024, 1024}, ElementType::f32), TensorDesc({1024, 1024}, ElementType::bf16, in(Space::Host)));
  EXPECT_EQ(up.d2hBytes, 2'097'152u);
  EXPECT_EQ(kinds(up), (std::vector{Kind::DeviceRelayout, Kind::Link}));
  TransferPlan down = plan(TensorDesc({1024, 1024}, ElementType::bf16, in(Space::HostPinned)),
                           TensorDesc({1024, 1024}, ElementType::f32));
  EXPECT_EQ(down.h2dBytes, 2'097'152u);
  EXPECT_EQ(kinds(down), (std::vector{Kind::Link, Kind::DeviceRelayout}));
}

// 8 bits and scales cross; zero points only while they may matter.
TEST_F(TransferPlanTest, RowStorageCrossesAsItIs) {
  Layout rows{.space = Space::HostPinned, .storage = StorageType::Int8Row};
  TensorDesc wanted({3072, 3072}, ElementType::bf16);
  TransferPlan plain = plan(TensorDesc({3072, 3072}, ElementType::bf16, rows), wanted);
  EXPECT_EQ(plain.h2dBytes, 9'449'472u);
  EXPECT_EQ(kinds(plain), (std::vector{Kind::Link, Kind::DeviceRelayout}));
  rows.zeroPoints = true;
  TransferPlan asymmetric = plan(TensorDesc({3072, 3072}, ElementType::bf16, rows), wanted);
  EXPECT_EQ(asymmetric.h2dBytes, 9'449'472u + 12'288u);
  ASSERT_TRUE(asymmetric.withoutZeroPoints);
  EXPECT_EQ(asymmetric.withoutZeroPoints->h2dBytes, 9'449'472u);
}

// At equal width the device converts, in both directions.
TEST_F(TransferPlanTest, EqualWidthIsConvertedOnTheDevice) {
  TensorDesc rowMajor({64, 32}, ElementType::f32), columnMajor({64, 32}, ElementType::f32, {.strides = {1, 64}});
  TensorDesc hostRows({64, 32}, ElementType::f32, in(Space::HostPinned));
  EXPECT_EQ(kinds(plan(hostRows, columnMajor)), (std::vector{Kind::Link, Kind::DeviceRelayout}));
  EXPECT_EQ(kinds(plan(columnMajor, hostRows)), (std::vector{Kind::DeviceRelayout, Kind::Link}));
}

// Gaps do not cross: what is padded is packed first, and unpacked after.
TEST_F(TransferPlanTest, GapsStayBehind) {
  TensorDesc padded({64, 32}, ElementType::f32, {.space = Space::HostPinned, .strides = {100, 1}});
  TransferPlan pack = plan(padded, TensorDesc({64, 32}, ElementType::f32));
  EXPECT_EQ(pack.h2dBytes, 64u * 32 * 4);
  EXPECT_EQ(kinds(pack), (std::vector{Kind::HostRelayout, Kind::Link}));
  TransferPlan unpack = plan(TensorDesc({64, 32}, ElementType::f32), padded);
  EXPECT_EQ(unpack.d2hBytes, 64u * 32 * 4);
  EXPECT_EQ(kinds(unpack), (std::vector{Kind::Link, Kind::HostRelayout}));
  // A broadcast view is smaller than what it stands for.
  TensorDesc broadcast({64, 32}, ElementType::f32, {.space = Space::HostPinned, .strides = {0, 1}});
  TransferPlan spread = plan(broadcast, TensorDesc({64, 32}, ElementType::f32));
  EXPECT_EQ(spread.h2dBytes, 32u * 4);
  EXPECT_EQ(kinds(spread), (std::vector{Kind::Link, Kind::DeviceRelayout}));
}

//===----------------------------------------------------------------------===//
// R4: hops
//===----------------------------------------------------------------------===//

TEST_F(TransferPlanTest, L1IsReachedThroughDram) {
  TensorDesc l1({8, 8}, ElementType::f32, in(Space::DeviceL1)), host({8, 8}, ElementType::f32, in(Space::HostPinned));
  TransferPlan down = plan(host, l1);
  EXPECT_EQ(kinds(down), (std::vector{Kind::Link, Kind::DeviceRelayout}));
  EXPECT_EQ(down.steps[0].hop(), "host_pinned -> device_dram");
  EXPECT_EQ(down.steps[1].hop(), "device_dram -> device_l1");
  EXPECT_EQ(down.bounces, 1u);
  TransferPlan up = plan(l1, host);
  EXPECT_EQ(kinds(up), (std::vector{Kind::DeviceRelayout, Kind::Link}));
  EXPECT_EQ(up.steps[0].hop(), "device_l1 -> device_dram");
  EXPECT_EQ(up.bounces, 1u);
  EXPECT_EQ(kinds(plan(l1, TensorDesc({8, 8}, ElementType::f32))), std::vector{Kind::DeviceRelayout});
}

TEST_F(TransferPlanTest, PageableMemoryIsStaged) {
  TensorDesc host({8, 8}, ElementType::f32, in(Space::Host)), dram({8, 8}, ElementType::f32);
  for (const TransferPlan &each : {plan(host, dram), plan(dram, host)}) {
    ASSERT_EQ(kinds(each), std::vector{Kind::Link});
    EXPECT_TRUE(each.steps[0].staged);
    EXPECT_EQ(each.hostBytes, 256u);
    EXPECT_EQ(each.bounces, 1u);
  }
  TensorDesc pinned({8, 8}, ElementType::f32, in(Space::HostPinned));
  EXPECT_FALSE(plan(pinned, dram).steps[0].staged);
}

TEST_F(TransferPlanTest, WhatCannotBe) {
  auto refused = [&](const TensorDesc &given, const TensorDesc &wanted, ErrorCode code, const char *part) {
    try {
      plan(given, wanted, cpu);
      ADD_FAILURE() << "was planned";
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  TensorDesc given({4, 4}, ElementType::f32);
  refused(given, TensorDesc({4, 5}, ElementType::f32), ErrorCode::LayoutMismatch, "never changes the shape");
  refused(given, TensorDesc({4, 4}, ElementType::f32, in(Space::DeviceL1)), ErrorCode::Unsupported,
          "has no space device_l1");
  refused(given, TensorDesc({4, 4}, ElementType::f32, {.strides = {1, 1}}), ErrorCode::InvalidArgument,
          "two elements in one place");
}

//===----------------------------------------------------------------------===//
// R5: cost
//===----------------------------------------------------------------------===//

// The virtual clock charges what the host copies, too.
TEST(TransferTimeTest, TheWorkedTimes) {
  auto seconds = [](const std::string &options, Space from, Space to, StitchOptions stitch = {}) {
    DeviceRef device = Device::open("sim:virtual,link=16GB/s,latency=10us," + options);
    device->transfer().configure(stitch);
    TensorDesc given({32, 1024, 1024}, ElementType::bf16, in(from)); // 64 MiB
    TensorDesc wanted({32, 1024, 1024}, ElementType::bf16, in(to));
    Tensor source = Tensor::empty(device, given);
    double before = device->seconds();
    Tensor target = toLayout(device, source, wanted);
    device->drain();
    return device->seconds() - before;
  };
  const std::string memcpy8 = "hostmem=8GB/s", memcpy64 = "hostmem=64GB/s";
  const double bytes = 64 << 20, chunk = 4 << 20;
  // 0.010 + 67,108,864 / 16e9 * 1000 ms
  EXPECT_NEAR(seconds(memcpy8, Space::HostPinned, Space::DeviceDram) * 1e3, 4.204, 0.0005);
  // 16 chunks of 4 MiB through two buffers: bound by memcpy.
  EXPECT_NEAR(seconds(memcpy8, Space::Host, Space::DeviceDram) * 1e3, 8.661, 0.0005);
  EXPECT_NEAR(seconds(memcpy8, Space::DeviceDram, Space::Host) * 1e3, 8.661, 0.0005);
  // Bound by the link where the host is fast: the first memcpy, then 16 hops.
  EXPECT_NEAR(seconds(memcpy64, Space::Host, Space::DeviceDram), chunk / 64e9 + 16 * (10e-6 + chunk / 16e9), 1e-9);
  // The last of the chunks may be shorter: 24, 24 and 16 MiB.
  StitchOptions large;
  large.stagingChunkBytes = 24 << 20;
  EXPECT_NEAR(seconds(memcpy8, Space::Host, Space::DeviceDram, large), bytes / 8e9 + 10e-6 + double(16 << 20) / 16e9, 1e-9);
  // Where there is little page-locked memory, chunks are smaller: 128 of 512 KiB.
  double half = 512 << 10;
  EXPECT_NEAR(seconds(memcpy8 + ",pinned=1MiB", Space::Host, Space::DeviceDram), bytes / 8e9 + 10e-6 + half / 16e9, 1e-9);
  // Where there is none to stage in, the host and the link take turns.
  EXPECT_NEAR(seconds(memcpy8 + ",pinned=64KiB", Space::Host, Space::DeviceDram), bytes / 8e9 + 10e-6 + bytes / 16e9, 1e-9);
  // Within the host's memory.
  EXPECT_NEAR(seconds(memcpy8, Space::Host, Space::HostPinned), bytes / 8e9, 1e-9);
}

//===----------------------------------------------------------------------===//
// R1, R2: what a program may be given
//===----------------------------------------------------------------------===//

TEST_F(TransferPlanTest, Lossless) {
  auto desc = [](ElementType element, StorageType storage = StorageType::Element, bool zeroPoints = false) {
    return TensorDesc({4, 4}, element, Layout{.storage = storage, .zeroPoints = zeroPoints});
  };
  using enum ElementType;
  EXPECT_TRUE(isLossless(desc(bf16), desc(f32)));
  EXPECT_FALSE(isLossless(desc(f32), desc(bf16)));
  EXPECT_FALSE(isLossless(desc(bf16), desc(f16)));
  EXPECT_TRUE(isLossless(desc(i32), desc(i64)));
  EXPECT_FALSE(isLossless(desc(i32), desc(f32)));
  // int8_row to bf16 is lossless with respect to the stored value.
  EXPECT_TRUE(isLossless(desc(bf16, StorageType::Int8Row), desc(bf16)));
  EXPECT_FALSE(isLossless(desc(f32), desc(f32, StorageType::Int8Row)));
  EXPECT_FALSE(isLossless(desc(f32, StorageType::Int8Row), desc(f32, StorageType::Fp8E4M3Row)));
  EXPECT_TRUE(isLossless(desc(f32, StorageType::Int8Row), desc(f32, StorageType::Int8Row)));
  EXPECT_FALSE(isLossless(desc(f32, StorageType::Int8Row, true), desc(f32, StorageType::Int8Row)));
}

// The first of shape, element type, device and losslessness is named.
TEST_F(TransferPlanTest, ChecksInOrder) {
  Tensor given = Tensor::empty(cpu, TensorDesc({4, 4}, ElementType::f32));
  auto message = [&](const TensorDesc &wanted, const Device &device, LossyCasts policy = LossyCasts::Error) {
    try {
      checkConversion("program \"f\", input 1 (\"x\")", given, wanted, device, policy);
      return std::string();
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::LayoutMismatch);
      return std::string(error.what());
    }
  };
  TensorDesc lossy({4, 4}, ElementType::f32, {.storage = StorageType::Int8Row});
  TensorDesc otherType({4, 4}, ElementType::bf16, {.storage = StorageType::Int8Row});
  TensorDesc otherShape({4, 5}, ElementType::bf16, {.storage = StorageType::Int8Row});
  EXPECT_EQ(message(otherShape, *sim), "LAYOUT_MISMATCH: program \"f\", input 1 (\"x\"): f32[4,4] given, bf16[4,5] "
                                       "stored as int8_row declared; compile for this shape");
  EXPECT_NE(message(otherType, *sim).find("element types never change by themselves"), std::string::npos);
  EXPECT_NE(message(lossy, *sim).find("it is on device \"cpu:threads=1\""), std::string::npos);
  EXPECT_NE(message(lossy, *cpu).find("memory.stitch.lossy_casts"), std::string::npos);
  EXPECT_EQ(message(lossy, *cpu, LossyCasts::Allow), "");
  EXPECT_TRUE(checkConversion("", given, lossy, *cpu, LossyCasts::Warn));
  EXPECT_FALSE(checkConversion("", given, TensorDesc({4, 4}, ElementType::f32), *cpu, LossyCasts::Error));
}
