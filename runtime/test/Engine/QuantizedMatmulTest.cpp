//===- QuantizedMatmulTest.cpp - products of codes against loops ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/QuantizedMatmul.h"
#include "Machines.h"
#include "Values.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

namespace {

/// A weight in the storage that `spec` names; what pads its rows would show in any
/// result.
struct Weight {
  Weight(const QuantizedMatmulSpec &spec, uint64_t seed) : spec(spec), group(groupExtent(spec.storage)) {
    codes.assign(size_t(spec.out * spec.codeStride) / (group ? 2 : 1), std::byte(101));
    scale.resize(size_t(spec.out));
    zero.resize(size_t(spec.out));
    for (int64_t i = 0; group && i < spec.codeStride / group * spec.out; ++i)
      groupScale.push_back(floatToBf16(0.05f + std::fabs(value(uint64_t(i), seed + 1)) * 0.2f));
    for (int64_t o = 0; o < spec.out; ++o) {
      scale[size_t(o)] = 0.01f + std::fabs(value(uint64_t(o), seed + 1)) * 0.03f;
      scale[size_t(o)] *= 127 / largestCode(spec.storage);
      zero[size_t(o)] = float(o % 5 - 2);
      for (int64_t k = 0; k < spec.in; ++k) {
        float number = value(uint64_t(o * spec.in + k), seed);
        std::byte *at = &codes[size_t(o * spec.codeStride + k) / (group ? 2 : 1)];
        if (group)
          *at = (*at & std::byte(k % 2 ? 15 : 240)) | std::byte((int(7 * number) & 15) << (k % 2 * 4));
        else
          *at = std::byte(floatToCode(largestCode(spec.storage) * number, spec.storage));
      }
    }
  }

  double at(int64_t o, int64_t k) const {
    if (group)
      return double(float(int4Code(&codes[size_t(o * spec.codeStride / 2)], k)) *
                    bf16ToFloat(groupScale[size_t(k / group * spec.out + o)]));
    float zeroPoint = spec.hasZeroPoints ? zero[size_t(o)] : 0;
    return double((codeToFloat(uint8_t(codes[size_t(o * spec.codeStride + k)]), spec.storage) - zeroPoint) *
                  scale[size_t(o)]);
  }

  const void *scales() const { return group ? static_cast<const void *>(groupScale.data()) : scale.data(); }

  QuantizedMatmulSpec spec;
  int64_t group;
  std::vector<std::byte> codes;
  std::vector<float> scale, zero;
  std::vector<uint16_t> groupScale;
};

} // namespace

static std::vector<uint8_t> runPlan(CpuEngine &engine, const QuantizedMatmulSpec &spec, Weight &weight, Values &x,
                                    Values &y, Values *bias = nullptr) {
  engine.planQuantizedMatmul(spec)->run({.x = x.data(),
                                         .codes = weight.codes.data(),
                                         .scales = weight.scales(),
                                         .zeroPoints = spec.hasZeroPoints ? weight.zero.data() : nullptr,
                                         .bias = spec.hasBias ? bias->data() : nullptr,
                                         .y = y.data()});
  return y.bytes();
}

/// Every element against a sum in double; what lies between the rows stays.
static void check(CpuEngine &engine, const QuantizedMatmulSpec &spec) {
  ASSERT_EQ(spec.findProblem(), "");
  Weight weight(spec, 7);
  Values x(spec.x, std::max<int64_t>(1, spec.rows * spec.xStride), 1);
  Values y(spec.y, std::max<int64_t>(1, spec.rows * spec.yStride), 2), before = y;
  Values bias(spec.bias, std::max<int64_t>(1, spec.columns()), 3);
  runPlan(engine, spec, weight, x, y, &bias);
  std::vector<bool> written(size_t(y.size()));
  std::vector<double> inputs = x.numbers(), weights(size_t(spec.columns() * spec.depth()));
  for (int64_t j = 0; j < spec.columns(); ++j)
    for (int64_t l = 0; l < spec.depth(); ++l)
      weights[size_t(j * spec.depth() + l)] = spec.transposed ? weight.at(l, j) : weight.at(j, l);
  for (int64_t i = 0; i < spec.rows; ++i)
    for (int64_t j = 0; j < spec.columns(); ++j) {
      double sum = spec.hasBias ? bias.at(j) : 0, size = 1 + std::fabs(sum);
      for (int64_t l = 0; l < spec.depth(); ++l) {
        double term = inputs[size_t(i * spec.xStride + l)] * weights[size_t(j * spec.depth() + l)];
        sum += term;
        size += std::fabs(term);
      }
      int64_t at = i * spec.yStride + j;
      written[size_t(at)] = true;
      ASSERT_NEAR(y.at(at), sum, tolerance(spec.y) * (size + std::fabs(sum))) << "at " << i << ", " << j;
    }
  for (int64_t at = 0; at < y.size(); ++at)
    ASSERT_TRUE(written[size_t(at)] || y.at(at) == before.at(at)) << "written outside of y at " << at;
}

