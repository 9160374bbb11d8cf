//===- CudaTransferTest.cpp - tensors to a GPU and back -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// toLayout and what is below it (staging, chunks, fences of storages) on the driver of
// GPUs, without conversions in their memory. Linked into the tests on the fake driver and
// into those on a GPU.
//
//===----------------------------------------------------------------------===//

#include "CudaSpecs.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>
#include <random>

using namespace segue;

namespace {
class CudaTransferTest : public testing::TestWithParam<std::string> {
protected:
  static TensorDesc desc(int64_t count, Space space) {
    return TensorDesc({count}, ElementType::f32, Layout{.space = space});
  }
  Tensor numbers(int64_t count, float first, Space space) {
    Tensor tensor = Tensor::empty(device, desc(count, space));
    device->wait(tensor.storage()->uses());
    for (int64_t i = 0; i < count; ++i)
      tensor.data<float>()[i] = first + float(i % 1000);
    return tensor;
  }
  static void expectNumbers(const Tensor &tensor, float first) {
    Tensor host = toHost(tensor);
    for (int64_t i = 0; i < int64_t(host.elementCount()); ++i)
      ASSERT_EQ(host.data<float>()[i], first + float(i % 1000)) << i;
  }
  DeviceRef device = Device::open(GetParam());
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaTransferTest, testing::ValuesIn(segue::test::cudaSpecs()));

TEST_P(CudaTransferTest, ThereAndBack) {
  for (int64_t count : {0, 1, 1000, 3 << 19}) // the last is 6 MiB, in several chunks
    for (Space from : {Space::Host, Space::HostPinned})
      for (Space to : {Space::Host, Space::HostPinned}) {
        SCOPED_TRACE(count);
        Tensor there = toLayout(device, numbers(count, 7, from), desc(count, Space::DeviceDram));
        EXPECT_EQ(there.desc().layout.space, Space::DeviceDram);
        Tensor copied = copyTo(device, there, desc(count, Space::DeviceDram));
        Tensor back = toLayout(device, copied, desc(count, to));
        expectNumbers(back, 7);
        if (HasFatalFailure())
          return;
      }
}

// More tensors than fit come and go, in no order that the queues know of.
TEST_P(CudaTransferTest, TensorsComeAndGo) {
  std::mt19937 random(5);
  struct Held {
    Tensor tensor;
    float first;
  };
  std::vector<Held> there;
  for (int i = 0; i < 200; ++i) {
    if (there.size() > 6 || (!there.empty() && random() % 3 == 0)) {
      size_t which = random() % there.size();
      if (random() % 2) {
        expectNumbers(there[which].tensor, there[which].first);
        if (HasFatalFailure())
          return;
      }
      there.erase(there.begin() + ptrdiff_t(which));
    }
    auto count = int64_t(1 + random() % 400000); // up to 1.6 MB
    auto first = float(random() % 100);
    Space from = random() % 2 ? Space::Host : Space::HostPinned;
    there.push_back({toLayout(device, numbers(count, first, from), desc(count, Space::DeviceDram)), first});
  }
  for (const Held &held : there)
    expectNumbers(held.tensor, held.first);
}
