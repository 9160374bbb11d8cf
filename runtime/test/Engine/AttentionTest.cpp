//===- AttentionTest.cpp - attention against loops in double --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The loops below compute attention and its derivative as the formulas say,
// scores and probabilities whole, in double.
//
//===----------------------------------------------------------------------===//

#include "Machines.h"
#include "Values.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Lie { Plain, Interleaved };

struct Case {
  int64_t batch, heads, rows, keys, dim;
  bool causal = false;
  MaskKind mask = MaskKind::none;
  ElementType type = ElementType::f32;
  Lie lie = Lie::Plain;
  /// Bit d: the mask repeats along dimension d.
  int maskRepeats = 0;
  float dropout = 0;
};

/// Buffers of one case and what the loops make of them.
struct Problem {
  AttentionGradSpec spec;
  Values q, k, v, mask, out, gradOut, gradQ, gradK, gradV;
  std::vector<float> lse;
  std::vector<double> wantOut, wantLse, wantGradQ, wantGradK, wantGradV;
};

} // namespace

/// [batch, length, heads, dim] with heads inside, as a projection leaves them,
/// one of three in a row; or [batch, heads, length, dim].
static AttentionStrides place(const Case &c, int64_t length) {
  if (c.lie == Lie::Interleaved)
    return {length * 3 * c.heads * c.dim, c.dim, 3 * c.heads * c.dim, 1};
  return {c.heads * length * c.dim, length * c.dim, c.dim, 1};
}

static int64_t offset(const AttentionStrides &s, int64_t b, int64_t h, int64_t row, int64_t d) {
  return b * s[0] + h * s[1] + row * s[2] + d * s[3];
}

static Problem makeProblem(const Case &c) {
  AttentionGradSpec grad;
  AttentionSpec &spec = grad.forward;
  spec.batch = c.batch, spec.heads = c.heads, spec.rows = c.rows, spec.keys = c.keys, spec.dim = c.dim;
  spec.element = c.type;
  spec.causal = c.causal;
  spec.dropout = c.dropout;
  spec.dropoutId = 5;
  spec.scale = 1 / std::sqrt(static_cast<float>(c.dim)) + 0.3f;
  spec.q = spec.out = grad.gradOut = grad.gradQ = place(c, c.rows);
  spec.k = spec.v = grad.gradK = grad.gradV = place(c, c.keys);
  spec.mask = c.mask;
  spec.maskElement = c.mask == MaskKind::keep ? ElementType::i1 : c.type;
  int64_t extents[] = {c.batch, c.heads, c.rows, c.keys}, maskSize = 1;
  for (int d = 3; d >= 0; --d) {
    bool repeats = c.maskRepeats >> d & 1;
    spec.maskStrides[d] = repeats ? 0 : maskSize;
    maskSize *= repeats ? 1 : extents[d];
  }
  int64_t many = c.lie == Lie::Interleaved ? 3 : 1;
  int64_t rowSize = many * c.batch * c.heads * c.rows * c.dim, keySize = many * c.batch * c.heads * c.keys * c.dim;
  auto make = [&](int64_t size, uint64_t seed) { return Values(c.type, size, seed); };
  Problem p{grad,
            make(rowSize, 1),
            make(keySize, 2),
            make(keySize, 3),
            Values(spec.maskElement, maskSize, 4),
            make(rowSize, 5),
            make(rowSize, 6),
            make(rowSize, 7),
            make(keySize, 8),
            make(keySize, 9),
            {},
            {},
            {},
            {},
            {},
            {}};
  p.lse.assign(c.batch * c.heads * c.rows, NAN);
  p.wantOut.assign(p.out.size(), 0);
  p.wantGradQ = p.wantOut;
  p.wantGradK.assign(p.k.size(), 0);
  p.wantGradV = p.wantGradK;
  p.wantLse.assign(p.lse.size(), 0);
  return p;
}

constexpr int64_t kSeed = 0x123456789abcdef0, kStep = 0x700000003;

/// Returns number i of those that segue.random draws, by Philox4x32-10 (Salmon et al., SC 2011).
static float drawn(int64_t i, int64_t id) {
  uint64_t block = uint64_t(i) / 4;
  uint32_t c[4] = {uint32_t(block), uint32_t(block >> 32) ^ uint32_t(id), uint32_t(kStep), uint32_t(kStep >> 32)};
  uint32_t key[2] = {uint32_t(kSeed), uint32_t(kSeed >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53) * c[0], b = uint64_t(0xCD9E8D57) * c[2];
    uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key[1], uint32_t(a)};
    std::copy_n(next, 4, c);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return float(c[i % 4] >> 8) * 0x1p-24f;
}