class QuantizedMatmul : public testing::TestWithParam<Machine> {};
INSTANTIATE_TEST_SUITE_P(All, QuantizedMatmul, kMachines, describe);

// Both forms, all types, extents around tiles, panels and blocks, padded rows.
TEST_P(QuantizedMatmul, AgreesWithLoops) {
  using enum ElementType;
  struct Extents {
    int64_t rows, out, in;
  };
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (auto [rows, out, in] : {Extents{1, 1, 1},
                               {3, 33, 17},
                               {13, 64, 100},
                               {121, 40, 385},
                               {7, 769, 31},
                               {481, 32, 16},
                               {0, 8, 8},
                               {5, 7, 0},
                               {64, 130, 200}})
    for (bool transposed : {false, true})
      for (StorageType storage : {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row,
                                  StorageType::Int4Group32, StorageType::Int4Group64})
        for (auto [x, y] : {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f16, f16}}) {
          QuantizedMatmulSpec spec{.rows = rows, .out = out, .in = in, .codeStride = (in + 63) / 64 * 64};
          spec.storage = storage;
          spec.hasZeroPoints = isRowStorage(storage) && (rows + out + int64_t(x)) % 2;
          spec.transposed = transposed;
          spec.x = x;
          spec.y = y;
          spec.hasBias = rows % 3 != 0;
          spec.bias = rows % 2 ? y : ElementType::f32;
          spec.xStride = spec.depth() + 3;
          spec.yStride = spec.columns() + 2;
          check(engine, spec);
        }
}

// The transposed form multiplies with W' to the bit, no result depends on the
// number of threads, and each run is counted.
TEST(QuantizedMatmulPlan, IsTheSameForAllThreads) {
  for (int form = 0; form < 6; ++form) {
    bool transposed = form % 2;
    StorageType storage[] = {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Int4Group64};
    QuantizedMatmulSpec spec{
        .rows = 200, .out = 300, .in = 500, .codeStride = 512, .storage = storage[form / 2], .transposed = transposed};
    spec.xStride = spec.depth();
    spec.yStride = spec.columns();
    Weight weight(spec, 3);
    Values x(ElementType::f32, spec.rows * spec.xStride, 1), y(ElementType::f32, spec.rows * spec.yStride, 2);
    CpuEngine one(Threads(1)), three(Threads(3));
    std::vector<uint8_t> first = runPlan(one, spec, weight, x, y);
    EXPECT_EQ(runPlan(three, spec, weight, x, y), first);
    EXPECT_EQ(one.fusedCalls(), 1u);
    if (!transposed)
      continue;
    // The dequant path: W' in f32, the engine's own matmul.
    std::vector<float> dense(size_t(spec.out * spec.in));
    for (int64_t o = 0; o < spec.out; ++o)
      for (int64_t k = 0; k < spec.in; ++k)
        dense[size_t(o * spec.in + k)] = float(weight.at(o, k));
    MatmulSpec plain{.m = spec.rows, .n = spec.in, .k = spec.out};
    plain.a.strides = {0, spec.out, 1};
    plain.b.strides = plain.c.strides = {0, spec.in, 1};
    Values result(ElementType::f32, spec.rows * spec.in, 5);
    one.planMatmul(plain)->run(x.data(), dense.data(), result.data(), nullptr);
    EXPECT_EQ(result.bytes(), first);
  }
}

TEST(QuantizedMatmulSpec, NamesWhatItCannotRun) {
  QuantizedMatmulSpec good{.rows = 2, .out = 4, .in = 8, .codeStride = 64, .xStride = 8, .yStride = 4};
  EXPECT_EQ(good.findProblem(), "");
  auto problem = [&](auto change) {
    QuantizedMatmulSpec spec = good;
    change(spec);
    return spec.findProblem();
  };
  EXPECT_EQ(problem([](auto &s) { s.rows = -1; }), "rows is -1, the least is 0");
  EXPECT_EQ(problem([](auto &s) { s.x = ElementType::i64; }),
            "operand is i64, it must be f32, bf16 or f16; insert a cast");
  EXPECT_EQ(problem([](auto &s) { s.y = ElementType::bf16; }), "result is bf16, it must be f32; insert a cast");
  EXPECT_EQ(problem([](auto &s) { s.codeStride = 7; }), "rows of 8 codes are 7 apart, they overlap");
  EXPECT_EQ(problem([](auto &s) { s.storage = StorageType::Element; }),
            "the weight is in element storage, it must be of codes");
  EXPECT_EQ(problem([](auto &s) {
              s.storage = StorageType::Int4Group64;
              s.codeStride = 72;
            }),
            "rows in int4_group64 storage are whole groups without zero points, not 72 codes apart");
  EXPECT_EQ(problem([](auto &s) {
              s.hasBias = true;
              s.bias = ElementType::bf16;
            }),
            "bias is bf16, it must be f32; insert a cast");
  EXPECT_EQ(problem([](auto &s) { s.xStride = 7; }), "row stride of the operand is 7, its rows of 8 elements overlap");
  EXPECT_EQ(problem([](auto &s) { s.transposed = true; }),
            "row stride of the result is 4, its rows of 8 elements overlap");
}
