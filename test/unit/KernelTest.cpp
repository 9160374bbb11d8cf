//===- KernelTest.cpp - kernels against the reference interpreter ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each case is a function of segue ops; its kernels must give what the
// interpreter gives, for both instruction sets, and the same bits however the
// range is split and whichever result takes the place of an operand, of those
// that may. Elementwise ops are found in the dialect; another op, or a new shape of
// loop, gets a case here.
//
//===----------------------------------------------------------------------===//

#include "KernelHarness.h"
#include "Sample.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <set>

using namespace segue;
using namespace segue::test;
using llvm::StringRef;

/// Replaces $0, $1, ... in an MLIR text.
template <typename... Args> static std::string fill(std::string text, Args... args) {
  std::vector<std::string> values = {llvm::formatv("{0}", args).str()...};
  for (size_t at = values.size(); at-- > 0;) {
    std::string key = "$" + std::to_string(at);
    for (size_t pos; (pos = text.find(key)) != std::string::npos;)
      text.replace(pos, key.size(), values[at]);
  }
  return text;
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

static Tolerance toleranceOf(const std::string &type) {
  return type.find("bf16") != std::string::npos  ? Tolerance{1e-2, 1e-2}
         : type.find("f64") != std::string::npos ? Tolerance{1e-14, 1e-14}
                                                 : Tolerance{};
}

// Every op that takes one value and nothing else, and so one that is added; half of the numbers are negative, where logarithms
// and roots are none.
TEST(Kernel, UnaryOps) {
  for (std::string type : {"tensor<f32>", "tensor<1xf32>", "tensor<37xf32>", "tensor<3x5x7x2x2xf32>",
                           "tensor<65x3xbf16>", "tensor<21xf64>", "tensor<9x4xi32>", "tensor<11xi1>"})
    for (const std::string &op : elementwiseOps(1, type))
      expectParity(fill("func.func @f(%x: $1) -> $1 {\n %y = \"$0\"(%x) : ($1) -> $1\n return %y : $1\n}", op, type),
                   toleranceOf(type));
  for (std::string kind : {"tanh", "erf"})
    for (std::string type : {"tensor<37xf32>", "tensor<65x3xbf16>"})
      expectParity(fill("func.func @f(%x: $1) -> $1 {\n %y = segue.gelu $0 %x : $1\n return %y : $1\n}", kind, type),
                   toleranceOf(type));
}

TEST(Kernel, BinaryOps) {
  for (std::string type : {"tensor<f32>", "tensor<130xf32>", "tensor<3x11xbf16>", "tensor<21xf64>", "tensor<9x4xi32>",
                           "tensor<7xi64>", "tensor<11xi1>"})
    for (const std::string &op : elementwiseOps(2, type))
      expectParity(fill("func.func @f(%x: $1, %z: $1) -> $1 {\n %y = \"$0\"(%x, %z) : ($1, $1) -> $1\n return %y : $1\n}", op, type),
                   toleranceOf(type));
}

// An op that takes other things than values of one type has a case of its own in this file.
TEST(Kernel, EveryOpOfKernelsHasACase) {
  std::set<std::string> covered;
  for (auto [operands, type] : {std::pair(1u, "tensor<4xf32>"), {1u, "tensor<4xi1>"}, {2u, "tensor<4xf32>"}, {2u, "tensor<4xi32>"}}) {
    std::vector<std::string> names = elementwiseOps(operands, type);
    covered.insert(names.begin(), names.end());
  }
  EXPECT_GE(covered.size(), 30u) << "ops are looked for in a wrong way";
  std::ifstream file(SEGUE_KERNEL_CASES);
  std::string cases{std::istreambuf_iterator<char>(file), {}};
  Kernels any("func.func @f(%x: tensor<1xf32>) -> tensor<1xf32> {\n %y = segue.exp %x : tensor<1xf32>\n return %y : tensor<1xf32>\n}");
  for (mlir::RegisteredOperationName op : any.getContext().getRegisteredOperations()) {
    if (!op.hasInterface<ScalarOpInterface>() && !op.hasInterface<ExpandableOpInterface>() && !op.hasInterface<KernelOpInterface>())
      continue;
    std::string name = op.getStringRef().str(), word = '"' + op.stripDialect().str() + '"';
    bool isThere = covered.count(name) || cases.find(name + " ") != std::string::npos || cases.find(word) != std::string::npos;
    EXPECT_TRUE(isThere) << name << " is part of kernels, and no test compares its kernel with the interpreter: add a case to "
                         << "test/unit/KernelTest.cpp, for each shape of loop and each direction";
  }
}

TEST(Kernel, CompareSelectAndCast) {
  for (std::string predicate : {"eq", "ne", "lt", "le", "gt", "ge"})
    expectParity(fill(R"(func.func @f(%x: tensor<41xi32>, %z: tensor<41xi32>, %c: tensor<41xi1>)
        -> (tensor<41xi1>, tensor<41xf32>, tensor<41xi64>, tensor<41xbf16>) {
      %p = segue.compare $0 %x, %z : tensor<41xi32> -> tensor<41xi1>
      %q = segue.and %p, %c : tensor<41xi1>
      %n = segue.not %q : tensor<41xi1>
      %f = segue.cast %x : tensor<41xi32> -> tensor<41xf32>
      %g = segue.cast %z : tensor<41xi32> -> tensor<41xf32>
      %s = segue.select %n, %f, %g : tensor<41xi1>, tensor<41xf32>
      %l = segue.cast %s : tensor<41xf32> -> tensor<41xi64>
      %h = segue.cast %s : tensor<41xf32> -> tensor<41xbf16>
      return %n, %s, %l, %h : tensor<41xi1>, tensor<41xf32>, tensor<41xi64>, tensor<41xbf16>
    })", predicate));
}

// Beyond its ends a cast to i8 gives the end, between them it rounds toward zero, and NaN gives 0.
TEST(Kernel, CastsToEightBits) {
  Kernels kernels(R"(func.func @f(%x: tensor<12xf32>) -> tensor<12xi8> {
    %i = segue.cast %x : tensor<12xf32> -> tensor<12xi8>
    return %i : tensor<12xi8>
  })");
  ASSERT_TRUE(kernels.ok());
  HostTensor x = HostTensor::filled(kernels.argumentTypes()[0]);
  double values[] = {0.9, -0.9, 127, 127.9, 128, 3e9, -128, -128.9, -129, -3e38, INFINITY, NAN};
  double expected[] = {0, 0, 127, 127, 127, 127, -128, -128, -128, -128, 127, 0};
  for (int at = 0; at < 12; ++at)
    x.set(at, values[at]);
  expectParity(kernels, {x}, {0, 0});
  HostTensor found = kernels.run({x}, "v3", false)[0];
  for (int at = 0; at < 12; ++at)
    EXPECT_EQ(found.at(at), expected[at]) << values[at];
}

/// Functions over their whole range, against libm in double.
TEST(Kernel, TranscendentalsOverTheirRange) {
  struct Case {
    std::string op;
    double low, high, absolute, relative;
    double (*reference)(double);
  };
  auto rsqrt = [](double x) { return 1 / std::sqrt(x); };
  std::vector<Case> cases = {
      {"exp", -87, 88.7, 0, 3e-7, std::exp},      {"expm1", -20, 20, 0, 4e-7, std::expm1},
      {"expm1", 80, 88.7, 0, 4e-7, std::expm1},   {"expm1", 1e-30, 1, 0, 4e-7, std::expm1},
      {"log", 1e-37, 3e38, 0, 3e-7, std::log},    {"log", 0.5, 2, 1e-7, 3e-7, std::log},
      {"log1p", 1e-37, 3e38, 0, 3e-7, std::log1p}, {"log1p", -0.999, 1, 1e-37, 3e-7, std::log1p},
      {"tanh", -12, 12, 0, 4e-7, std::tanh},      {"tanh", 1e-37, 1, 0, 4e-7, std::tanh},
      {"erf", -5, 5, 1e-37, 4e-7, std::erf},      {"rsqrt", 1e-37, 1e38, 0, 3e-7, rsqrt},
      {"sin", -1e4, 1e4, 0, 3e-7, std::sin},      {"cos", -1e4, 1e4, 0, 3e-7, std::cos},
      {"sin", 1e-37, 3e38, 0, 3e-7, std::sin},    {"cos", 1e-37, 3e38, 0, 3e-7, std::cos},
  };
  constexpr int64_t count = 20000;
  for (const Case &entry : cases) {
    Kernels kernels(fill("func.func @f(%x: tensor<$1xf32>) -> tensor<$1xf32> {\n %y = segue.$0 %x : tensor<$1xf32>\n"
                         " return %y : tensor<$1xf32>\n}", entry.op, count));
    ASSERT_TRUE(kernels.ok());
    HostTensor x = HostTensor::filled(kernels.argumentTypes()[0]);
    bool geometric = entry.low > 0 && entry.high / entry.low > 1e3;
    for (int64_t at = 0; at < count; ++at) {
      double t = static_cast<double>(at) / (count - 1);
      x.set(at, geometric ? entry.low * std::pow(entry.high / entry.low, t) : entry.low + (entry.high - entry.low) * t);
    }
    for (StringRef isa : instructionSets()) {
      HostTensor y = kernels.run({x}, isa, false)[0];
      double worst = 0, where = 0;
      for (int64_t at = 0; at < count; ++at) {
        double expected = entry.reference(x.at(at));
        double error = std::abs(y.at(at) - expected) / (entry.absolute + entry.relative * std::abs(expected));
        if (!(error <= worst))
          worst = error, where = x.at(at);
      }
      EXPECT_LE(worst, 1) << entry.op << " " << isa.str() << ": " << worst << " times its tolerance at " << where;
    }
  }
}

/// Returns the f32 that is so many after `x`, or before.
static float stepsFrom(float x, int steps) {
  for (int i = 0; i < std::abs(steps); ++i)
    x = std::nextafter(x, steps < 0 ? -INFINITY : INFINITY);
  return x;
}

// One f32 more, and the exponential is infinite; those before are finite, and what is made of them. An exponent that is
// one too large makes a NaN, of a single number of all.
TEST(Kernel, LastExponentialsBeforeInfinity) {
  Kernels kernels(R"(func.func @f(%x: tensor<128xf32>) -> (tensor<128xf32>, tensor<128xf32>, tensor<128xf32>, tensor<128xf32>) {
    %e = segue.exp %x : tensor<128xf32>
    %m = segue.expm1 %x : tensor<128xf32>
    %s = segue.sigmoid %x : tensor<128xf32>
    %t = segue.tanh %x : tensor<128xf32>
    return %e, %m, %s, %t : tensor<128xf32>, tensor<128xf32>, tensor<128xf32>, tensor<128xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  HostTensor x = HostTensor::filled(kernels.argumentTypes()[0]);
  float last = std::log(std::numeric_limits<float>::max());
  for (float end : {last, -last, last / 2}) {
    for (int at = 0; at < 128; ++at)
      x.set(at, stepsFrom(end, at - 64));
    for (StringRef isa : instructionSets()) {
      auto found = kernels.run({x}, isa, false);
      for (int at = 0; at < 128; ++at) {
        auto given = float(x.at(at));
        double expected[] = {std::exp(given), std::expm1(given), 1 / (1 + std::exp(-double(given))), std::tanh(given)};
        for (size_t result = 0; result < 4; ++result) {
          double value = found[result].at(at), tolerance = 1e-37 + 4e-7 * std::abs(expected[result]);
          EXPECT_TRUE(value == expected[result] || std::abs(value - expected[result]) <= tolerance)
              << isa.str() << ", result " << result << " of " << given << ": " << value << ", " << expected[result];
        }
      }
    }
  }
}

TEST(Kernel, LastPowersBeforeInfinity) {
  Kernels kernels(R"(func.func @f(%x: tensor<4096xf32>, %z: tensor<4096xf32>) -> tensor<4096xf32> {
    %y = segue.pow %x, %z : tensor<4096xf32>
    return %y : tensor<4096xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  HostTensor x = HostTensor::filled(kernels.argumentTypes()[0]), y = HostTensor::filled(kernels.argumentTypes()[1]);
  constexpr double largest = std::numeric_limits<float>::max();
  auto middle = float(largest * std::exp(-std::log(largest) * 0x1p-23)); // whose power of `exponent` is the largest
  float exponent = stepsFrom(1, 1);
  for (int at = 0; at < 4096; ++at) {
    x.set(at, stepsFrom(middle, at - 2048));
    y.set(at, exponent);
  }
  for (StringRef isa : instructionSets()) {
    HostTensor found = kernels.run({x, y}, isa, false)[0];
    for (int at = 0; at < 4096; ++at) {
      double expected = std::pow(x.at(at), double(exponent)), value = found.at(at);
      bool isNear = std::abs(value - expected) <= 4e-6 * expected, isOver = value == INFINITY && expected > largest * (1 - 4e-6);
      EXPECT_TRUE((isNear && expected < largest * (1 + 4e-6)) || isOver) << isa.str() << " " << x.at(at) << ": " << value;
    }
  }
}

TEST(Kernel, SpecialValues) {
  Kernels kernels(R"(func.func @f(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>,
      tensor<8xf32>, tensor<8xi32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>,
      tensor<8xf32>) {
    %e = segue.exp %x : tensor<8xf32>
    %t = segue.tanh %x : tensor<8xf32>
    %l = segue.log %x : tensor<8xf32>
    %s = segue.sigmoid %x : tensor<8xf32>
    %r = segue.erf %x : tensor<8xf32>
    %i = segue.cast %x : tensor<8xf32> -> tensor<8xi32>
    %m = segue.expm1 %x : tensor<8xf32>
    %p = segue.log1p %x : tensor<8xf32>
    %o = segue.sin %x : tensor<8xf32>
    %c = segue.cos %x : tensor<8xf32>
    %f = segue.floor %x : tensor<8xf32>
    %n = segue.sign %x : tensor<8xf32>
    return %e, %t, %l, %s, %r, %i, %m, %p, %o, %c, %f, %n : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>,
      tensor<8xf32>, tensor<8xi32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  HostTensor x = HostTensor::filled(kernels.argumentTypes()[0]);
  double inf = INFINITY;
  double values[] = {0, -inf, inf, NAN, -1000.5, 1000, -88, 3e9};
  for (int at = 0; at < 8; ++at)
    x.set(at, values[at]);
  expectParity(kernels, {x}, {1e-37, 2e-6});
  HostTensor exp = kernels.run({x}, "v3", false)[0];
  EXPECT_EQ(exp.at(1), 0);
  EXPECT_EQ(exp.at(4), 0);
}

TEST(Kernel, PowersOfConstantAndOfTensor) {
  for (std::string exponent : {"2.0", "3.0", "0.5", "-1.0", "-0.5", "1.7"})
    expectParity(fill(R"(func.func @f(%x: tensor<50xf32>) -> tensor<50xf32> {
      %a = segue.abs %x : tensor<50xf32>
      %k = segue.constant dense<0.1> : tensor<50xf32>
      %b = segue.add %a, %k : tensor<50xf32>
      %c = segue.constant dense<$0> : tensor<50xf32>
      %y = segue.pow %b, %c : tensor<50xf32>
      return %y : tensor<50xf32>
    })", exponent));
  expectParity(R"(func.func @f(%x: tensor<90xf32>, %z: tensor<90xf32>) -> tensor<90xf32> {
    %k = segue.constant dense<30.0> : tensor<90xf32>
    %c = segue.mul %z, %k : tensor<90xf32>
    %a = segue.abs %x : tensor<90xf32>
    %y = segue.pow %a, %c : tensor<90xf32>
    return %y : tensor<90xf32>
  })", {1e-30, 4e-6});
}

//===----------------------------------------------------------------------===//
// Shape ops inside of kernels
//===----------------------------------------------------------------------===//

TEST(Kernel, ViewsAreFoldedIntoReads) {
  expectParity(R"(func.func @f(%x: tensor<3x5x4x6xf32>, %b: tensor<6xf32>, %r: tensor<3x5xf32>) -> tensor<3x4x5x6xf32> {
    %t = segue.transpose %x [0, 2, 1, 3] : tensor<3x5x4x6xf32> -> tensor<3x4x5x6xf32>
    %c = segue.broadcast %b dims [3] : tensor<6xf32> -> tensor<3x4x5x6xf32>
    %d = segue.broadcast %r dims [0, 2] : tensor<3x5xf32> -> tensor<3x4x5x6xf32>
    %a = segue.add %t, %c : tensor<3x4x5x6xf32>
    %y = segue.mul %a, %d : tensor<3x4x5x6xf32>
    return %y : tensor<3x4x5x6xf32>
  })");
  expectParity(R"(func.func @f(%x: tensor<7x9xf32>) -> tensor<9x7xf32> {
    %e = segue.exp %x : tensor<7x9xf32>
    %t = segue.transpose %e [1, 0] : tensor<7x9xf32> -> tensor<9x7xf32>
    %y = segue.neg %t : tensor<9x7xf32>
    return %y : tensor<9x7xf32>
  })");
  // No common refinement of 6x4 and 3x8: division and remainder.
  expectParity(R"(func.func @f(%x: tensor<6x4xf32>, %b: tensor<8xf32>) -> tensor<3x8xf32> {
    %t = segue.transpose %x [1, 0] : tensor<6x4xf32> -> tensor<4x6xf32>
    %r = segue.reshape %t : tensor<4x6xf32> -> tensor<3x8xf32>
    %c = segue.broadcast %b dims [1] : tensor<8xf32> -> tensor<3x8xf32>
    %y = segue.add %r, %c : tensor<3x8xf32>
    return %y : tensor<3x8xf32>
  })");
  expectParity(R"(func.func @f(%x: tensor<5x12xf32>) -> tensor<3x4xf32> {
    %s = segue.slice %x [1, 2] to [4, 10] by [1, 2] : tensor<5x12xf32> -> tensor<3x4xf32>
    %y = segue.neg %s : tensor<3x4xf32>
    return %y : tensor<3x4xf32>
  })");
}

