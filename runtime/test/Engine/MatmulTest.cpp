//===- MatmulTest.cpp - matmul against loops in double --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Machines.h"
#include "MatmulCases.h"
#include "Values.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <algorithm>
#include <cmath>
#include <deque>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <thread>

using namespace segue;
using namespace segue::test;

namespace {
/// Each element of a product as a sum in double, before bias and c are added, and the sum of its terms' sizes.
struct Sums {
  MatmulSpec spec;
  std::vector<std::pair<double, double>> elements;
};
} // namespace

/// Returns the sums for operands of the spec, which are the same at each call, on each machine: they are added up once.
static const Sums &sumsOf(const MatmulSpec &spec, const Values &a, const Values &b) {
  static std::mutex mutex;
  static std::deque<Sums> known;
  std::lock_guard lock(mutex);
  if (auto found = std::ranges::find(known, spec, &Sums::spec); found != known.end())
    return *found;
  std::vector<double> left = a.numbers(), right = b.numbers();
  Sums &sums = known.emplace_back(spec);
  for (int64_t z = 0; z < spec.batch; ++z)
    for (int64_t i = 0; i < spec.m; ++i)
      for (int64_t j = 0; j < spec.n; ++j) {
        double sum = 0, size = 0;
        const double *row = left.data() + z * spec.a.strides[0] + i * spec.a.strides[1];
        const double *column = right.data() + z * spec.b.strides[0] + j * spec.b.strides[2];
        for (int64_t l = 0; l < spec.k; ++l) {
          double term = row[l * spec.a.strides[2]] * column[l * spec.b.strides[1]];
          sum += term;
          size += std::abs(term);
        }
        sums.elements.emplace_back(sum, size);
      }
  return sums;
}

/// Runs the spec and compares each element with a sum in double; what lies
/// between the rows of c must stay.
static void check(CpuEngine &engine, const MatmulSpec &spec) {
  ASSERT_EQ(spec.findProblem(), "");
  Values a(spec.a.element, span(spec.a, spec.batch, spec.m, spec.k), 1);
  Values b(spec.b.element, span(spec.b, spec.batch, spec.k, spec.n), 2);
  Values c(spec.c.element, span(spec.c, spec.batch, spec.m, spec.n), 3), before = c;
  Values bias(spec.bias, spec.n, 4);
  auto plan = engine.planMatmul(spec);
  SCOPED_TRACE(plan->describe());
  plan->run(a.data(), b.data(), c.data(), spec.hasBias ? bias.data() : nullptr);

  std::vector<bool> written(c.size());
  auto element = sumsOf(spec, a, b).elements.begin();
  for (int64_t z = 0; z < spec.batch; ++z)
    for (int64_t i = 0; i < spec.m; ++i)
      for (int64_t j = 0; j < spec.n; ++j) {
        int64_t at = z * spec.c.strides[0] + i * spec.c.strides[1] + j;
        double added = spec.hasBias ? bias.at(j) : 0;
        auto [sum, size] = *element++;
        sum += added;
        size += std::abs(added) + 1;
        sum += spec.accumulate ? before.at(at) : 0;
        written[at] = true;
        ASSERT_NEAR(c.at(at), sum, tolerance(spec.c.element) * (size + std::abs(sum)))
            << "at " << z << ", " << i << ", " << j;
      }
  for (int64_t at = 0; at < c.size(); ++at)
    ASSERT_TRUE(written[at] || c.at(at) == before.at(at)) << "written outside of c at " << at;
}

static constexpr Extents kExtents[] = {{1, 1, 1, 1},     {1, 5, 7, 3},    {3, 13, 33, 17},   {1, 12, 32, 384},
                                       {2, 1, 100, 64},  {1, 130, 1, 50}, {1, 250, 70, 400}, {5, 64, 64, 64},
                                       {1, 37, 800, 65}, {1, 3, 2, 1000}, {3, 2, 203, 37},  {1, 4, 70, 129}};

class MatmulTest : public testing::TestWithParam<Machine> {};

// Every pair of ways to lie, every type.
TEST_P(MatmulTest, AgreesWithLoopsForAllWaysToLie) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (ElementType type : {ElementType::f64, ElementType::f32, ElementType::bf16, ElementType::f16})
    for (Lie left : {Lie::Plain, Lie::Transposed, Lie::Padded, Lie::Strided})
      for (Lie right : {Lie::Plain, Lie::Transposed, Lie::Padded, Lie::Strided})
        for (const Extents &e : {kExtents[2], kExtents[6]}) {
          SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(int(left)) + " " + std::to_string(int(right)));
          MatmulSpec spec{e.batch, e.m, e.n, e.k};
          spec.a = place(type, e.m, e.k, left);
          spec.b = place(type, e.k, e.n, right);
          spec.c = place(type, e.m, e.n, Lie::Padded);
          check(engine, spec);
        }
}

