//===- CountNonFiniteTest.cpp - NaN and Inf of a tensor -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Tensor/CountNonFinite.h"
#include "../../lib/Tensor/ElementKernels.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

namespace {
struct Counts {
  int64_t nans = 0, infs = 0;
  bool operator==(const Counts &) const = default;
};
} // namespace

static float toFloat(ElementType element, uint32_t bits) {
  return element == ElementType::f32    ? std::bit_cast<float>(bits)
         : element == ElementType::bf16 ? bf16ToFloat(uint16_t(bits))
                                        : f16ToFloat(uint16_t(bits));
}

static void add(Counts &counts, float value) {
  counts.nans += std::isnan(value);
  counts.infs += std::isinf(value);
}

// Each table against the readable form: all 16-bit values, and 32-bit ones with
// every exponent, at every length around a vector and around a run.
TEST(CountNonFinite, TablesAgreeWithIsNan) {
  std::mt19937 random(1);
  for (InstructionSet most : {InstructionSet::x86_64, InstructionSet::x86_64_v3, InstructionSet::x86_64_v4}) {
    const ElementKernels &kernels = elementKernels(most);
    SCOPED_TRACE(kernels.name);
    for (ElementType element : {ElementType::bf16, ElementType::f16, ElementType::f32}) {
      std::vector<uint32_t> bits(1 << 16);
      for (uint32_t i = 0; i < bits.size(); ++i)
        bits[i] = element == ElementType::f32 ? i << 16 | (i % 3 ? random() & 0xffff : 0) : i;
      for (size_t length : {size_t(0), size_t(1), size_t(15), size_t(33), size_t(4095), size_t(4097), bits.size()}) {
        size_t first = bits.size() - length;
        Counts expected;
        std::vector<std::byte> bytes(length * byteSize(element));
        for (size_t i = 0; i < length; ++i) {
          std::memcpy(&bytes[i * byteSize(element)], &bits[first + i], byteSize(element));
          add(expected, toFloat(element, bits[first + i]));
        }
        int64_t counts[2] = {3, 4};
        kernels.countNonFinite[size_t(element)](int64_t(length), bytes.data(), counts);
        EXPECT_EQ((Counts{counts[0] - 3, counts[1] - 4}), expected) << length;
      }
    }
    EXPECT_EQ(kernels.countNonFinite[size_t(ElementType::i32)], nullptr);
  }
}

class CountNonFiniteTest : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(All, CountNonFiniteTest,
                         testing::Values("cpu:threads=1", "cpu:threads=4", "sim:dram=16MiB",
                                         "sim:dram=16MiB,adversarial=1",
                                         "sim:streams,dram=16MiB",
                                         "sim:streams,dram=16MiB,adversarial=1"));

// Tensors of every layout that a program may give, with garbage in their gaps.
TEST_P(CountNonFiniteTest, LooksAtElementsAlone) {
  DeviceRef device = Device::open(GetParam());
  const Layout layouts[] = {Layout{}, Layout{.strides = {80, 1}}, Layout{.strides = {1, 300}},
                            Layout{.strides = {1, 320}}, Layout{.tile = {8, 16}}};
  for (Shape shape : {Shape{300, 70}, Shape{1, 1}, Shape{0, 70}})
    for (Layout layout : layouts) {
      if (shape[0] != 300)
        layout = {};
      TensorDesc desc(shape, ElementType::f32, layout);
      SCOPED_TRACE(desc.str());
      Tensor host = Tensor::onHost(device, shape, ElementType::f32);
      Counts expected;
      std::mt19937 random(7);
      for (uint64_t i = 0; i < host.elementCount(); ++i) {
        uint32_t pick = random() % 50;
        host.data<float>()[i] = pick == 0 ? NAN : pick == 1 ? -INFINITY : pick == 2 ? INFINITY : float(i);
        add(expected, host.data<float>()[i]);
      }
      // A storage full of NaN, of which the copy leaves the gaps as they are.
      uint64_t bytes = desc.spanBytes();
      Tensor whole = Tensor::onHost(device, {int64_t(bytes / 4) + 1}, ElementType::f32);
      std::fill_n(whole.data<float>(), whole.elementCount(), NAN);
      Tensor placed = copyTo(device, whole, TensorDesc(whole.shape(), ElementType::f32));
      Tensor value = Tensor::in(placed.storage(), std::make_shared<const TensorDesc>(desc));
      copyInto(host, value);
      Fence done;
      auto count = countNonFinite(value, done);
      device->wait(done);
      EXPECT_EQ((Counts{count->nans, count->infs}), expected);
    }
}

TEST(CountNonFinite, TakesTimeWithoutBytes) {
  DeviceRef device = Device::open("sim:virtual,dram=64MiB");
  Tensor value = Tensor::empty(device, TensorDesc({1 << 20}, ElementType::f32));
  double before = device->seconds();
  Fence done;
  auto count = countNonFinite(value, done);
  device->wait(done);
  EXPECT_GT(device->seconds(), before);
  EXPECT_EQ(count->nans + count->infs, 0);
}