TEST(Kernel, ConcatAndPad) {
  for (std::string dims : {"0", "1", "2"}) {
    std::string shape = dims == "0" ? "6x5x7" : dims == "1" ? "3x10x7" : "3x5x14";
    expectParity(fill(R"(func.func @f(%x: tensor<3x5x7xf32>, %z: tensor<3x5x7xf32>) -> tensor<$1xf32> {
      %n = segue.neg %x : tensor<3x5x7xf32>
      %c = segue.concat %n, %z dim $0 : tensor<3x5x7xf32>, tensor<3x5x7xf32> -> tensor<$1xf32>
      %y = segue.exp %c : tensor<$1xf32>
      return %y : tensor<$1xf32>
    })", dims, shape));
  }
  expectParity(R"(func.func @f(%x: tensor<4x6xf32>) -> tensor<7x15xf32> {
    %p = segue.pad %x low [1, 0] high [2, 4] interior [0, 1] value 2.5 : f32 : tensor<4x6xf32> -> tensor<7x15xf32>
    %y = segue.neg %p : tensor<7x15xf32>
    return %y : tensor<7x15xf32>
  })");
  // Rotary embedding: the halves change places.
  expectParity(R"(func.func @f(%x: tensor<2x3x5x8xf32>, %c: tensor<5x8xf32>, %s: tensor<5x8xf32>) -> tensor<2x3x5x8xf32> {
    %a = segue.slice %x [0, 0, 0, 0] to [2, 3, 5, 4] by [1, 1, 1, 1] : tensor<2x3x5x8xf32> -> tensor<2x3x5x4xf32>
    %b = segue.slice %x [0, 0, 0, 4] to [2, 3, 5, 8] by [1, 1, 1, 1] : tensor<2x3x5x8xf32> -> tensor<2x3x5x4xf32>
    %n = segue.neg %b : tensor<2x3x5x4xf32>
    %h = segue.concat %n, %a dim 3 : tensor<2x3x5x4xf32>, tensor<2x3x5x4xf32> -> tensor<2x3x5x8xf32>
    %cc = segue.broadcast %c dims [2, 3] : tensor<5x8xf32> -> tensor<2x3x5x8xf32>
    %ss = segue.broadcast %s dims [2, 3] : tensor<5x8xf32> -> tensor<2x3x5x8xf32>
    %l = segue.mul %x, %cc : tensor<2x3x5x8xf32>
    %r = segue.mul %h, %ss : tensor<2x3x5x8xf32>
    %y = segue.add %l, %r : tensor<2x3x5x8xf32>
    return %y : tensor<2x3x5x8xf32>
  })");
}

