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
  float dropout = 0;
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
  spec.dropout = c.dropout;
  spec.dropoutId = 3;
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

namespace {
/// What an attention and its derivative are given and leave.
struct AttentionData {
  std::vector<std::byte> q, k, v, mask, out, gradOut, gradQ, gradK, gradV;
  std::vector<float> lse;
};

/// Operands whose scores have a deviation of `spread` or so, with a row of the mask that sees nothing.
AttentionData dataOf(const AttentionCase &c, const AttentionGradSpec &spec, float spread) {
  int64_t many = c.headsInside ? 3 : 1, rowCount = many * c.batch * c.heads * c.rows * c.dim,
          keyCount = many * c.batch * c.heads * c.keys * c.dim;
  int64_t maskCount = c.mask == MaskKind::none ? 1 : (c.maskRepeats ? 1 : c.batch * c.heads) * c.rows * c.keys;
  AttentionData data;
  data.q = normals(c.type, rowCount, 1, spread);
  data.k = normals(c.type, keyCount, 2, spread);
  data.v = normals(c.type, keyCount, 3);
  data.mask = normals(spec.forward.maskElement, maskCount, 4);
  data.gradOut = normals(c.type, rowCount, 5);
  if (c.mask == MaskKind::keep)
    std::fill_n(data.mask.begin(), c.keys, std::byte(0));
  data.out = data.gradQ = std::vector<std::byte>(data.q.size());
  data.gradK = data.gradV = std::vector<std::byte>(data.k.size());
  data.lse.resize(size_t(c.batch * c.heads * c.rows));
  return data;
}

/// How far numbers of `found` are from those of `wanted`, as a part of the largest, or of 1.
float distance(ElementType type, const std::vector<std::byte> &found, const std::vector<std::byte> &wanted) {
  float largest = 1, most = 0;
  for (size_t i = 0; i < wanted.size() / byteSize(type); ++i) {
    float a = numberAt(found, type, i), b = numberAt(wanted, type, i);
    largest = std::max(largest, std::fabs(b));
    most = a == b ? most : std::isnan(a) || std::isnan(b) ? INFINITY : std::max(most, std::fabs(a - b));
  }
  return most / largest;
}

void expectNear(float tolerance, const AttentionData &found, const AttentionData &wanted, ElementType type) {
  EXPECT_LE(distance(type, found.out, wanted.out), tolerance);
  EXPECT_LE(distance(type, found.gradQ, wanted.gradQ), tolerance);
  EXPECT_LE(distance(type, found.gradK, wanted.gradK), tolerance);
  EXPECT_LE(distance(type, found.gradV, wanted.gradV), tolerance);
  for (size_t i = 0; i < wanted.lse.size(); ++i)
    ASSERT_TRUE(found.lse[i] == wanted.lse[i] ||
                std::fabs(found.lse[i] - wanted.lse[i]) < 2e-5f * std::max(1.0f, std::fabs(wanted.lse[i])))
        << i << ": " << found.lse[i] << ", " << wanted.lse[i];
}
void expectNear(ElementType type, const AttentionData &found, const AttentionData &wanted) {
  expectNear(type == ElementType::f32 ? 2e-5f : type == ElementType::bf16 ? 0.02f : 3e-3f, found, wanted, type);
}

/// The tolerance of weights and gradients of scores that TF32 rounds, which keeps as many bits as f16.
constexpr float toleranceOfTf32 = 3e-3f;

/// Cuts numbers of f32 to those that TF32 holds, so that products of two of them are exact.
void cutToTf32(std::vector<std::byte> &data) {
  for (size_t i = 0; i < data.size(); i += 4) {
    uint32_t bits;
    std::memcpy(&bits, &data[i], 4);
    bits &= ~0x1fffu;
    std::memcpy(&data[i], &bits, 4);
  }
}

std::string describe(const AttentionCase &c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.heads) + ", " + std::to_string(c.rows) + " x " +
         std::to_string(c.keys) + " x " + std::to_string(c.dim) + ", causal " + std::to_string(c.causal) + ", mask " +
         std::to_string(int(c.mask)) + ", " + std::string(name(c.type)) + (c.dropout ? ", dropout" : "");
}

