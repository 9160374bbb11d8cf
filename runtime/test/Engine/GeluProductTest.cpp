//===- GeluProductTest.cpp - products with gelu behind them ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Values.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace segue;
using namespace segue::test;

static double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

/// A call of [rows, depth] and [depth, width].
static LibraryCallSpec callOf(ElementType type, int64_t rows, int64_t depth, int64_t width, bool transposed,
                              bool hasBias, size_t results) {
  LibraryCallSpec spec{.operation = "dot_gelu", .reads = {}, .writes = {}, .numbers = {transposed}};
  spec.reads = {{type, {rows, depth}}, {type, transposed ? std::vector{width, depth} : std::vector{depth, width}}};
  if (hasBias)
    spec.reads.push_back({type, {width}});
  spec.writes.assign(results, {type, {rows, width}});
  return spec;
}

// Against sums in double, in each type, for each instruction set, threads, and odd numbers of elements.
TEST(GeluProduct, AgreesWithSumsInDouble) {
  for (InstructionSet most : {InstructionSet::x86_64, InstructionSet::x86_64_v3, InstructionSet::x86_64_v4})
    for (int threads : {1, 3})
      for (ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16})
        for (bool transposed : {false, true})
          for (bool hasMore : {false, true}) { // a bias, and the sums
            CpuEngine engine(Threads(threads), most);
            constexpr int64_t rows = 67, depth = 21, width = 53;
            LibraryCallSpec spec = callOf(type, rows, depth, width, transposed, hasMore, hasMore ? 2 : 1);
            ASSERT_EQ(findLibraryOperation(spec.operation)->findProblem(spec), "");
            Values lhs(type, rows * depth, 1), rhs(type, depth * width, 2), bias(type, width, 3),
                result(type, rows * width, 4), sums(type, rows * width, 5);
            std::vector<void *> tensors = {lhs.data(), rhs.data(), bias.data(), result.data(), sums.data()};
            if (!hasMore)
              tensors = {lhs.data(), rhs.data(), result.data()};
            engine.planLibraryCall(spec)->run(tensors);
            for (int64_t at = 0; at < rows * width; ++at) {
              int64_t i = at / width, j = at % width;
              double sum = hasMore ? bias.at(j) : 0;
              for (int64_t l = 0; l < depth; ++l)
                sum += lhs.at(i * depth + l) * rhs.at(transposed ? j * depth + l : l * width + j);
              double near = 2 * tolerance(type) * (1 + std::fabs(sum));
              ASSERT_NEAR(result.at(at), gelu(sum), near) << name(type) << " at " << at;
              ASSERT_TRUE(!hasMore || std::fabs(sums.at(at) - sum) <= near) << at;
            }
          }
}

// At the ends of the floats as gelu by a kernel: zero far below, x far above, and NaN where PyTorch has NaN.
TEST(GeluProduct, HasTheEndsOfTheFloats) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float xs[] = {0.0f,   -0.0f, -3.0f, 3.0f,     -20.0f,    20.0f, -1e20f,
                1e20f, -1e38f, 1e38f, infinity, -infinity, NAN,   1e-30f};
  constexpr int64_t count = std::size(xs);
  for (InstructionSet most : {InstructionSet::x86_64, InstructionSet::x86_64_v3, InstructionSet::x86_64_v4}) {
    CpuEngine engine(Threads(1), most);
    float one = 1, results[count];
    std::vector<void *> tensors = {xs, &one, results};
    engine.planLibraryCall(callOf(ElementType::f32, count, 1, 1, false, false, 1))->run(tensors);
    for (int64_t i = 0; i < count; ++i) {
      double wanted = xs[i] == -infinity ? NAN : xs[i] == infinity ? infinity : gelu(xs[i]);
      EXPECT_TRUE(std::isnan(wanted) ? std::isnan(results[i])
                                     : results[i] == wanted ||
                                           std::fabs(results[i] - wanted) <= 1e-6 * std::fabs(wanted) + 1e-30)
          << xs[i] << " gives " << results[i] << ", not " << wanted;
    }
  }
}

// What a file may hold, and no plan may be made of.
TEST(GeluProduct, SaysWhatIsWrong) {
  auto problem = [](auto change) {
    LibraryCallSpec spec = callOf(ElementType::f32, 4, 6, 8, false, true, 2);
    change(spec);
    return findLibraryOperation(spec.operation)->findProblem(spec);
  };
  using Spec = LibraryCallSpec;
  EXPECT_EQ(problem([](Spec &) {}), "");
  EXPECT_EQ(problem([](Spec &spec) { spec.writes.clear(); }),
            "3 operands and 0 results; it takes two or three and gives one or two");
  EXPECT_EQ(problem([](Spec &spec) { spec.numbers = {2}; }), "1 numbers; it takes one, 0 or 1");
  EXPECT_EQ(problem([](Spec &spec) { spec.reads[1].element = ElementType::bf16; }),
            "tensors of f32 and bf16; all are f32, bf16 or f16, and alike");
  EXPECT_EQ(problem([](Spec &spec) { spec.reads[1].shape = {6}; }),
            "tensors of 4x6 and 6, which have other dimensions than it takes");
  EXPECT_EQ(problem([](Spec &spec) { spec.reads[0].shape = {}; }),
            "tensors of  and 6x8, which have other dimensions than it takes");
  for (auto change : {+[](Spec &spec) { spec.numbers = {1}; }, +[](Spec &spec) { spec.reads[2].shape = {7}; },
                      +[](Spec &spec) { spec.writes[1].shape = {4, 9}; },
                      +[](Spec &spec) { spec.reads[0].shape = {4, 7}; }})
    EXPECT_TRUE(problem(change).ends_with(" do not fit together")) << problem(change);
}
