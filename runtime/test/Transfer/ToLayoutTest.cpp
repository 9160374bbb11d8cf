//===- ToLayoutTest.cpp - casts and strides against the obvious loop ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace segue;

static double readElement(const Tensor &tensor, int64_t element) {
  const std::byte *at = tensor.bytes() + element * int64_t(byteSize(tensor.element()));
  auto load = [&]<typename T>(T) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (tensor.element()) {
  case ElementType::f32:
    return load(float());
  case ElementType::f64:
    return load(double());
  case ElementType::bf16:
    return bf16ToFloat(load(uint16_t()));
  case ElementType::f16:
    return f16ToFloat(load(uint16_t()));
  case ElementType::i64:
    return double(load(int64_t()));
  case ElementType::i32:
    return load(int32_t());
  case ElementType::i8:
    return load(int8_t());
  case ElementType::i1:
    return load(uint8_t()) != 0;
  }
  return 0;
}

static void writeElement(const Tensor &tensor, int64_t element, double value) {
  std::byte *at = tensor.bytes() + element * int64_t(byteSize(tensor.element()));
  auto store = [&]<typename T>(T stored) { std::memcpy(at, &stored, sizeof(T)); };
  switch (tensor.element()) {
  case ElementType::f32:
    return store(float(value));
  case ElementType::f64:
    return store(value);
  case ElementType::bf16:
    return store(floatToBf16(float(value)));
  case ElementType::f16:
    return store(floatToF16(float(value)));
  case ElementType::i64:
    return store(int64_t(value));
  case ElementType::i32:
    return store(int32_t(value));
  case ElementType::i8:
    return store(int8_t(value));
  case ElementType::i1:
    return store(uint8_t(value != 0));
  }
}

/// Visits every index of `shape`.
template <typename Fn> static void forEachIndex(const Shape &shape, Fn fn) {
  uint64_t count = *checkedElementCount(shape);
  std::vector<int64_t> index(shape.size());
  for (uint64_t i = 0; i < count; ++i) {
    fn(index);
    for (size_t dim = shape.size(); dim-- > 0 && ++index[dim] == shape[dim];)
      index[dim] = 0;
  }
}

static int64_t offsetOf(const std::vector<int64_t> &index, const std::vector<int64_t> &strides) {
  int64_t offset = 0;
  for (size_t dim = 0; dim < index.size(); ++dim)
    offset += index[dim] * strides[dim];
  return offset;
}

/// Strides of `shape` laid out in the order of `permutation`, each step padded.
static std::vector<int64_t> permuted(const Shape &shape, const std::vector<size_t> &permutation, int64_t padding) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t dim : permutation) {
    strides[dim] = stride;
    stride = stride * shape[dim] + padding;
  }
  return strides;
}

class ToLayoutTest : public testing::Test {
protected:
  DeviceRef device = Device::open("cpu:threads=2");
};

// Small integers are exact in every type, so all pairs must agree with them.
TEST_F(ToLayoutTest, AllPairsOfElementTypes) {
  for (ElementType from : allElementTypes)
    for (ElementType to : allElementTypes)
      for (bool strided : {false, true}) {
        Shape shape{5, 7};
        Layout layout;
        if (strided)
          layout.strides = {1, 5};
        Tensor source = Tensor::empty(device, TensorDesc(shape, from));
        for (int64_t i = 0; i < 35; ++i)
          writeElement(source, i, double(i % 9 - 4));
        Tensor target = copyTo(device, source, TensorDesc(shape, to, layout));
        auto strides = target.desc().strides();
        for (int64_t i = 0; i < 35; ++i) {
          double given = readElement(source, i);
          double expected = to == ElementType::i1 ? given != 0 : given;
          ASSERT_EQ(readElement(target, i / 7 * strides[0] + i % 7 * strides[1]), expected)
              << name(from) << " to " << name(to) << " element " << i;
        }
      }
}