TEST_P(MatmulTest, AgreesWithLoopsForAllExtents) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (ElementType type : {ElementType::f64, ElementType::f32, ElementType::bf16, ElementType::f16})
    for (const Extents &e : kExtents)
      for (ElementType result : {type, type == ElementType::f64 ? type : ElementType::f32})
        for (bool hasBias : {false, true})
          for (bool accumulate : {false, true}) {
            SCOPED_TRACE(std::string(name(type)) + " -> " + std::string(name(result)) + " " + std::to_string(e.m) +
                         "x" + std::to_string(e.k) + "x" + std::to_string(e.n) + (hasBias ? " bias" : "") +
                         (accumulate ? " accumulate" : ""));
            MatmulSpec spec{e.batch, e.m, e.n, e.k};
            spec.a = place(type, e.m, e.k, Lie::Plain);
            spec.b = place(type, e.k, e.n, Lie::Transposed);
            spec.c = place(result, e.m, e.n, Lie::Plain);
            spec.hasBias = hasBias;
            spec.bias = result;
            spec.accumulate = accumulate;
            check(engine, spec);
          }
}

// One matrix for the whole batch, and one row for all rows: strides of 0.
TEST_P(MatmulTest, RepeatsOperandsByStridesOfZero) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (ElementType type : {ElementType::f64, ElementType::f32, ElementType::bf16}) {
    MatmulSpec spec{4, 20, 40, 30};
    spec.a = {type, {0, 0, 1}};
    spec.b = {type, {0, 40, 1}};
    spec.c = place(type, 20, 40, Lie::Plain);
    check(engine, spec);
  }
}

// A linear layer on [batch, seq, dim]: the batch is more rows, and one product.
TEST_P(MatmulTest, MergesABatchThatIsMoreRows) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (ElementType type : {ElementType::f64, ElementType::f32, ElementType::bf16})
    for (int64_t gap : {0, 9}) { // between the items: then they must stay apart
      MatmulSpec spec{5, 31, 40, 30};
      spec.a = {type, {31 * 30 + gap, 30, 1}};
      spec.b = {type, {0, 40, 1}};
      spec.c = {type, {31 * 40 + gap, 40, 1}};
      check(engine, spec);
    }
}

// Without depth the sum is empty: c is the bias, or zero, or stays.
TEST_P(MatmulTest, GivesBiasWhereThereIsNoDepth) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (ElementType type : {ElementType::f64, ElementType::f32, ElementType::bf16, ElementType::f16})
    for (bool hasBias : {false, true})
      for (bool accumulate : {false, true}) {
        MatmulSpec spec{2, 3, 40, 0};
        spec.a = place(type, 3, 0, Lie::Plain);
        spec.b = place(type, 0, 40, Lie::Plain);
        spec.c = place(type, 3, 40, Lie::Plain);
        spec.hasBias = hasBias;
        spec.bias = type;
        spec.accumulate = accumulate;
        check(engine, spec);
      }
}

