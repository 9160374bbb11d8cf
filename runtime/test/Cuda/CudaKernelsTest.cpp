//===- CudaKernelsTest.cpp - the runtime's own kernels of a GPU -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the engine and the relayouts of a GPU do beside LayoutPairsTest, held to the same
// bits as the loops of the CPU.
//
//===----------------------------------------------------------------------===//

#include "../Transfer/LayoutCases.h"
#include "CudaSpecs.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Engine/NonFinite.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace segue;
using namespace segue::test;

namespace {
class CudaKernelsTest : public testing::TestWithParam<std::string> {
protected:
  /// A tensor of bytes in the device's memory.
  Tensor onDevice(const void *data, uint64_t bytes) {
    Tensor there = Tensor::empty(device, TensorDesc({int64_t(bytes)}, ElementType::i8, Layout{.space = Space::DeviceDram}));
    device->copy(there.bytes(), data, bytes);
    return there;
  }
  template <typename T> Tensor onDevice(const std::vector<T> &data) { return onDevice(data.data(), data.size() * sizeof(T)); }
  template <typename T> std::vector<T> read(const Tensor &tensor) {
    std::vector<T> data(tensor.desc().spanBytes() / sizeof(T));
    device->copy(data.data(), tensor.bytes(), data.size() * sizeof(T));
    return data;
  }
  /// Numbers of all sizes, denormals and some that are no numbers among them.
  static std::vector<float> numbers(size_t count, uint32_t seed, bool nonFinite = false) {
    std::mt19937 random(seed);
    std::vector<float> data(count);
    for (float &value : data) {
      uint32_t bits = uint32_t(random());
      switch (random() % 8) {
      case 0:
        bits &= 0x807fffffu; // a denormal, or 0
        break;
      case 1:
        if (nonFinite)
          bits |= 0x7f800000u;
        [[fallthrough]];
      default:
        if ((bits & 0x7f800000u) == 0x7f800000u && !nonFinite)
          bits &= ~0x40000000u;
      }
      value = std::bit_cast<float>(bits);
    }
    return data;
  }
  template <typename T> static void expectBits(const std::vector<T> &found, const std::vector<T> &expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(found[i]) && std::isnan(expected[i]))
          continue;
      ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(T)), 0) << i << ": " << found[i] << ", " << expected[i];
    }
  }
  /// Runs `work` in a body, and throws its error.
  void runInBody(std::function<void()> work) {
    std::optional<Error> error;
    auto ended = [&](const Error *end) {
      if (end)
        error = *end;
    };
    Work entry{std::move(work), {}, "test"};
    entry.ended = ended;
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(entry))));
    if (error)
      throw *error;
  }

  DeviceRef device = Device::open(GetParam());
  DeviceRef cpu = Device::open("cpu:threads=2");
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaKernelsTest, testing::Values(cudaSpecs().front()));

TEST_P(CudaKernelsTest, SumsAndFactorsHaveTheBitsOfTheCpu) {
  for (size_t count : {size_t(1), size_t(255), size_t(70001)}) {
    std::vector<float> sum = numbers(count, 1, true), addend = numbers(count, 2, true);
    Tensor sumThere = onDevice(sum), addendThere = onDevice(addend);
    runInBody([&] {
      device->engine().add(sumThere.data<float>(), addendThere.data<float>(), int64_t(count));
      device->engine().scale(sumThere.data<float>(), int64_t(count), 0.3f);
    });
    cpu->engine().add(sum.data(), addend.data(), int64_t(count));
    cpu->engine().scale(sum.data(), int64_t(count), 0.3f);
    expectBits(read<float>(sumThere), sum);
  }
}

