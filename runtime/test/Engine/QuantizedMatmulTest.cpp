//===- QuantizedMatmulTest.cpp - products of codes against loops ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/QuantizedMatmul.h"
#include "CodedWeight.h"
#include "Machines.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

static std::vector<uint8_t> runPlan(CpuEngine &engine, const QuantizedMatmulSpec &spec, CodedWeight &weight, Values &x,
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
  CodedWeight weight(spec, 7);
  Values x(spec.x, std::max<int64_t>(1, spec.rows * spec.xStride), 1);
  Values y(spec.y, std::max<int64_t>(1, spec.rows * spec.yStride), 2), before = y;
  Values bias(spec.bias, std::max<int64_t>(1, spec.columns()), 3);
  runPlan(engine, spec, weight, x, y, &bias);
  expectProduct(weight, x, bias, before, y, tolerance(spec.y));
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
    CodedWeight weight(spec, 3);
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