// f64 keeps what f32 cannot hold, and is rounded once on its way to others.
TEST_F(ToLayoutTest, DoublesKeepTheirDigits) {
  double values[] = {1.0 + 0x1p-40, 0x1p40 + 1, -1e300, NAN, 0x1p62 + 0x1p12, -2.9, 1e-300, 16777217};
  Tensor source = Tensor::wrap(device, TensorDesc({8}, ElementType::f64), values, {});
  Tensor f32 = toLayout(device, source, TensorDesc({8}, ElementType::f32));
  Tensor i64 = toLayout(device, source, TensorDesc({8}, ElementType::i64));
  Tensor i1 = toLayout(device, source, TensorDesc({8}, ElementType::i1));
  const float *narrow = f32.data<float>();
  EXPECT_EQ(std::vector<float>(narrow, narrow + 3), (std::vector<float>{1, 0x1p40f, -INFINITY}));
  EXPECT_TRUE(std::isnan(narrow[3]));
  EXPECT_EQ(std::vector<int64_t>(i64.data<int64_t>(), i64.data<int64_t>() + 8),
            (std::vector<int64_t>{1, (int64_t(1) << 40) + 1, INT64_MIN, 0, (int64_t(1) << 62) + (1 << 12), -2, 0, 16777217}));
  EXPECT_EQ(i1.data<uint8_t>()[6], 1);
  int64_t whole[] = {(int64_t(1) << 53) + 1, -((int64_t(1) << 40) + 1)};
  Tensor f64 = toLayout(device, Tensor::wrap(device, TensorDesc({2}, ElementType::i64), whole, {}), TensorDesc({2}, ElementType::f64));
  EXPECT_EQ(f64.data<double>()[0], 0x1p53);
  EXPECT_EQ(f64.data<double>()[1], -0x1p40 - 1);
}

TEST_F(ToLayoutTest, FloatToIntegerSaturates) {
  float values[] = {1e30f, -1e30f, NAN, 2.9f, -2.9f, 127.5f, INFINITY, -INFINITY};
  Tensor source = Tensor::wrap(device, TensorDesc({8}, ElementType::f32), values, {});
  Tensor i32 = toLayout(device, source, TensorDesc({8}, ElementType::i32));
  Tensor i8 = toLayout(device, source, TensorDesc({8}, ElementType::i8));
  Tensor i64 = toLayout(device, source, TensorDesc({8}, ElementType::i64));
  EXPECT_EQ(std::vector<int32_t>(i32.data<int32_t>(), i32.data<int32_t>() + 8),
            (std::vector<int32_t>{INT32_MAX, INT32_MIN, 0, 2, -2, 127, INT32_MAX, INT32_MIN}));
  EXPECT_EQ(std::vector<int8_t>(i8.data<int8_t>(), i8.data<int8_t>() + 8),
            (std::vector<int8_t>{127, -128, 0, 2, -2, 127, 127, -128}));
  EXPECT_EQ(i64.data<int64_t>()[0], INT64_MAX);
  EXPECT_EQ(i64.data<int64_t>()[1], INT64_MIN);
}

// Every order of three dimensions to every other, dense and padded, odd
// extents, large enough for blocks and threads in some.
TEST_F(ToLayoutTest, AllPairsOfPermutations) {
  std::mt19937 random(7);
  for (Shape shape : {Shape{2, 3, 4}, Shape{33, 65, 5}, Shape{1, 70, 37}, Shape{64, 64, 40}}) {
    std::vector<size_t> from{0, 1, 2};
    do {
      std::vector<size_t> to{0, 1, 2};
      do {
        for (int64_t padding : {0, 3}) {
          Tensor source = Tensor::empty(
              device, TensorDesc(shape, ElementType::f32, Layout{.strides = permuted(shape, from, padding)}));
          auto *values = source.data<float>();
          for (uint64_t i = 0; i < source.storage()->bytes() / 4; ++i)
            values[i] = float(random() % 100000);
          Tensor target =
              copyTo(device, source, TensorDesc(shape, ElementType::f32, Layout{.strides = permuted(shape, to, 0)}));
          auto a = source.desc().strides(), b = target.desc().strides();
          forEachIndex(shape, [&](const std::vector<int64_t> &index) {
            ASSERT_EQ(source.data<float>()[offsetOf(index, a)], target.data<float>()[offsetOf(index, b)]);
          });
        }
      } while (std::ranges::next_permutation(to).found);
    } while (std::ranges::next_permutation(from).found);
  }
}

