//===- DeviceTest.cpp - what every device must do -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace segue;

/// Every spec of a device that this build can open; each test runs on each.
class DeviceTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, DeviceTest, testing::Values("cpu", "cpu:threads=1", "cpu:threads=3"));

TEST_P(DeviceTest, NameOpensItAgain) { EXPECT_EQ(Device::open(device->name())->threads(), device->threads()); }

TEST_P(DeviceTest, MemoryIsAlignedAndComesBack) {
  for (const SpaceInfo &space : device->spaces())
    for (uint64_t bytes : {0, 1, 63, 64, 4097, 3 << 20})
      for (uint32_t alignment : {1, 64, 512, 4096}) {
        MemoryBlock block = device->memory().allocate(space.space, bytes, alignment);
        ASSERT_NE(block.data, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % alignment, 0u);
        if (device->hasBytes())
          std::memset(block.data, 0xab, bytes);
        device->memory().free(space.space, block.data, bytes, alignment, block.account, {});
        EXPECT_EQ(device->memory().liveBytes(space.space), 0u);
      }
}

TEST_P(DeviceTest, ImpossibleAllocationIsAnError) {
  try {
    Tensor::empty(device, TensorDesc({int64_t(1) << 59}, ElementType::f32));
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::DeviceOom);
  }
}

static int64_t mark(void *const *args, int64_t begin, int64_t end) {
  auto *counts = static_cast<int32_t *>(args[0]);
  auto grain = *static_cast<int64_t *>(args[1]);
  if (begin % grain != 0)
    return 99;
  for (int64_t i = begin; i < end; ++i)
    ++counts[i];
  return 0;
}

// Each unit is done once, in pieces that are multiples of the grain.
TEST_P(DeviceTest, LaunchCoversTheRangeOnce) {
  for (int64_t range : {0, 1, 7, 64, 1000})
    for (int64_t grain : {1, 3, 64, 5000})
      for (int threads : {1, 2, 8}) {
        std::vector<int32_t> counts(size_t(range) + 1);
        void *args[] = {counts.data(), &grain};
        ASSERT_EQ(device->launch(mark, args, range, grain, threads), 0);
        EXPECT_EQ(std::count(counts.begin(), counts.end() - 1, 1), range);
        EXPECT_EQ(counts.back(), 0);
      }
}

static int64_t failBehind(void *const *args, int64_t begin, int64_t end) {
  auto limit = *static_cast<int64_t *>(args[0]);
  return end > limit ? 1 + begin / 10 : 0;
}

// Of several failing pieces, the first by position is reported.
TEST_P(DeviceTest, LaunchReportsTheFirstFailure) {
  int64_t limit = 0;
  void *args[] = {&limit};
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(device->launch(failBehind, args, 1000, 10, 4), 1);
  limit = 1000;
  EXPECT_EQ(device->launch(failBehind, args, 1000, 10, 4), 0);
}

TEST(Device, BadSpecsAreNamed) {
  auto message = [](const char *spec) -> std::string {
    try {
      Device::open(spec);
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("abacus").find("no driver \"abacus\"; known are \"cpu\""), std::string::npos);
  EXPECT_NE(message("cpu:speed=9").find("no option \"speed\""), std::string::npos);
  EXPECT_NE(message("cpu:threads=0").find("between 1 and 1024"), std::string::npos);
  EXPECT_NE(message("cpu:threads=2x").find("between 1 and 1024"), std::string::npos);
  EXPECT_NE(message("cpu:threads").find("key=value"), std::string::npos);
}

TEST(Device, CpuHasNoL1) {
  DeviceRef device = Device::open("cpu");
  try {
    Tensor::empty(device, TensorDesc({4}, ElementType::f32, Layout{.space = Space::DeviceL1}));
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_NE(std::string(error.what()).find("device_l1"), std::string::npos);
  }
}

// Wrapped memory is not copied, and its owner is told once, at the end.
TEST(Device, WrapKeepsTheOwnerAlive) {
  DeviceRef device = Device::open("cpu");
  alignas(64) float data[8] = {1, 2, 3};
  int released = 0;
  {
    Tensor tensor = Tensor::wrap(device, TensorDesc({2, 2}, ElementType::f32), data + 2, [&] { ++released; });
    Tensor second = tensor;
    EXPECT_EQ(tensor.bytes(), reinterpret_cast<std::byte *>(data + 2));
    EXPECT_EQ(tensor.desc().layout.alignment, 8u);
    EXPECT_FALSE(tensor.isSoleOwner());
    tensor = Tensor();
    EXPECT_FALSE(second.isSoleOwner()) << "external memory is never a donation";
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}