TEST(Kernel, IotaAndRandom) {
  expectParity(R"(func.func @f(%x: tensor<5x6x3xf32>) -> tensor<5x6x3xf32> {
    %i = segue.iota dim 1 : tensor<5x6x3xi32>
    %c = segue.cast %i : tensor<5x6x3xi32> -> tensor<5x6x3xf32>
    %y = segue.add %x, %c : tensor<5x6x3xf32>
    return %y : tensor<5x6x3xf32>
  })");
  for (std::string shape : {"3", "64x33", "8x4x2"})
    expectParity(fill(R"(func.func @f(%seed: tensor<i64>, %step: tensor<i64>) -> tensor<$0xf32> {
      %y = segue.random %seed, %step id 77 : tensor<$0xf32>
      return %y : tensor<$0xf32>
    })", shape), {0, 0});
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

TEST(Kernel, ReduceAlongAllSetsOfDimensions) {
  struct Case {
    std::string from, dims, to;
  };
  uint64_t number = 0;
  for (const Case &entry : std::vector<Case>{{"13", "0", ""}, {"5x17", "1", "5x"}, {"5x17", "0", "17x"},
                                             {"5x17", "0, 1", ""}, {"4x6x9", "1", "4x9x"}, {"4x6x9", "0, 2", "6x"},
                                             {"2x3x4x5", "1, 3", "2x4x"}, {"1x7", "0", "7x"}, {"300x3", "0", "3x"},
                                             {"512x40", "0", "40x"}, {"97x3", "0, 1", ""}, {"300x100", "0, 1", ""},
                                             {"2x64x5x3", "0, 1", "5x3x"}, {"2x128x3", "1", "2x3x"}})
    for (std::string kind : {"sum", "max", "min", "mean"})
      for (std::string element : {"f32", "bf16", "i32"}) {
        if ((kind == "mean" && element == "i32") || !isDrawn(number++, 2))
          continue;
        expectParity(fill(R"(func.func @f(%x: tensor<$0x$4>) -> tensor<$2$4> {
          %y = segue.reduce $3 %x dims [$1] : tensor<$0x$4> -> tensor<$2$4>
          return %y : tensor<$2$4>
        })", entry.from, entry.dims, entry.to, kind, element),
                     element == "bf16" ? Tolerance{1e-2, 1e-2} : Tolerance{1e-4, 1e-5});
      }
}

