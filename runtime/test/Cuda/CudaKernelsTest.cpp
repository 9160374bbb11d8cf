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

namespace {
/// An attention, and how its operands lie: with heads inside of rows, as a projection leaves them, or outside.
struct AttentionCase {
  int64_t batch, heads, rows, keys, dim;
  bool causal = false;
  MaskKind mask = MaskKind::none;
  ElementType type = ElementType::f32;
  bool headsInside = false, maskRepeats = false;
};

AttentionGradSpec specOf(const AttentionCase &c) {
  AttentionGradSpec grad;
  AttentionSpec &spec = grad.forward;
  spec.batch = c.batch, spec.heads = c.heads, spec.rows = c.rows, spec.keys = c.keys, spec.dim = c.dim;
  spec.element = c.type;
  auto place = [&](int64_t length) -> AttentionStrides {
    return c.headsInside ? AttentionStrides{length * 3 * c.heads * c.dim, c.dim, 3 * c.heads * c.dim, 1}
                         : AttentionStrides{c.heads * length * c.dim, length * c.dim, c.dim, 1};
  };
  spec.q = spec.out = grad.gradOut = grad.gradQ = place(c.rows);
  spec.k = spec.v = grad.gradK = grad.gradV = place(c.keys);
  spec.mask = c.mask;
  spec.maskElement = c.mask == MaskKind::keep ? ElementType::i1 : c.type;
  spec.maskStrides = c.maskRepeats ? std::array<int64_t, 4>{0, 0, c.keys, 1}
                                   : std::array<int64_t, 4>{c.heads * c.rows * c.keys, c.rows * c.keys, c.keys, 1};
  spec.causal = c.causal;
  spec.scale = 1 / std::sqrt(float(c.dim)) + 0.1f;
  return grad;
}

/// Numbers of a normal distribution, as elements of a type.
std::vector<std::byte> normals(ElementType type, int64_t count, uint32_t seed, float factor = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, factor);
  std::vector<std::byte> data(size_t(count) * byteSize(type));
  for (int64_t i = 0; i < count; ++i) {
    float value = normal(random);
    uint32_t bits = type == ElementType::f32    ? std::bit_cast<uint32_t>(value)
                    : type == ElementType::bf16 ? floatToBf16(value)
                    : type == ElementType::f16  ? floatToF16(value)
                                                : value > -0.5f;
    std::memcpy(&data[size_t(i) * byteSize(type)], &bits, byteSize(type));
  }
  return data;
}

float numberAt(const std::vector<std::byte> &data, ElementType type, size_t index) {
  uint32_t bits = 0;
  std::memcpy(&bits, &data[index * byteSize(type)], byteSize(type));
  return type == ElementType::f32    ? std::bit_cast<float>(bits)
         : type == ElementType::bf16 ? bf16ToFloat(uint16_t(bits))
                                     : f16ToFloat(uint16_t(bits));
}
} // namespace