/// Computes what the formulas say, with `out` rounded as the engine stores it.
static void computeByLoops(Problem &p) {
  const AttentionSpec &s = p.spec.forward;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.rows; ++i) {
        std::vector<double> weight(s.keys, -kInfinity);
        double most = -kInfinity, sum = 0;
        for (int64_t j = 0; j < s.keys && (!s.causal || j <= i); ++j) {
          double score = 0;
          for (int64_t d = 0; d < s.dim; ++d)
            score += p.q.at(offset(s.q, b, h, i, d)) * p.k.at(offset(s.k, b, h, j, d));
          score *= s.scale;
          const auto &m = s.maskStrides;
          int64_t at = b * m[0] + h * m[1] + i * m[2] + j * m[3];
          if (s.mask == MaskKind::keep && p.mask.at(at) == 0)
            score = -kInfinity;
          if (s.mask == MaskKind::add)
            score += p.mask.at(at);
          weight[j] = score;
          most = std::max(most, score);
        }
        for (double &w : weight)
          sum += w = w == -kInfinity ? 0 : std::exp(w - most);
        p.wantLse[(b * s.heads + h) * s.rows + i] = sum == 0 ? -kInfinity : most + std::log(sum);
        std::vector<double> factor(s.keys, 1);
        for (int64_t j = 0; j < s.keys && s.dropout > 0; ++j) {
          int64_t number = ((b * s.heads + h) * s.rows + i) * s.keys + j;
          factor[j] = drawn(number, s.dropoutId) >= s.dropout ? 1 / (1 - double(s.dropout)) : 0;
        }
        double delta = 0;
        for (int64_t d = 0; d < s.dim; ++d) {
          double result = 0;
          for (int64_t j = 0; j < s.keys && sum > 0; ++j)
            result += weight[j] / sum * factor[j] * p.v.at(offset(s.v, b, h, j, d));
          p.wantOut[offset(s.out, b, h, i, d)] = result;
          delta += p.gradOut.at(offset(p.spec.gradOut, b, h, i, d)) * result;
        }
        for (int64_t j = 0; j < s.keys && sum > 0; ++j) {
          double probability = weight[j] / sum, gradProbability = 0;
          for (int64_t d = 0; d < s.dim; ++d) {
            double gradOut = p.gradOut.at(offset(p.spec.gradOut, b, h, i, d));
            gradProbability += factor[j] * gradOut * p.v.at(offset(s.v, b, h, j, d));
            p.wantGradV[offset(p.spec.gradV, b, h, j, d)] += probability * factor[j] * gradOut;
          }
          double gradScore = probability * (gradProbability - delta) * s.scale;
          for (int64_t d = 0; d < s.dim; ++d) {
            p.wantGradQ[offset(p.spec.gradQ, b, h, i, d)] += gradScore * p.k.at(offset(s.k, b, h, j, d));
            p.wantGradK[offset(p.spec.gradK, b, h, j, d)] += gradScore * p.q.at(offset(s.q, b, h, i, d));
          }
        }
      }
}

static void runEngine(CpuEngine &engine, Problem &p) {
  ASSERT_EQ(p.spec.findProblem(), "");
  void *mask = p.spec.forward.mask == MaskKind::none ? nullptr : p.mask.data();
  const int64_t *seed = p.spec.forward.dropout ? &kSeed : nullptr, *step = p.spec.forward.dropout ? &kStep : nullptr;
  engine.planAttention(p.spec.forward)
      ->run({p.q.data(), p.k.data(), p.v.data(), mask, seed, step, p.out.data(), p.lse.data()});
  engine.planAttentionGrad(p.spec)->run({p.q.data(), p.k.data(), p.v.data(), mask, seed, step, p.out.data(),
                                         p.lse.data(), p.gradOut.data(), p.gradQ.data(), p.gradK.data(),
                                         p.gradV.data()});
}

/// Compares elements inside the tensor, and that all others kept what they had.
static void expectNear(const char *what, const Values &got, uint64_t seed, const std::vector<double> &want,
                       const AttentionSpec &s, const AttentionStrides &strides, int64_t length, double tolerance) {
  double largest = 0;
  for (double number : want)
    largest = std::max(largest, std::abs(number));
  std::vector<bool> inside(got.size());
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < length; ++i)
        for (int64_t d = 0; d < s.dim; ++d) {
          int64_t at = offset(strides, b, h, i, d);
          inside[at] = true;
          ASSERT_NEAR(got.at(at), want[at], tolerance * (largest + std::abs(want[at])))
              << what << " at " << b << ", " << h << ", " << i << ", " << d;
        }
  Values before(s.element, got.size(), seed);
  for (int64_t at = 0; at < got.size(); ++at)
    ASSERT_TRUE(inside[at] || got.at(at) == before.at(at)) << what << " written outside at " << at;
}