TEST(Kernel, Normalizations) {
  for (std::string shape : {"3x8", "2x5x33", "1x1", "70x257"}) {
    std::string rows = shape.substr(0, shape.rfind('x')), cols = shape.substr(shape.rfind('x') + 1);
    expectParity(fill(R"(func.func @f(%x: tensor<$0xf32>, %z: tensor<$0xf32>, %g: tensor<$2xf32>, %b: tensor<$2xf32>)
        -> (tensor<$0xf32>, tensor<$0xf32>, tensor<$1xf32>, tensor<$1xf32>) {
      %s = segue.add %x, %z : tensor<$0xf32>
      %y, %m, %r = segue.layer_norm %s gamma %g : tensor<$2xf32> beta %b : tensor<$2xf32> eps 1.0e-5 : tensor<$0xf32> -> tensor<$1xf32>
      return %s, %y, %m, %r : tensor<$0xf32>, tensor<$0xf32>, tensor<$1xf32>, tensor<$1xf32>
    })", shape, rows, cols), {1e-5, 1e-5});
    expectParity(fill(R"(func.func @f(%x: tensor<$0xbf16>, %g: tensor<$2xbf16>) -> (tensor<$0xbf16>, tensor<$1xf32>) {
      %y, %r = segue.rms_norm %x gamma %g : tensor<$2xbf16> eps 1.0e-5 : tensor<$0xbf16> -> tensor<$1xf32>
      return %y, %r : tensor<$0xbf16>, tensor<$1xf32>
    })", shape, rows, cols), {2e-2, 2e-2});
  }
}

TEST(Kernel, SoftmaxAlongEveryDimension) {
  for (std::string op : {"softmax", "log_softmax"})
    for (std::string dim : {"0", "1", "2"})
      expectParity(fill(R"(func.func @f(%x: tensor<4x5x19xf32>) -> tensor<4x5x19xf32> {
        %y = segue.$0 %x dim $1 : tensor<4x5x19xf32>
        return %y : tensor<4x5x19xf32>
      })", op, dim));
  // A row too long for a row buffer.
  expectParity(R"(func.func @f(%x: tensor<2x20000xf32>) -> tensor<2x20000xf32> {
    %y = segue.softmax %x dim 1 : tensor<2x20000xf32>
    return %y : tensor<2x20000xf32>
  })");
}