class CudaAttentionTest : public CudaKernelsTest {
protected:
  const std::vector<int64_t> seedAndStep = {0x123456789abcdef0, 0x700000003};

  /// Attends on the device, all operands but `lse` `shift` bytes behind where a block begins.
  AttentionData attend(const AttentionGradSpec &spec, const AttentionData &data, size_t shift = 0) {
    auto shifted = [&](const std::vector<std::byte> &bytes) {
      std::vector<std::byte> all(shift);
      all.insert(all.end(), bytes.begin(), bytes.end());
      return onDevice(all);
    };
    Tensor q = shifted(data.q), k = shifted(data.k), v = shifted(data.v), mask = shifted(data.mask),
           out = shifted(data.out), gradOut = shifted(data.gradOut), gradQ = shifted(data.gradQ),
           gradK = shifted(data.gradK), gradV = shifted(data.gradV), lse = onDevice(data.lse),
           numbers = onDevice(seedAndStep);
    const int64_t *seedAt = numbers.data<int64_t>();
    const void *maskAt = spec.forward.mask == MaskKind::none ? nullptr : mask.bytes() + shift;
    auto forward = device->engine().planAttention(spec.forward);
    auto backward = device->engine().planAttentionGrad(spec);
    runInBody([&] {
      forward->run({q.bytes() + shift, k.bytes() + shift, v.bytes() + shift, maskAt, seedAt, seedAt + 1,
                    out.bytes() + shift, lse.data<float>()});
      backward->run({q.bytes() + shift, k.bytes() + shift, v.bytes() + shift, maskAt, seedAt, seedAt + 1,
                     out.bytes() + shift, lse.data<float>(), gradOut.bytes() + shift, gradQ.bytes() + shift, gradK.bytes() + shift,
                     gradV.bytes() + shift});
    });
    auto unshifted = [&](const Tensor &tensor) {
      std::vector<std::byte> bytes = read<std::byte>(tensor);
      bytes.erase(bytes.begin(), bytes.begin() + ptrdiff_t(shift));
      return bytes;
    };
    AttentionData found = data;
    found.out = unshifted(out);
    found.gradQ = unshifted(gradQ);
    found.gradK = unshifted(gradK);
    found.gradV = unshifted(gradV);
    found.lse = read<float>(lse);
    return found;
  }