TEST_P(MatmulTest, DoesNothingWithoutRowsOrColumns) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  for (Extents e : {Extents{0, 2, 2, 2}, Extents{1, 0, 2, 2}, Extents{1, 2, 0, 2}}) {
    MatmulSpec spec{e.batch, e.m, e.n, e.k};
    spec.a = place(ElementType::f32, e.m, e.k, Lie::Plain);
    spec.b = place(ElementType::f32, e.k, e.n, Lie::Plain);
    spec.c = place(ElementType::f32, e.m, e.n, Lie::Plain);
    check(engine, spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, MatmulTest, kMachines, describe);

// Bits, not numbers: the sum has one order, whatever the threads.
TEST(MatmulDeterminismTest, IsTheSameAtEachRunAndThreadCount) {
  MatmulSpec spec{1, 301, 203, 1000};
  spec.a = place(ElementType::f32, spec.m, spec.k, Lie::Plain);
  spec.b = place(ElementType::f32, spec.k, spec.n, Lie::Plain);
  spec.c = place(ElementType::f32, spec.m, spec.n, Lie::Plain);
  test::Values a(ElementType::f32, spec.m * spec.k, 1), b(ElementType::f32, spec.k * spec.n, 2);
  std::vector<uint8_t> first;
  for (int threads : {1, 2, 3, 4})
    for (int repeat = 0; repeat < 3; ++repeat) {
      CpuEngine engine{Threads(threads)};
      test::Values c(ElementType::f32, spec.m * spec.n, 3);
      engine.planMatmul(spec)->run(a.data(), b.data(), c.data(), nullptr);
      if (first.empty())
        first = c.bytes();
      ASSERT_EQ(c.bytes(), first) << threads << " threads, repeat " << repeat;
    }
}

// Few rows read b where it lies along the sum, and pack it elsewhere: how it lies changes no bit.
TEST(MatmulDeterminismTest, IsTheSameForFewRowsHoweverTheRightOperandLies) {
  for (InstructionSet set : {InstructionSet::x86_64, InstructionSet::x86_64_v3, InstructionSet::x86_64_v4})
    for (int64_t k : {40, 384, 1001})
      for (int64_t n : {5, 64, 203})
        for (int64_t m : {1}) { // panels serve more
          CpuEngine engine(Threads(2), set);
          MatmulSpec along{1, m, n, k}, across;
          along.a = {ElementType::f32, {0, k, 1}};
          along.c = {ElementType::f32, {0, n, 1}};
          along.hasBias = true;
          across = along;
          along.b = {ElementType::f32, {0, 1, k}};
          across.b = {ElementType::f32, {0, n, 1}};
          std::vector<float> a(m * k), b(k * n), turned(k * n), bias(n), c(m * n), expected(m * n);
          std::mt19937 random(uint32_t(k * n + m));
          std::uniform_real_distribution<float> draw(-1, 1);
          for (auto *values : {&a, &b, &bias})
            std::ranges::generate(*values, [&] { return draw(random); });
          for (int64_t l = 0; l < k; ++l)
            for (int64_t j = 0; j < n; ++j)
              turned[l * n + j] = b[j * k + l];
          auto plan = engine.planMatmul(along);
          EXPECT_TRUE(plan->describe().starts_with("rows")) << plan->describe();
          plan->run(a.data(), b.data(), c.data(), bias.data());
          engine.planMatmul(across)->run(a.data(), turned.data(), expected.data(), bias.data());
          ASSERT_EQ(c, expected) << m << "x" << k << "x" << n;
        }
}

TEST(MatmulPlanTest, EqualSpecsShareAPlan) {
  CpuEngine engine;
  MatmulSpec spec{
      1, 8, 8, 8, {ElementType::f32, {64, 8, 1}}, {ElementType::f32, {64, 8, 1}}, {ElementType::f32, {64, 8, 1}}};
  auto plan = engine.planMatmul(spec);
  EXPECT_EQ(engine.planMatmul(spec), plan);
  spec.accumulate = true;
  EXPECT_NE(engine.planMatmul(spec), plan);
}

// Plans share scratch: runs from several threads must not mix it up.
TEST(MatmulPlanTest, RunsFromSeveralThreadsWaitForEachOther) {
  CpuEngine engine(Threads(1));
  auto runOften = [&engine](int64_t n) {
    MatmulSpec spec{
        1, 70, n, 90, {ElementType::f32, {0, 90, 1}}, {ElementType::f32, {0, n, 1}}, {ElementType::f32, {0, n, 1}}};
    for (int repeat = 0; repeat < 20; ++repeat)
      check(engine, spec);
  };
  std::thread other(runOften, 50);
  runOften(80);
  other.join();
}

// A NaN must reach the loss, where the session sees it.
TEST(MatmulPlanTest, PassesNaNOn) {
  CpuEngine engine;
  MatmulSpec spec{
      1, 2, 2, 2, {ElementType::f32, {4, 2, 1}}, {ElementType::f32, {4, 2, 1}}, {ElementType::f32, {4, 2, 1}}};
  float a[] = {NAN, 1, 1, 1}, b[] = {1, 1, 1, 1}, c[4];
  engine.planMatmul(spec)->run(a, b, c, nullptr);
  EXPECT_TRUE(std::isnan(c[0]) && std::isnan(c[1]));
  EXPECT_EQ(c[2], 2);
}

TEST(MatmulSpecTest, SaysWhatCannotRun) {
  MatmulSpec good{
      2, 3, 4, 5, {ElementType::f32, {15, 5, 1}}, {ElementType::f32, {20, 4, 1}}, {ElementType::f32, {12, 4, 1}}};
  EXPECT_EQ(good.findProblem(), "");
  auto problemOf = [&](auto change) {
    MatmulSpec spec = good;
    change(spec);
    return spec.findProblem();
  };
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.m = -1; }), "m is -1, the least is 0");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.m = s.k = int64_t(1) << 30; }),
            "batch 2 * m 1073741824 * k 1073741824 are more than 2^46 elements");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.a.element = ElementType::bf16; }),
            "operands are bf16 and f32, they must be one float type; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.a.element = s.b.element = ElementType::i8; }),
            "operands are i8 and i8, they must be one float type; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.c.element = ElementType::f16; }),
            "result is f16, it must be f32; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.a.element = s.b.element = ElementType::f64; }),
            "result is f32, it must be f64; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.hasBias = true, s.bias = ElementType::f64; }),
            "bias is f64, it must be f32; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.hasBias = true, s.bias = ElementType::i1; }),
            "bias is i1, it must be f32; insert a cast");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.c.strides[2] = 2; }), "column stride of the result is 2, it must be 1");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.c.strides[1] = 3; }),
            "row stride of the result is 3, rows of 4 elements overlap");
  EXPECT_EQ(problemOf([](MatmulSpec &s) { s.c.strides[0] = 0; }),
            "batch stride of the result is 0, its matrices overlap");
}