TEST_P(CudaKernelsTest, CountsWhatIsNotFinite) {
  std::vector<float> data = numbers(40000, 3, true);
  Tensor there = onDevice(data);
  NonFiniteRows dense{.units = 40, .perUnit = 1000, .elements = 39990};
  NonFiniteRows strided{.units = 12, .perUnit = 5, .elements = 60, .extents = {1, 3, 1, 4}, .strides = {7, 2000, 9, 11},
                        .innerStride = 300};
  for (ElementType element : {ElementType::f32, ElementType::bf16, ElementType::f16, ElementType::i32})
    for (NonFiniteRows rows : {dense, strided}) {
      rows.element = element;
      NonFiniteCount found, expected;
      device->engine().countNonFinite(rows, there.bytes(), found);
      runInBody([&] { device->engine().countNonFinite(rows, there.bytes(), found); });
      if (isFloat(element))
        cpu->engine().countNonFinite(rows, data.data(), expected);
      EXPECT_EQ(found.nans.load(), 2 * expected.nans.load()) << name(element);
      EXPECT_EQ(found.infs.load(), 2 * expected.infs.load()) << name(element);
    }
}

TEST_P(CudaKernelsTest, RestoresRowsOfLowBitsToTheBit) {
  constexpr int64_t rows = 9, columns = 768, rank = 3;
  std::vector<float> weight(rows * columns), a(rows * rank), b(rank * columns);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (std::vector<float> *each : {&weight, &a, &b})
    for (float &value : *each)
      value = normal(random);
  for (bool rotated : {false, true})
    for (int64_t used : {int64_t(0), rank}) {
      Tensor there = onDevice(weight), aThere = onDevice(a), bThere = onDevice(b);
      device->engine().restore(
          {there.data<float>(), rows, columns, rotated, used, aThere.data<float>(), bThere.data<float>()});
      std::vector<float> expected = weight;
      cpu->engine().restore({expected.data(), rows, columns, rotated, used, a.data(), b.data()});
      expectBits(read<float>(there), expected);
    }
}

// Elements that begin at no multiple of their size.
TEST_P(CudaKernelsTest, MovesTensorsThatAreNotAligned) {
  TensorDesc source({5, 7}, ElementType::f32, Layout{.space = Space::DeviceDram, .alignment = 1});
  for (ElementType element : {ElementType::f64, ElementType::bf16, ElementType::f32}) {
    TensorDesc target({5, 7}, element, Layout{.space = Space::DeviceDram, .strides = {1, 5}, .alignment = 1});
    std::vector<std::byte> contents = makeContents(source, 5), expected(target.spanBytes() + 3);
    CopyPlan plan(source, target);
    plan.run(contents.data(), expected.data() + 3, 1);
    std::vector<std::byte> shifted(1);
    shifted.insert(shifted.end(), contents.begin(), contents.end());
    Tensor from = onDevice(shifted), to = onDevice(std::vector<std::byte>(target.spanBytes() + 3));
    device->relayout(plan, from.bytes() + 1, to.bytes() + 3);
    EXPECT_EQ(read<std::byte>(to), expected) << name(element);
  }
}

// The row is that which a CPU names, in a body and outside of one, and the device goes on.
TEST_P(CudaKernelsTest, NamesTheFirstRowThatIsNotFinite) {
  TensorDesc source({300, 40}, ElementType::f32, Layout{.space = Space::DeviceDram});
  for (StorageType storage : {StorageType::Int8Row, StorageType::Fp8E5M2Row, StorageType::Int4Group32}) {
    TensorDesc target({300, 40}, ElementType::f32, Layout{.space = Space::DeviceDram, .storage = storage});
    std::vector<float> data(300 * 40, 1.5f);
    data[40 * 77 + 3] = std::numeric_limits<float>::quiet_NaN();
    data[40 * 290] = std::numeric_limits<float>::infinity();
    CopyPlan plan(source, target);
    std::vector<std::byte> expected(target.spanBytes());
    ASSERT_EQ(plan.run(data.data(), expected.data(), 1), 77);
    Tensor from = onDevice(data), to = onDevice(std::vector<std::byte>(target.spanBytes()));
    for (bool inBody : {false, true})
      try {
        auto run = [&] { device->relayout(plan, from.bytes(), to.bytes()); };
        inBody ? runInBody(run) : run();
        ADD_FAILURE() << "no error";
      } catch (const Error &error) {
        EXPECT_EQ(error.code(), ErrorCode::NonFinite);
        EXPECT_NE(std::string(error.what()).find("row 77 "), std::string::npos) << error.what();
      }
    EXPECT_EQ(read<std::byte>(to), expected);
  }
}