TEST_P(CudaKernelsTest, AttendsAsTheCpuDoes) {
  const AttentionCase cases[] = {
      {1, 1, 1, 1, 1},
      {2, 3, 33, 65, 20},
      {1, 2, 70, 70, 64, true},
      {1, 1, 5, 40, 130, true, MaskKind::none, ElementType::f32, true},
      {1, 2, 40, 34, 300, false, MaskKind::add},
      {2, 2, 34, 33, 16, true, MaskKind::keep, ElementType::f32, true, true},
      {1, 2, 48, 48, 32, true, MaskKind::none, ElementType::bf16, true},
      {1, 2, 17, 35, 72, false, MaskKind::keep, ElementType::f16},
      {1, 1, 3, 0, 8},
      {1, 2, 64, 20, 24, true, MaskKind::add, ElementType::bf16, false, true},
  };
  for (const AttentionCase &c : cases) {
    SCOPED_TRACE(testing::Message() << c.batch << " x " << c.heads << ", " << c.rows << " x " << c.keys << " x " << c.dim
                                    << ", causal " << c.causal << ", mask " << int(c.mask) << ", " << name(c.type));
    AttentionGradSpec spec = specOf(c);
    ASSERT_EQ(spec.findProblem(), "");
    int64_t many = c.headsInside ? 3 : 1, rowCount = many * c.batch * c.heads * c.rows * c.dim,
            keyCount = many * c.batch * c.heads * c.keys * c.dim;
    int64_t maskCount = c.mask == MaskKind::none ? 1 : (c.maskRepeats ? 1 : c.batch * c.heads) * c.rows * c.keys;
    // Large scores, and a row of the mask that sees nothing.
    std::vector<std::byte> q = normals(c.type, rowCount, 1, 2), k = normals(c.type, keyCount, 2, 2),
                           v = normals(c.type, keyCount, 3), mask = normals(spec.forward.maskElement, maskCount, 4),
                           gradOut = normals(c.type, rowCount, 5), zerosRow(q.size()), zerosKey(k.size());
    if (c.mask == MaskKind::keep)
      std::fill_n(mask.begin(), c.keys, std::byte(0));
    std::vector<std::byte> out = zerosRow, gradQ = zerosRow, gradK = zerosKey, gradV = zerosKey;
    std::vector<float> lse(size_t(c.batch * c.heads * c.rows));
    Tensor qt = onDevice(q), kt = onDevice(k), vt = onDevice(v), maskT = onDevice(mask), outT = onDevice(out), lseT = onDevice(lse),
           gradOutT = onDevice(gradOut), gradQT = onDevice(gradQ), gradKT = onDevice(gradK), gradVT = onDevice(gradV);
    bool masks = c.mask != MaskKind::none;
    auto forward = device->engine().planAttention(spec.forward);
    auto backward = device->engine().planAttentionGrad(spec);
    runInBody([&] {
      forward->run({qt.bytes(), kt.bytes(), vt.bytes(), masks ? maskT.bytes() : nullptr, outT.bytes(), lseT.data<float>()});
      backward->run({qt.bytes(), kt.bytes(), vt.bytes(), masks ? maskT.bytes() : nullptr, outT.bytes(), lseT.data<float>(),
                     gradOutT.bytes(), gradQT.bytes(), gradKT.bytes(), gradVT.bytes()});
    });
    const void *maskAt = masks ? mask.data() : nullptr;
    cpu->engine().planAttention(spec.forward)->run({q.data(), k.data(), v.data(), maskAt, out.data(), lse.data()});
    cpu->engine().planAttentionGrad(spec)->run({q.data(), k.data(), v.data(), maskAt, out.data(), lse.data(), gradOut.data(),
                                                gradQ.data(), gradK.data(), gradV.data()});
    auto near = [&](const char *what, const std::vector<std::byte> &found, const std::vector<std::byte> &wanted) {
      ASSERT_EQ(found.size(), wanted.size());
      float largest = 0, tolerance = c.type == ElementType::f32 ? 2e-5f : c.type == ElementType::bf16 ? 0.02f : 3e-3f;
      for (size_t i = 0; i < wanted.size() / byteSize(c.type); ++i)
        largest = std::max(largest, std::fabs(numberAt(wanted, c.type, i)));
      for (size_t i = 0; i < wanted.size() / byteSize(c.type); ++i)
        ASSERT_NEAR(numberAt(found, c.type, i), numberAt(wanted, c.type, i), tolerance * std::max(largest, 1.0f)) << what << " " << i;
    };
    near("out", read<std::byte>(outT), out);
    std::vector<float> lseFound = read<float>(lseT);
    for (size_t i = 0; i < lse.size(); ++i)
      ASSERT_TRUE(lseFound[i] == lse[i] || std::fabs(lseFound[i] - lse[i]) < 2e-5f * std::max(1.0f, std::fabs(lse[i])))
          << i << ": " << lseFound[i] << ", " << lse[i];
    near("gradQ", read<std::byte>(gradQT), gradQ);
    near("gradK", read<std::byte>(gradKT), gradK);
    near("gradV", read<std::byte>(gradVT), gradV);
  }
}

TEST_P(CudaKernelsTest, AttentionPassesNaNOnAndKeepsLargeScores) {
  AttentionSpec spec = specOf({1, 1, 2, 3, 4}).forward;
  std::vector<float> q(8, 1e18f), k(12, 1e18f), v(12, 2.0f), out(8), lse(2);
  q[4] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 4; ++i)
    q[size_t(i)] = 1e15f;
  Tensor qt = onDevice(q), kt = onDevice(k), vt = onDevice(v), outT = onDevice(out), lseT = onDevice(lse);
  device->engine().planAttention(spec)->run(
      {qt.bytes(), kt.bytes(), vt.bytes(), nullptr, outT.bytes(), lseT.data<float>()});
  out = read<float>(outT);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(out[size_t(i)], 2.0f);
    EXPECT_TRUE(std::isnan(out[size_t(4 + i)]));
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