  AttentionData attendOnCpu(const AttentionGradSpec &spec, AttentionData data) {
    const void *mask = spec.forward.mask == MaskKind::none ? nullptr : data.mask.data();
    cpu->engine().planAttention(spec.forward)->run(
        {data.q.data(), data.k.data(), data.v.data(), mask, &seedAndStep[0], &seedAndStep[1], data.out.data(),
         data.lse.data()});
    cpu->engine().planAttentionGrad(spec)->run({data.q.data(), data.k.data(), data.v.data(), mask, &seedAndStep[0],
                                                &seedAndStep[1], data.out.data(), data.lse.data(),
                                                data.gradOut.data(), data.gradQ.data(), data.gradK.data(),
                                                data.gradV.data()});
    return data;
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttentionTest, testing::Values(cudaSpecs().front()));

TEST_P(CudaAttentionTest, AttendsAsTheCpuDoes) {
  const AttentionCase cases[] = {
      {1, 1, 1, 1, 1},
      {2, 3, 33, 65, 20},
      {1, 2, 70, 70, 64, true},
      {1, 1, 5, 40, 130, true, MaskKind::none, ElementType::f32, true},
      {1, 2, 40, 34, 300, false, MaskKind::add},
      {2, 2, 34, 33, 16, true, MaskKind::keep, ElementType::f32, true, true},
      {1, 2, 48, 48, 33, true, MaskKind::none, ElementType::bf16, true},
      {1, 2, 17, 35, 71, false, MaskKind::keep, ElementType::f16},
      {1, 1, 3, 0, 8},
      {1, 2, 64, 20, 264, true, MaskKind::add, ElementType::bf16, false, true},
      {2, 2, 37, 45, 20, true, MaskKind::none, ElementType::f32, true, false, 0.3f},
      {1, 2, 40, 36, 130, false, MaskKind::keep, ElementType::f32, false, false, 0.6f},
  };
  for (const AttentionCase &c : cases) {
    SCOPED_TRACE(describe(c));
    AttentionGradSpec spec = specOf(c);
    ASSERT_EQ(spec.findProblem(), "");
    AttentionData data = dataOf(c, spec, 2);
    expectNear(c.type, attend(spec, data), attendOnCpu(spec, data));
  }
}

// Every width of the kernels in both types, every kind of mask, lengths that are no multiples of tiles, of blocks or of
// the 16 rows of a warp, and of 1. The kernels for any strides, which run where operands begin at an odd address, agree
// too, with other bits: they do not round weights.
TEST_P(CudaAttentionTest, AttendsOnTensorCoresAsTheCpuAndOtherKernelsDo) {
  constexpr ElementType bf16 = ElementType::bf16, f16 = ElementType::f16;
  const AttentionCase cases[] = {
      {1, 1, 1, 1, 16, false, MaskKind::none, bf16},
      {1, 2, 130, 130, 64, true, MaskKind::none, bf16, true},
      {2, 1, 128, 192, 64, false, MaskKind::none, f16},
      {1, 1, 64, 90, 64, false, MaskKind::none, bf16},
      {1, 1, 90, 64, 128, false, MaskKind::none, f16},
      {1, 2, 33, 200, 40, true, MaskKind::keep, f16, true},
      {1, 1, 200, 70, 24, true, MaskKind::add, bf16, false, true},
      {1, 2, 145, 67, 48, false, MaskKind::keep, bf16, true, true},
      {1, 1, 64, 0, 32, false, MaskKind::none, bf16},
      {1, 2, 150, 97, 128, true, MaskKind::none, f16, true},
      {1, 1, 40, 133, 72, false, MaskKind::add, bf16},
      {2, 1, 17, 33, 96, false, MaskKind::keep, f16, true},
      {1, 1, 131, 131, 128, true, MaskKind::none, bf16},
      {1, 1, 20, 40, 256, true, MaskKind::none, bf16, true},
      {1, 1, 35, 18, 136, false, MaskKind::add, f16},
      {1, 1, 18, 35, 200, true, MaskKind::keep, bf16, false, true},
      {1, 1, 1, 50, 256, false, MaskKind::none, f16},
      {2, 2, 40, 67, 64, true, MaskKind::none, bf16, true, false, 0.3f},
      {1, 2, 33, 36, 80, false, MaskKind::keep, f16, false, false, 0.5f},
      {1, 1, 20, 40, 256, true, MaskKind::none, bf16, false, false, 0.2f},
  };
  int others = 0;
  for (AttentionCase c : cases) {
    SCOPED_TRACE(describe(c));
    AttentionGradSpec spec = specOf(c);
    ASSERT_EQ(spec.findProblem(), "");
    // Rows in which all keys have some weight, so that one too many shows, and those in which one has it all.
    for (float spread : {0.3f, 2.0f}) {
      AttentionData data = dataOf(c, spec, spread), found = attend(spec, data);
      expectNear(c.type, found, attendOnCpu(spec, data));
      AttentionData again = attend(spec, data), other = attend(spec, data, 2);
      EXPECT_TRUE(found.out == again.out && found.gradQ == again.gradQ && found.gradK == again.gradK &&
                  found.gradV == again.gradV && found.lse == again.lse);
      expectNear(c.type, found, other);
      others += found.out != other.out || found.gradV != other.gradV;
    }
  }
  EXPECT_GT(others, 20);
}

// With tf32=on, of operands that TF32 holds, so that scores are those of f32 but for their order. What no tile has room
// for, and what begins at no multiple of 16 bytes, is attended in f32; and so is all of it without that option.
TEST_P(CudaAttentionTest, AttendsInTf32WhereThatIsAskedFor) {
  constexpr ElementType f32 = ElementType::f32;
  const struct {
    AttentionCase c;
    bool isRounded = true;
  } cases[] = {
      {{1, 1, 1, 1, 16}},
      {{1, 2, 130, 130, 64, true, MaskKind::none, f32, true}},
      {{2, 1, 128, 192, 64}},
      {{1, 1, 64, 90, 60}},
      {{1, 2, 33, 200, 40, true, MaskKind::keep, f32, true}},
      {{1, 1, 200, 70, 20, true, MaskKind::add, f32, false, true}},
      {{1, 2, 145, 67, 48, false, MaskKind::keep, f32, true, true}},
      {{1, 1, 64, 0, 32}, false},
      {{1, 2, 150, 97, 128, true, MaskKind::none, f32, true}},
      {{1, 1, 40, 133, 72, false, MaskKind::add}},
      {{2, 1, 17, 33, 100, false, MaskKind::keep, f32, true}},
      {{1, 1, 131, 131, 128, true}},
      {{50, 6, 20, 20, 8, true}},
      {{1, 1, 20, 40, 132}, false},
      {{1, 1, 20, 40, 62}, false},
      {{1, 2, 40, 67, 64, true, MaskKind::none, f32, true, false, 0.3f}},
      {{1, 1, 33, 36, 100, false, MaskKind::none, f32, false, false, 0.5f}, false},
  };
  DeviceRef plain = device, rounding = Device::open(GetParam() + ",tf32=on");
  for (auto [c, isRounded] : cases) {
    SCOPED_TRACE(describe(c));
    AttentionGradSpec spec = specOf(c);
    ASSERT_EQ(spec.findProblem(), "");
    for (float spread : {0.3f, 2.0f}) {
      AttentionData data = dataOf(c, spec, spread);
      for (auto bytes : {&data.q, &data.k, &data.v, &data.gradOut})
        cutToTf32(*bytes);
      device = plain;
      AttentionData exact = attend(spec, data);
      expectNear(f32, exact, attendOnCpu(spec, data));
      device = rounding;
      AttentionData found = attend(spec, data);
      expectNear(toleranceOfTf32, found, exact, f32);
      EXPECT_EQ(found.out == exact.out && found.gradV == exact.gradV, !isRounded || c.keys == 1);
      if (spread != 2.0f)
        continue;
      AttentionData again = attend(spec, data), other = attend(spec, data, 4);
      EXPECT_TRUE(found.out == again.out && found.gradQ == again.gradQ && found.gradK == again.gradK &&
                  found.gradV == again.gradV && found.lse == again.lse);
      EXPECT_TRUE(other.out == exact.out && other.gradQ == exact.gradQ) << "in f32, from an odd address";
    }
  }
}

// Operands are rounded, and not cut: against f32, as far as docs/cuda.md says. A NaN stays in its row.
TEST_P(CudaAttentionTest, Tf32RoundsToTheNearest) {
  AttentionCase c{1, 2, 256, 256, 64, true};
  AttentionGradSpec spec = specOf(c);
  spec.forward.scale = 0.125f;
  AttentionData data = dataOf(c, spec, 1), wanted = attendOnCpu(spec, data);
  device = Device::open(GetParam() + ",tf32=on");
  AttentionData found = attend(spec, data);
  constexpr float most = 6e-4f; // with bits cut off it is more for each
  EXPECT_LE(distance(c.type, found.out, wanted.out), most);
  EXPECT_LE(distance(c.type, found.gradQ, wanted.gradQ), most);
  EXPECT_LE(distance(c.type, found.gradK, wanted.gradK), most);
  EXPECT_LE(distance(c.type, found.gradV, wanted.gradV), most);
  uint32_t nan = 0x7fffffff; // with the bits that rounding adds to
  std::memcpy(&data.q[7 * 64 * 4], &nan, 4);
  found = attend(spec, data);
  for (int64_t row = 0; row < c.rows; ++row)
    EXPECT_EQ(std::isnan(numberAt(found.out, c.type, size_t(row * 64))), row == 7) << row;
}

// Blocks go on to what is left: the last tiles of one head may not be written over by the first of the next.
TEST_P(CudaAttentionTest, BlocksOnTensorCoresGoOnToOtherHeads) {
  for (int64_t dim : {16, 128}) {
    AttentionCase c{50, 6, 20, 20, dim, true, MaskKind::none, ElementType::bf16};
    AttentionGradSpec spec = specOf(c);
    AttentionData data = dataOf(c, spec, 1);
    expectNear(c.type, attend(spec, data), attendOnCpu(spec, data));
  }
}

// As grouped queries may lie: two heads read the keys and values of one.
TEST_P(CudaAttentionTest, HeadsOnTensorCoresMayShareKeys) {
  AttentionCase c{1, 2, 70, 90, 64, true, MaskKind::none, ElementType::bf16};
  AttentionGradSpec spec = specOf(c);
  spec.forward.k[1] = spec.forward.v[1] = 0;
  ASSERT_EQ(spec.findProblem(), "");
  AttentionData data = dataOf(c, spec, 1);
  expectNear(c.type, attend(spec, data), attendOnCpu(spec, data));
}

// Masks that add minus infinity, to whole rows too; scores of thousands; and a NaN, which stays in its row.
TEST_P(CudaAttentionTest, TensorCoresKeepExtremeScores) {
  for (ElementType type : {ElementType::bf16, ElementType::f16})
    for (int64_t dim : {64, 128, 256}) {
      AttentionCase c{1, 1, 20, 70, dim, false, MaskKind::add, type};
      AttentionGradSpec spec = specOf(c);
      AttentionData data = dataOf(c, spec, 12);
      bool isBf16 = type == ElementType::bf16;
      uint16_t infinity = isBf16 ? 0xff80 : 0xfc00, nan = isBf16 ? 0x7fc0 : 0x7e00;
      auto set = [&](std::vector<std::byte> &bytes, int64_t at, uint16_t bits) {
        std::memcpy(&bytes[size_t(at) * 2], &bits, 2);
      };
      for (int64_t key = 0; key < c.keys; ++key) {
        set(data.mask, 3 * c.keys + key, infinity);
        if (key % 3)
          set(data.mask, 5 * c.keys + key, infinity);
      }
      AttentionData found = attend(spec, data);
      expectNear(c.type, found, attendOnCpu(spec, data));
      EXPECT_EQ(found.lse[3], -INFINITY);
      for (int64_t i = 0; i < dim; ++i)
        EXPECT_EQ(numberAt(found.out, type, size_t(3 * dim + i)), 0.0f);
      set(data.q, 7 * dim, nan);
      found = attend(spec, data);
      for (int64_t row = 0; row < c.rows; ++row)
        EXPECT_EQ(std::isnan(numberAt(found.out, type, size_t(row * dim))), row == 7) << row;
    }
}

// What docs/cuda.md says of errors: against the same attention in f32, of numbers as they are after a layer norm.
TEST_P(CudaAttentionTest, TensorCoresAreAsCloseToF32AsTheirTypeAllows) {
  for (auto [type, most] : {std::pair(ElementType::bf16, 4e-3f), {ElementType::f16, 6e-4f}}) {
    AttentionCase c{1, 2, 256, 256, 64, true, MaskKind::none, type};
    AttentionGradSpec spec = specOf(c);
    spec.forward.scale = 0.125f;
    AttentionData data = dataOf(c, spec, 1), found = attend(spec, data);
    spec.forward.element = ElementType::f32;
    auto widened = [&](std::vector<std::byte> &bytes) {
      std::vector<std::byte> wide(2 * bytes.size());
      for (size_t i = 0; i < bytes.size() / 2; ++i) {
        float value = numberAt(bytes, type, i);
        std::memcpy(&wide[4 * i], &value, 4);
      }
      bytes = std::move(wide);
    };
    for (auto bytes : {&data.q, &data.k, &data.v, &data.out, &data.gradOut, &data.gradQ, &data.gradK, &data.gradV})
      widened(*bytes);
    AttentionData wanted = attend(spec, data);
    for (auto [what, bytes, exact] : {std::tuple("out", &found.out, &wanted.out),
                                      {"gradQ", &found.gradQ, &wanted.gradQ},
                                      {"gradK", &found.gradK, &wanted.gradK},
                                      {"gradV", &found.gradV, &wanted.gradV}}) {
      widened(*bytes);
      float far = distance(ElementType::f32, *bytes, *exact);
      RecordProperty(std::string(name(type)) + "." + what, std::to_string(far));
      EXPECT_LT(far, most) << what;
    }
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
      {qt.bytes(), kt.bytes(), vt.bytes(), nullptr, nullptr, nullptr, outT.bytes(), lseT.data<float>()});
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