static void check(const Machine &machine, const Case &c) {
  SCOPED_TRACE(testing::Message() << std::string(name(c.type)) << " " << c.batch << "x" << c.heads << "x" << c.rows
                                  << "x" << c.keys << "x" << c.dim << (c.causal ? " causal" : "") << " mask "
                                  << int(c.mask) << " repeats " << c.maskRepeats << " lie " << int(c.lie) << " at "
                                  << machine.threads << " threads");
  CpuEngine engine(Threads(machine.threads), machine.set);
  Problem p = makeProblem(c);
  computeByLoops(p);
  runEngine(engine, p);
  const AttentionSpec &s = p.spec.forward;
  double allowed = tolerance(c.type);
  for (size_t i = 0; i < p.lse.size(); ++i)
    if (p.wantLse[i] == -kInfinity) {
      ASSERT_EQ(p.lse[i], -kInfinity) << "lse " << i;
    } else {
      ASSERT_NEAR(p.lse[i], p.wantLse[i], 2e-6 * (1 + std::abs(p.wantLse[i]))) << "lse " << i;
    }
  expectNear("out", p.out, 5, p.wantOut, s, s.out, s.rows, allowed);
  // The derivative also sees the rounding of out, times the scale of the scores.
  expectNear("gradQ", p.gradQ, 7, p.wantGradQ, s, p.spec.gradQ, s.rows, 4 * allowed);
  expectNear("gradK", p.gradK, 8, p.wantGradK, s, p.spec.gradK, s.keys, 4 * allowed);
  expectNear("gradV", p.gradV, 9, p.wantGradV, s, p.spec.gradV, s.keys, 4 * allowed);
}

class AttentionTest : public testing::TestWithParam<Machine> {};

// Odd extents, extents of 1, blocks that end inside, more and fewer keys than rows.
TEST_P(AttentionTest, AgreesWithLoopsForAllExtents) {
  for (bool causal : {false, true})
    for (Case c : {Case{1, 1, 1, 1, 1}, Case{2, 3, 5, 5, 8}, Case{1, 2, 70, 70, 64}, Case{1, 1, 33, 100, 33},
                   Case{1, 3, 100, 33, 20}, Case{3, 1, 1, 90, 16}, Case{2, 1, 65, 1, 7}, Case{1, 1, 40, 40, 256},
                   Case{1, 2, 130, 200, 80}}) {
      c.causal = causal;
      check(GetParam(), c);
    }
}

TEST_P(AttentionTest, AgreesWithLoopsForAllTypesAndWaysToLie) {
  for (ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16})
    for (Lie lie : {Lie::Plain, Lie::Interleaved})
      check(GetParam(), {2, 3, 50, 50, 24, true, MaskKind::none, type, lie});
}

// A row by itself reads keys and values where they lie, whose number is no multiple of anything.
TEST_P(AttentionTest, AgreesWithLoopsForOneRow) {
  for (MaskKind mask : {MaskKind::none, MaskKind::keep, MaskKind::add})
    for (Lie lie : {Lie::Plain, Lie::Interleaved})
      for (int64_t keys : {1, 3, 90, 257})
        for (bool causal : {false, true})
          check(GetParam(), {2, 3, 1, keys, 64, causal, mask, ElementType::f32, lie, /*maskRepeats=*/2});
}

// Each dimension of the mask alone may repeat, and all may.
TEST_P(AttentionTest, AgreesWithLoopsForAllMasks) {
  for (MaskKind mask : {MaskKind::keep, MaskKind::add})
    for (ElementType type : {ElementType::f32, ElementType::bf16})
      for (int repeats = 0; repeats < 16; ++repeats)
        check(GetParam(), {2, 2, 37, 41, 16, repeats % 2 == 1, mask, type, Lie::Plain, repeats});
}

// Rows begin at any of the four numbers of a block, and end at any.
TEST_P(AttentionTest, AgreesWithLoopsWithDropout) {
  for (int64_t keys : {3, 5, 8, 38, 63})
    for (bool causal : {false, true})
      for (ElementType type : {ElementType::f32, ElementType::bf16})
        check(GetParam(), {2, 3, 41, keys, 24, causal, MaskKind::none, type, Lie::Interleaved, 0, 0.3f});
  check(GetParam(), {2, 2, 40, 40, 16, true, MaskKind::keep, ElementType::f32, Lie::Plain, 2, 0.9f});
  check(GetParam(), {2, 2, 1, 90, 64, false, MaskKind::add, ElementType::f32, Lie::Plain, 0, 0.5f});
}

