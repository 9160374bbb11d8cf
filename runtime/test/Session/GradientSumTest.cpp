//===- GradientSumTest.cpp - sums of gradients ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Session/GradientSum.h"
#include "ErrorOf.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>

using namespace segue;

static constexpr int64_t count = 1000;

static Tensor filled(const DeviceRef &device, float value, Space space) {
  Tensor host = Tensor::onHost(device, {count}, ElementType::f32);
  std::fill_n(host.data<float>(), count, value);
  return copyTo(device, host, TensorDesc({count}, ElementType::f32, {.space = space}));
}

static float firstOf(const Tensor &tensor) { return toHost(tensor).data<float>()[0]; }

class GradientSumTest : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(All, GradientSumTest,
                         testing::Values("cpu", "sim:dram=1MiB,pinned=1MiB", "sim:dram=1MiB,pinned=1MiB,adversarial=1",
                                         "sim:dram=1MiB,pinned=1MiB,adversarial=2",
                                         "sim:streams,dram=1MiB,pinned=1MiB",
                                         "sim:streams,dram=1MiB,pinned=1MiB,adversarial=2"));

// Where the first gradient of a step lies is where the program declares it; what is
// added later, wherever it was made, is added there.
TEST_P(GradientSumTest, StaysWhereTheFirstOneIs) {
  DeviceRef device = Device::open(GetParam());
  for (Space there : {Space::DeviceDram, Space::HostPinned, Space::Host})
    for (Space made : {Space::DeviceDram, Space::HostPinned}) {
      SCOPED_TRACE(std::string(name(there)) + " += " + std::string(name(made)));
      Tensor sum;
      addGradient(sum, filled(device, 1, there));
      addGradient(sum, filled(device, 2, made));
      Tensor seen = sum; // whoever holds it keeps what he saw
      addGradient(sum, filled(device, 4, made));
      if (!device->hasUnifiedMemory()) { // else it is all one memory
        EXPECT_EQ(sum.desc().layout.space, there);
      }
      EXPECT_EQ(firstOf(sum), 7);
      EXPECT_EQ(firstOf(seen), 3);
    }
}

TEST_P(GradientSumTest, AGradientThatFailedIsNoSummand) {
  DeviceRef device = Device::open(GetParam());
  if (device->hasUnifiedMemory())
    GTEST_SKIP() << "nothing is copied there";
  for (Space there : {Space::DeviceDram, Space::HostPinned}) {
    Tensor sum, lost = filled(device, 2, Space::DeviceDram);
    addGradient(sum, filled(device, 1, there));
    lost.storage()->outcome()->fail(Error(ErrorCode::TransferFailed, "the cable is cut"));
    auto [code, what] = errorOf([&] {
      addGradient(sum, lost);
      toHost(sum);
    });
    EXPECT_EQ(code, ErrorCode::TransferFailed);
    EXPECT_NE(what.find("the cable is cut"), std::string::npos) << what;
  }
}