TEST(Kernel, MaskedSoftmax) {
  Kernels kernels(R"(func.func @f(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %y = segue.softmax %x dim 1 : tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  std::vector<HostTensor> arguments = randomArguments(kernels);
  for (int at : {1, 2, 5, 6, 7, 8, 9, 10})
    arguments[0].set(at, -INFINITY);
  arguments[0].set(20, NAN);
  expectParity(kernels, arguments);
}

TEST(Kernel, CrossEntropy) {
  Kernels kernels(R"(func.func @f(%x: tensor<9x4xf32>, %t: tensor<9xi64>) -> (tensor<9xf32>, tensor<9xf32>, tensor<f32>) {
    %l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<9x4xf32>, tensor<9xi64> -> tensor<9xf32>
    %m = segue.reduce mean %l dims [0] : tensor<9xf32> -> tensor<f32>
    return %l, %s, %m : tensor<9xf32>, tensor<9xf32>, tensor<f32>
  })");
  ASSERT_TRUE(kernels.ok());
  std::vector<HostTensor> arguments = randomArguments(kernels);
  arguments[1].set(3, -100);
  expectParity(kernels, arguments);
  // A target that is no class: the kernel says which argument holds it.
  for (double bad : {4.0, -1.0, 1e15}) {
    arguments[1].set(5, bad);
    kernels.run(arguments, "v3", false);
    EXPECT_EQ(kernels.status(), 2) << bad;
  }
}