// A row that sees no key gives zeros, -inf, and no gradient; never NaN.
TEST_P(AttentionTest, RowsThatSeeNothingGiveZeros) {
  CpuEngine engine(Threads(GetParam().threads), GetParam().set);
  Case c{1, 2, 40, 40, 16, false, MaskKind::keep};
  Problem p = makeProblem(c);
  for (int64_t i = 0; i < p.mask.size(); ++i)
    p.mask.set(i, i / 40 % 3 == 0 ? -1 : 1);
  computeByLoops(p);
  runEngine(engine, p);
  const AttentionSpec &s = p.spec.forward;
  EXPECT_EQ(p.lse[0], -kInfinity);
  EXPECT_EQ(p.out.at(0), 0);
  EXPECT_EQ(p.gradQ.at(0), 0);
  expectNear("out", p.out, 5, p.wantOut, s, s.out, s.rows, 2e-6);
  expectNear("gradK", p.gradK, 8, p.wantGradK, s, p.spec.gradK, s.keys, 8e-6);
}

// Without keys every row sees nothing.
TEST_P(AttentionTest, WithoutKeysGivesZeros) { check(GetParam(), {1, 2, 3, 0, 4}); }

TEST_P(AttentionTest, WithoutRowsGivesNoGradient) { check(GetParam(), {1, 2, 0, 3, 4}); }

INSTANTIATE_TEST_SUITE_P(Machines, AttentionTest, kMachines, describe);

// Scores far apart and far from 0: no overflow, no loss of the small ones.
TEST(AttentionRangeTest, LargeScoresStayFinite) {
  CpuEngine engine;
  Problem p = makeProblem({1, 1, 20, 20, 4});
  p.spec.forward.scale = 300;
  computeByLoops(p);
  runEngine(engine, p);
  for (int64_t i = 0; i < p.out.size(); ++i)
    ASSERT_NEAR(p.out.at(i), p.wantOut[i], 2e-4);
}

// A NaN in q must come out, where the session sees it, and in its row only.
TEST(AttentionRangeTest, PassesNaNOn) {
  CpuEngine engine;
  Problem p = makeProblem({1, 1, 4, 4, 4});
  p.q.set(4, NAN);
  runEngine(engine, p);
  EXPECT_TRUE(std::isnan(p.out.at(4)) && std::isnan(p.lse[1]));
  EXPECT_FALSE(std::isnan(p.out.at(0)));
  EXPECT_TRUE(std::isnan(p.gradK.at(0)));
}

// Bits, not numbers, whatever the threads.
TEST(AttentionDeterminismTest, IsTheSameAtEachRunAndThreadCount) {
  std::vector<Values> first;
  for (int threads : {1, 2, 3})
    for (int repeat = 0; repeat < 2; ++repeat) {
      CpuEngine engine{Threads(threads)};
      Problem p = makeProblem({1, 3, 200, 200, 32, true});
      runEngine(engine, p);
      std::vector<Values> results{p.out, p.gradQ, p.gradK, p.gradV};
      if (first.empty())
        first = results;
      for (size_t i = 0; i < first.size(); ++i)
        ASSERT_EQ(results[i].bytes(), first[i].bytes()) << "result " << i << " at " << threads << " threads";
    }
}

TEST(AttentionSpecTest, SaysWhatCannotRun) {
  AttentionGradSpec good = makeProblem({2, 3, 4, 5, 6}).spec;
  EXPECT_EQ(good.findProblem(), "");
  auto problemOf = [&](auto change) {
    AttentionGradSpec spec = good;
    change(spec, spec.forward);
    return spec.findProblem();
  };
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.dim = 0; }), "dim is 0, the least is 1");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.keys = -5; }), "keys is -5, the least is 0");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.element = ElementType::i32; }),
            "operands are i32, they must be f32, bf16 or f16");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.q[3] = 2; }), "dim stride of q is 2, it must be 1");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.out[2] = 5; }), "stride 2 of out is 5, its rows of 6 elements overlap");
  EXPECT_EQ(problemOf([](auto &g, auto &) { g.gradK[1] = 0; }),
            "stride 1 of grad_k is 0, its rows of 6 elements overlap");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.mask = MaskKind::keep; }), "a mask that keeps is f32, it must be i1");
  EXPECT_EQ(problemOf([](auto &, auto &s) { s.mask = MaskKind::add, s.maskElement = ElementType::i1; }),
            "a mask that is added is i1, it must be f32, bf16 or f16");
}