TEST_F(ToLayoutTest, BroadcastSourceRepeats) {
  float row[] = {1, 2, 3};
  Tensor source = Tensor::wrap(device, TensorDesc({4, 3}, ElementType::f32, Layout{.strides = {0, 1}}), row, {});
  Tensor dense = toHost(source);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(dense.data<float>()[i], row[i % 3]);
}

// What is in place is the same handle; nothing is copied.
TEST_F(ToLayoutTest, EqualLayoutIsElided) {
  Tensor tensor = Tensor::zeros(device, TensorDesc({8, 1, 4}, ElementType::f32, Layout{.strides = {4, 99, 1}}));
  Tensor same = toLayout(device, tensor, TensorDesc({8, 1, 4}, ElementType::f32, Layout{.strides = {4, 4, 1}}));
  EXPECT_EQ(same.storage()->id(), tensor.storage()->id());
  // Memory is unified: on the host means on the device.
  EXPECT_EQ(toHost(tensor).storage()->id(), tensor.storage()->id());
  // A greater alignment is a copy.
  Tensor aligned = toLayout(device, tensor, TensorDesc({8, 1, 4}, ElementType::f32, Layout{.alignment = 512}));
  EXPECT_NE(aligned.storage()->id(), tensor.storage()->id());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned.bytes()) % 512, 0u);
}

TEST_F(ToLayoutTest, MistakesAreTypedErrors) {
  Tensor tensor = Tensor::zeros(device, TensorDesc({4}, ElementType::f32));
  auto code = [&](const TensorDesc &desc) {
    try {
      toLayout(device, tensor, desc);
    } catch (const Error &error) {
      return error.code();
    }
    return ErrorCode(-1);
  };
  EXPECT_EQ(code(TensorDesc({2, 2}, ElementType::f32)), ErrorCode::LayoutMismatch);
  EXPECT_EQ(code(TensorDesc({4}, ElementType::f32, Layout{.tile = {3}})), ErrorCode(-1));
  EXPECT_EQ(code(TensorDesc({4}, ElementType::f32, Layout{.strides = {0}})), ErrorCode::InvalidArgument);
  EXPECT_EQ(code(TensorDesc({4}, ElementType::f32, Layout{.space = Space::DeviceL1})), ErrorCode::Unsupported);
}

// A scalar is written by the compute queue: it does not wait on the link behind what is copied.
TEST_F(ToLayoutTest, AScalarDoesNotWaitOnTheLink) {
  DeviceRef slow = Device::open("sim:virtual,dram=64MiB,pinned=64MiB,link=1MB/s,latency=0s");
  Tensor large = Tensor::onHost(slow, {1 << 20}, ElementType::f32);
  Tensor there = toLayout(slow, large, TensorDesc({1 << 20}, ElementType::f32));
  uint64_t carried = slow->transfer().counters().h2dBytes;
  Tensor scalar = Tensor::scalar(slow, int64_t(7));
  wait(scalar);
  EXPECT_LT(slow->seconds(), 0.001);
  EXPECT_EQ(slow->transfer().counters().h2dBytes, carried);
  wait(there);
  EXPECT_GT(slow->seconds(), 4);
  for (const char *spec : {"sim:dram=1MiB,link=1GB/s", "sim:streams,dram=1MiB,link=1GB/s"}) {
    EXPECT_EQ(Tensor::scalar(Device::open(spec), int64_t(-7) << 40).item(), double(int64_t(-7) << 40));
    EXPECT_EQ(Tensor::scalar(Device::open(spec), -0.5f).item(), -0.5);
  }
}

// An empty tensor has nothing to copy and a scalar has one element.
TEST_F(ToLayoutTest, EmptyAndScalar) {
  Tensor empty = Tensor::empty(device, TensorDesc({0, 5}, ElementType::f32));
  EXPECT_EQ(copyTo(device, empty, TensorDesc({0, 5}, ElementType::bf16)).elementCount(), 0u);
  EXPECT_EQ(copyTo(device, Tensor::scalar(device, 2.5f), TensorDesc({}, ElementType::bf16)).item(), 2.5);
}