TEST(Kernel, ColumnSumsInsideOfRowKernels) {
  Kernels kernels(R"(func.func @f(%dy: tensor<8x32x24xf32>, %x: tensor<8x32x24xf32>, %g: tensor<24xf32>, %m: tensor<8x32xf32>)
      -> (tensor<8x32x24xf32>, tensor<24xf32>, tensor<24xf32>) {
    %mm = segue.broadcast %m dims [0, 1] : tensor<8x32xf32> -> tensor<8x32x24xf32>
    %h = segue.sub %x, %mm : tensor<8x32x24xf32>
    %gg = segue.broadcast %g dims [2] : tensor<24xf32> -> tensor<8x32x24xf32>
    %d = segue.mul %dy, %gg : tensor<8x32x24xf32>
    %p = segue.mul %d, %h : tensor<8x32x24xf32>
    %s = segue.reduce mean %p dims [2] : tensor<8x32x24xf32> -> tensor<8x32xf32>
    %ss = segue.broadcast %s dims [0, 1] : tensor<8x32xf32> -> tensor<8x32x24xf32>
    %dx = segue.sub %d, %ss : tensor<8x32x24xf32>
    %q = segue.mul %dy, %h : tensor<8x32x24xf32>
    %dg = segue.reduce sum %q dims [0, 1] : tensor<8x32x24xf32> -> tensor<24xf32>
    %db = segue.reduce sum %dy dims [0, 1] : tensor<8x32x24xf32> -> tensor<24xf32>
    return %dx, %dg, %db : tensor<8x32x24xf32>, tensor<24xf32>, tensor<24xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  expectParity(kernels, randomArguments(kernels), {2e-5, 2e-5});
  // One kernel for the rows with both sums of chunks, one that adds the chunks.
  EXPECT_LE(kernels.launches(), 3u);
}

//===----------------------------------------------------------------------===//
// Indexing
//===----------------------------------------------------------------------===//

TEST(Kernel, CumulativeSums) {
  for (std::string along : {"dim 0", "dim 1", "dim 2", "dim 0 reverse", "dim 1 reverse", "dim 2 reverse"})
    for (std::string type : {"tensor<3x5x7xf32>", "tensor<1x300x2xf32>", "tensor<4x1x65xbf16>", "tensor<2x9x3xi32>"})
      expectParity(fill("func.func @f(%x: $1) -> $1 {\n %y = segue.cumsum %x $0 : $1\n return %y : $1\n}", along, type),
                   type.find("bf16") == std::string::npos ? Tolerance{} : Tolerance{1e-2, 1e-2});
  // What is read is computed where it is read, through views and at other indices; the sums are read by a kernel of theirs.
  Kernels fused(R"(func.func @f(%x: tensor<6x40xf32>, %z: tensor<6xf32>) -> tensor<40x6xf32> {
    %t = segue.transpose %x [1, 0] : tensor<6x40xf32> -> tensor<40x6xf32>
    %b = segue.broadcast %z dims [1] : tensor<6xf32> -> tensor<40x6xf32>
    %p = segue.mul %t, %b : tensor<40x6xf32>
    %s = segue.cumsum %p dim 0 : tensor<40x6xf32>
    %y = segue.tanh %s : tensor<40x6xf32>
    return %y : tensor<40x6xf32>
  })");
  ASSERT_TRUE(fused.ok());
  EXPECT_EQ(fused.launches(), 2u);
  expectParity(fused, randomArguments(fused));
}

TEST(Kernel, LargestSoFarAndRecurrences) {
  for (std::string type : {"tensor<3x5x7xf32>", "tensor<1x300x2xf32>", "tensor<4x1x65xbf16>", "tensor<2x9x3xi32>"}) {
    bool isFloat = type.find('f') != std::string::npos;
    Tolerance tolerance = type.find("bf16") == std::string::npos ? Tolerance{} : Tolerance{1e-2, 1e-2};
    for (std::string along : {"dim 0", "dim 1", "dim 2"}) {
      expectParity(fill("func.func @f(%x: $1) -> $1 {\n %y = segue.cummax %x $0 : $1\n return %y : $1\n}", along, type),
                   tolerance);
      for (std::string direction : {"", " reverse"})
        if (isFloat)
          expectParity(fill("func.func @f(%a: $1, %x: $1) -> $1 {\n %y = segue.recurrence %a, %x $0 : $1\n"
                            " return %y : $1\n}",
                            along + direction, type),
                       tolerance);
    }
  }
  Kernels largest("func.func @f(%x: tensor<6xf32>) -> tensor<6xf32> {\n %y = segue.cummax %x dim 0 : tensor<6xf32>\n"
                  " return %y : tensor<6xf32>\n}");
  ASSERT_TRUE(largest.ok());
  std::vector<HostTensor> numbers = randomArguments(largest);
  numbers[0].floats = {-INFINITY, -5, 2, std::nan(""), 7, INFINITY};
  expectParity(largest, numbers);
  Kernels first("func.func @f(%a: tensor<3xf32>, %x: tensor<3xf32>) -> tensor<3xf32> {\n"
                " %y = segue.recurrence %a, %x dim 0 : tensor<3xf32>\n return %y : tensor<3xf32>\n}");
  ASSERT_TRUE(first.ok());
  numbers = randomArguments(first);
  numbers[0].floats[0] = INFINITY;
  expectParity(first, numbers);
}

TEST(Kernel, Remainders) {
  for (std::string type : {"tensor<f32>", "tensor<130xf32>", "tensor<3x11xbf16>"})
    expectParity(fill("func.func @f(%a: $0, %b: $0) -> $0 {\n %y = segue.rem %a, %b : $0\n return %y : $0\n}", type),
                 Tolerance{0, 0});
  // Quotients of more than 200 digits, and what has none.
  Kernels kernels("func.func @f(%a: tensor<4096xf32>, %b: tensor<4096xf32>) -> tensor<4096xf32> {\n"
                  " %y = segue.rem %a, %b : tensor<4096xf32>\n return %y : tensor<4096xf32>\n}");
  ASSERT_TRUE(kernels.ok());
  std::vector<HostTensor> arguments = randomArguments(kernels);
  const double special[] = {0, 1, -1, 3.4e38, -3.4e38, 1e-30, INFINITY, -INFINITY, std::nan(""), 16777216, 0.1f, 3};
  for (int64_t i = 0; i < 4096; ++i)
    for (HostTensor &argument : arguments) {
      int64_t at = &argument == arguments.data() ? i : i / 12;
      double drawn = std::ldexp(argument.floats[i] + (i % 2 ? 1 : -1), int((i * 7 + at) % 210) - 90);
      argument.floats[i] = double(float(i < 144 ? special[at % 12] : drawn));
    }
  expectParity(kernels, arguments, Tolerance{0, 0});
}

TEST(Kernel, GatherAndScatter) {
  Kernels gather(R"(func.func @f(%t: tensor<5x12xf32>, %i: tensor<3x7xi64>, %p: tensor<7x12xf32>) -> tensor<3x7x12xf32> {
    %e = segue.gather %t[%i] : tensor<5x12xf32>, tensor<3x7xi64> -> tensor<3x7x12xf32>
    %b = segue.broadcast %p dims [1, 2] : tensor<7x12xf32> -> tensor<3x7x12xf32>
    %y = segue.add %e, %b : tensor<3x7x12xf32>
    return %y : tensor<3x7x12xf32>
  })");
  ASSERT_TRUE(gather.ok());
  std::vector<HostTensor> arguments = randomArguments(gather);
  expectParity(gather, arguments);
  EXPECT_EQ(gather.launches(), 1u);
  for (double bad : {5.0, -1.0}) {
    arguments[1].set(11, bad);
    gather.run(arguments, "v3", true);
    EXPECT_EQ(gather.status(), 2);
  }
  for (std::string trailing : {"", "x12", "x130", "x3x5"})
    for (std::string element : {"f32", "bf16", "i64", "i8"}) {
      Kernels scatter(fill(R"(func.func @f(%u: tensor<3x7$0x$1>, %i: tensor<3x7xi32>) -> tensor<5$0x$1> {
        %y = segue.scatter_add %u[%i] : tensor<3x7$0x$1>, tensor<3x7xi32> -> tensor<5$0x$1>
        return %y : tensor<5$0x$1>
      })", trailing, element));
      ASSERT_TRUE(scatter.ok());
      std::vector<HostTensor> updates = randomArguments(scatter);
      expectParity(scatter, updates, element == "bf16" ? Tolerance{3e-2, 2e-2} : Tolerance{});
      updates[1].set(2, 5);
      scatter.run(updates, "v3", true);
      EXPECT_NE(scatter.status(), 0);

      // Into a table: the rows of one index are added up before.
      Kernels into(fill(R"(func.func @f(%u: tensor<3x7$0x$1>, %i: tensor<3x7xi32>, %t: tensor<50$0x$1>) -> tensor<50$0x$1> {
        %y = segue.scatter_add %u[%i] : tensor<3x7$0x$1>, tensor<3x7xi32> -> tensor<50$0x$1>
        %z = segue.add %t, %y : tensor<50$0x$1>
        return %z : tensor<50$0x$1>
      })", trailing, element));
      ASSERT_TRUE(into.ok());
      std::vector<HostTensor> parts = randomArguments(into);
      for (int64_t at = 0; at < 21; ++at)
        parts[1].set(at, at % 5 == 4 ? 49 : at % 3);
      expectParity(into, parts, element == "bf16" ? Tolerance{3e-2, 2e-2} : Tolerance{});
      parts[1].set(2, 50);
      into.run(parts, "v3", true);
      EXPECT_NE(into.status(), 0);
    }
}

//===----------------------------------------------------------------------===//
// In place
//===----------------------------------------------------------------------===//

// A number per row may lie over one that another result is computed from.
TEST(Kernel, NumbersPerRowInPlace) {
  Kernels kernels(R"(func.func @f(%x: tensor<37x130xf32>, %s: tensor<37xf32>) -> (tensor<37xf32>, tensor<37xf32>) {
    %m = segue.reduce max %x dims [1] : tensor<37x130xf32> -> tensor<37xf32>
    %t = segue.add %m, %s : tensor<37xf32>
    return %m, %t : tensor<37xf32>, tensor<37xf32>
  })");
  ASSERT_TRUE(kernels.ok());
  EXPECT_EQ(kernels.launches(), 1u);
  EXPECT_EQ(kernels.places(), 2u);
  expectParity(kernels, randomArguments(kernels));
}

/// Autodiff makes this of slices that are written one by one: the gradient is
/// cut at the edge of every slice, and each result is zero outside of its own.
/// Any of them may lie over an operand that another one is computed from.
TEST(Kernel, ResultsThatAreZeroAlmostEverywhere) {
  for (int slices : {3, 19}) {
    std::string shape = fill("2x$0x64", slices), results, types, body;
    for (int slice = 0; slice < slices; ++slice) {
      body += fill(R"(
        %s$0 = segue.slice %g [0, $0, 0] to [2, $3, 64] by [1, 1, 1] : tensor<$1xf32> -> tensor<2x1x64xf32>
        %x$0 = segue.slice %x [0, $0, 0] to [2, $3, 64] by [1, 1, 1] : tensor<$1xf32> -> tensor<2x1x64xf32>
        %m$0 = segue.mul %s$0, %x$0 : tensor<2x1x64xf32>
        %p$0 = segue.pad %m$0 low [0, $0, 0] high [0, $2, 0] interior [0, 0, 0] value 0.0 : f32 : tensor<2x1x64xf32> -> tensor<$1xf32>)",
                   slice, shape, slices - 1 - slice, slice + 1);
      results += fill("$1%p$0", slice, slice ? ", " : "");
      types += fill("$1tensor<$0xf32>", shape, slice ? ", " : "");
    }
    expectParity(fill(R"(func.func @f(%g: tensor<$0xf32>, %x: tensor<$0xf32>) -> (tensor<$0xf32>, $2) {$1
      %t = segue.tanh %x : tensor<$0xf32>
      %d = segue.mul %t, %g : tensor<$0xf32>
      return %d, $3 : tensor<$0xf32>, $2
    })", shape, body, types, results));
  }
}

/// A result that does not depend on the operand that it may lie over: it is
/// stored after that operand was read all the same.
TEST(Kernel, ResultsOverOperandsOfOthers) {
  expectParity(R"(func.func @f(%x: tensor<4x300xf32>, %g: tensor<4x300xf32>, %r: tensor<4xf32>)
      -> (tensor<4x300xf32>, tensor<4x300xf32>, tensor<4x300xf32>, tensor<4xf32>) {
    %e = segue.exp %x : tensor<4x300xf32>
    %p = segue.mul %x, %g : tensor<4x300xf32>
    %s = segue.reduce sum %p dims [1] : tensor<4x300xf32> -> tensor<4xf32>
    %t = segue.mul %s, %r : tensor<4xf32>
    %b = segue.broadcast %t dims [0] : tensor<4xf32> -> tensor<4x300xf32>
    %y = segue.sub %g, %b : tensor<4x300xf32>
    return %e, %p, %y, %s : tensor<4x300xf32>, tensor<4x300xf32>, tensor<4x300xf32>, tensor<4xf32>
  })");
}

//===----------------------------------------------------------------------===//
// The object
//===----------------------------------------------------------------------===//

TEST(Kernel, SameModuleGivesSameBytes) {
  std::string text = R"(func.func @f(%x: tensor<64x48xf32>) -> (tensor<64x48xf32>, tensor<48xf32>) {
    %y = segue.softmax %x dim 1 : tensor<64x48xf32>
    %z = segue.gelu tanh %y : tensor<64x48xf32>
    %s = segue.reduce sum %z dims [0] : tensor<64x48xf32> -> tensor<48xf32>
    return %z, %s : tensor<64x48xf32>, tensor<48xf32>
  })";
  EXPECT_EQ(Kernels(text).elf(), Kernels(text).elf());
}

//===----------------------------------------------------------------------===//
// Speed, by hand: --gtest_also_run_disabled_tests --gtest_filter=*Speed*
//===----------------------------------------------------------------------===//

TEST(KernelSpeed, DISABLED_Table) {
  struct Case {
    const char *name;
    std::string text;
  };
  const Case cases[] = {
      {"bias+gelu(tanh) 2048x1536", R"(func.func @f(%x: tensor<2048x1536xf32>, %b: tensor<1536xf32>) -> tensor<2048x1536xf32> {
        %c = segue.broadcast %b dims [1] : tensor<1536xf32> -> tensor<2048x1536xf32>
        %a = segue.add %x, %c : tensor<2048x1536xf32>
        %y = segue.gelu tanh %a : tensor<2048x1536xf32>
        return %y : tensor<2048x1536xf32> })"},
      {"gelu(tanh) 2048x1536", R"(func.func @f(%x: tensor<2048x1536xf32>) -> tensor<2048x1536xf32> {
        %y = segue.gelu tanh %x : tensor<2048x1536xf32>
        return %y : tensor<2048x1536xf32> })"},
      {"gelu(erf) 2048x1536", R"(func.func @f(%x: tensor<2048x1536xf32>) -> tensor<2048x1536xf32> {
        %y = segue.gelu erf %x : tensor<2048x1536xf32>
        return %y : tensor<2048x1536xf32> })"},
      {"layer_norm fwd 2048x384", R"(func.func @f(%x: tensor<2048x384xf32>, %g: tensor<384xf32>, %b: tensor<384xf32>)
          -> (tensor<2048x384xf32>, tensor<2048xf32>, tensor<2048xf32>) {
        %y, %m, %r = segue.layer_norm %x gamma %g : tensor<384xf32> beta %b : tensor<384xf32> eps 1.0e-5 : tensor<2048x384xf32> -> tensor<2048xf32>
        return %y, %m, %r : tensor<2048x384xf32>, tensor<2048xf32>, tensor<2048xf32> })"},
      {"layer_norm bwd 2048x384", R"(func.func @f(%dy: tensor<2048x384xf32>, %x: tensor<2048x384xf32>, %g: tensor<384xf32>,
          %m: tensor<2048xf32>, %r: tensor<2048xf32>) -> (tensor<2048x384xf32>, tensor<384xf32>, tensor<384xf32>) {
        %mm = segue.broadcast %m dims [0] : tensor<2048xf32> -> tensor<2048x384xf32>
        %rr = segue.broadcast %r dims [0] : tensor<2048xf32> -> tensor<2048x384xf32>
        %c = segue.sub %x, %mm : tensor<2048x384xf32>
        %h = segue.mul %c, %rr : tensor<2048x384xf32>
        %gg = segue.broadcast %g dims [1] : tensor<384xf32> -> tensor<2048x384xf32>
        %d = segue.mul %dy, %gg : tensor<2048x384xf32>
        %p = segue.mul %d, %h : tensor<2048x384xf32>
        %s1 = segue.reduce mean %d dims [1] : tensor<2048x384xf32> -> tensor<2048xf32>
        %s2 = segue.reduce mean %p dims [1] : tensor<2048x384xf32> -> tensor<2048xf32>
        %b1 = segue.broadcast %s1 dims [0] : tensor<2048xf32> -> tensor<2048x384xf32>
        %b2 = segue.broadcast %s2 dims [0] : tensor<2048xf32> -> tensor<2048x384xf32>
        %t = segue.mul %h, %b2 : tensor<2048x384xf32>
        %u = segue.sub %d, %b1 : tensor<2048x384xf32>
        %w = segue.sub %u, %t : tensor<2048x384xf32>
        %dx = segue.mul %w, %rr : tensor<2048x384xf32>
        %q = segue.mul %dy, %h : tensor<2048x384xf32>
        %dg = segue.reduce sum %q dims [0] : tensor<2048x384xf32> -> tensor<384xf32>
        %db = segue.reduce sum %dy dims [0] : tensor<2048x384xf32> -> tensor<384xf32>
        return %dx, %dg, %db : tensor<2048x384xf32>, tensor<384xf32>, tensor<384xf32> })"},
      {"softmax 12288x256", R"(func.func @f(%x: tensor<12288x256xf32>) -> tensor<12288x256xf32> {
        %y = segue.softmax %x dim 1 : tensor<12288x256xf32>
        return %y : tensor<12288x256xf32> })"},
      {"cross-entropy fwd+bwd 2048x256", R"(func.func @f(%x: tensor<2048x256xf32>, %t: tensor<2048xi64>, %g: tensor<2048xf32>)
          -> (tensor<2048xf32>, tensor<2048x256xf32>) {
        %l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<2048x256xf32>, tensor<2048xi64> -> tensor<2048xf32>
        %ss = segue.broadcast %s dims [0] : tensor<2048xf32> -> tensor<2048x256xf32>
        %d = segue.sub %x, %ss : tensor<2048x256xf32>
        %e = segue.exp %d : tensor<2048x256xf32>
        %t32 = segue.cast %t : tensor<2048xi64> -> tensor<2048xi32>
        %tt = segue.broadcast %t32 dims [0] : tensor<2048xi32> -> tensor<2048x256xi32>
        %i = segue.iota dim 1 : tensor<2048x256xi32>
        %c = segue.compare eq %i, %tt : tensor<2048x256xi32> -> tensor<2048x256xi1>
        %o = segue.cast %c : tensor<2048x256xi1> -> tensor<2048x256xf32>
        %w = segue.sub %e, %o : tensor<2048x256xf32>
        %gg = segue.broadcast %g dims [0] : tensor<2048xf32> -> tensor<2048x256xf32>
        %dx = segue.mul %w, %gg : tensor<2048x256xf32>
        return %l, %dx : tensor<2048xf32>, tensor<2048x256xf32> })"},
      {"AdamW 1M", optimizerText("adamw:beta2=0.95,decay=0.1", {"1048576xf32"})},
      {"transpose copy 8x256x6x64", R"(func.func @f(%x: tensor<8x256x6x64xf32>) -> tensor<8x6x256x64xf32> {
        %t = segue.transpose %x [0, 2, 1, 3] : tensor<8x256x6x64xf32> -> tensor<8x6x256x64xf32>
        %y = segue.neg %t : tensor<8x6x256x64xf32>
        return %y : tensor<8x6x256x64xf32> })"},
      {"dropout 2048x384", R"(func.func @f(%x: tensor<2048x384xf32>, %seed: tensor<i64>, %step: tensor<i64>) -> tensor<2048x384xf32> {
        %u = segue.random %seed, %step id 3 : tensor<2048x384xf32>
        %k = segue.constant dense<0.1> : tensor<2048x384xf32>
        %c = segue.compare ge %u, %k : tensor<2048x384xf32> -> tensor<2048x384xi1>
        %z = segue.constant dense<0.0> : tensor<2048x384xf32>
        %y = segue.select %c, %x, %z : tensor<2048x384xi1>, tensor<2048x384xf32>
        return %y : tensor<2048x384xf32> })"},
      {"transpose 1024x1024", R"(func.func @f(%x: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
        %t = segue.transpose %x [1, 0] : tensor<1024x1024xf32> -> tensor<1024x1024xf32>
        %y = segue.neg %t : tensor<1024x1024xf32>
        return %y : tensor<1024x1024xf32> })"},
  };
  for (const Case &entry : cases) {
    Kernels kernels(entry.text);
    ASSERT_TRUE(kernels.ok()) << entry.name;
    std::vector<HostTensor> arguments = randomArguments(kernels);
    for (StringRef isa : instructionSets())
      printf("%-34s %s %8.0f us, %zu launches\n", entry.name, isa.str().c_str(), kernels.time(arguments, isa, 15),
             kernels.launches());
  }
}
