//===- ExpandMath.cpp - transcendental functions as arithmetic ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Branch-free f32 forms of exp, expm1, log, tanh, erf, sin, cos and pow:
// argument reduction (Cody and Waite), then a minimax polynomial. They carry no
// fast-math flags, since reassociation would undo the reduction; products and
// sums are written as fma. test/unit/KernelTest.cpp holds each to its accuracy:
//
//   exp    2 ulp; 0 below -87.34, infinity above 88.72
//   log    2 ulp for normal numbers
//   expm1, tanh, pow: 1e-6 relative; erf, sin, cos: 3e-7 absolute
//
// sin and cos reduce by pi/2 in three parts and are good to |x| = 1e5.
//
//===----------------------------------------------------------------------===//

#include "ExpandMath.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Builders.h"
#include <limits>

using namespace mlir;
using namespace segue;

namespace {

/// Writes f32 and i32 arithmetic.
class Writer {
public:
  Writer(OpBuilder &b, Location loc) : b(b), loc(loc) {}

  Value real(float value) { return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value)); }
  Value word(int32_t value) { return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(value)); }
  Value add(Value l, Value r) { return arith::AddFOp::create(b, loc, l, r); }
  Value sub(Value l, Value r) { return arith::SubFOp::create(b, loc, l, r); }
  Value mul(Value l, Value r) { return arith::MulFOp::create(b, loc, l, r); }
  Value div(Value l, Value r) { return arith::DivFOp::create(b, loc, l, r); }
  Value fma(Value x, Value y, Value z) { return math::FmaOp::create(b, loc, x, y, z); }
  Value abs(Value x) { return math::AbsFOp::create(b, loc, x); }
  Value neg(Value x) { return arith::NegFOp::create(b, loc, x); }
  Value round(Value x) { return math::RoundEvenOp::create(b, loc, x); }
  Value copySign(Value magnitude, Value sign) { return math::CopySignOp::create(b, loc, magnitude, sign); }
  Value is(arith::CmpFPredicate predicate, Value l, Value r) { return arith::CmpFOp::create(b, loc, predicate, l, r); }
  Value less(Value l, Value r) { return is(arith::CmpFPredicate::OLT, l, r); }
  Value isNaN(Value x) { return is(arith::CmpFPredicate::UNO, x, x); }
  Value select(Value c, Value l, Value r) { return arith::SelectOp::create(b, loc, c, l, r); }
  /// One instruction each on x86; a NaN in `x` gives `bound`.
  Value atLeast(Value x, Value bound) { return select(is(arith::CmpFPredicate::OGT, x, bound), x, bound); }
  Value atMost(Value x, Value bound) { return select(less(x, bound), x, bound); }
  Value bits(Value x) { return arith::BitcastOp::create(b, loc, b.getI32Type(), x); }
  Value fromBits(Value x) { return arith::BitcastOp::create(b, loc, b.getF32Type(), x); }
  Value toInt(Value x) { return arith::FPToSIOp::create(b, loc, b.getI32Type(), x); }
  Value toReal(Value x) { return arith::SIToFPOp::create(b, loc, b.getF32Type(), x); }
  Value addInt(Value l, Value r) { return arith::AddIOp::create(b, loc, l, r); }
  Value subInt(Value l, Value r) { return arith::SubIOp::create(b, loc, l, r); }
  Value andInt(Value l, Value r) { return arith::AndIOp::create(b, loc, l, r); }
  Value shiftLeft(Value l, int32_t by) { return arith::ShLIOp::create(b, loc, l, word(by)); }
  Value shiftRight(Value l, int32_t by) { return arith::ShRUIOp::create(b, loc, l, word(by)); }
  /// Highest power first.
  Value polynomial(Value x, std::initializer_list<float> coefficients) {
    Value sum;
    for (float coefficient : coefficients)
      sum = sum ? fma(sum, x, real(coefficient)) : real(coefficient);
    return sum;
  }

  OpBuilder &b;
  Location loc;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// x = n * ln 2 + rest with |rest| <= ln 2 / 2.
struct Reduced {
  Value n, rest;
};

} // namespace

static Reduced reduceByLn2(Writer &w, Value x) {
  Value n = w.round(w.mul(x, w.real(1.44269504088896341f)));
  Value rest = w.fma(n, w.real(-0.693359375f), x);
  return {n, w.fma(n, w.real(2.12194440e-4f), rest)};
}

/// exp(r) - 1 - r over r^2, |r| <= ln 2 / 2 (Cephes, expf).
static Value expTail(Writer &w, Value r) {
  return w.polynomial(r, {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                          5.0000001201e-1f});
}

static Value buildExp(Writer &w, Value x) {
  constexpr float lowest = -87.3365448f, highest = 88.7228394f;
  Value inside = w.atMost(w.atLeast(x, w.real(lowest)), w.real(highest));
  auto [n, r] = reduceByLn2(w, inside);
  Value power = w.fma(w.mul(r, r), expTail(w, r), w.add(r, w.real(1.0f)));
  // Times 2^n by adding to the exponent: n is in [-126, 128], and the power is
  // below 1 where n is 128.
  Value scaled = w.fromBits(w.addInt(w.bits(power), w.shiftLeft(w.toInt(n), 23)));
  // Exactly 0, not the least normal number: a masked score must vanish.
  scaled = w.select(w.less(x, w.real(lowest)), w.real(0.0f), scaled);
  scaled = w.select(w.is(arith::CmpFPredicate::OGT, x, w.real(highest)), w.real(kInfinity), scaled);
  return w.select(w.isNaN(x), x, scaled);
}

static Value buildExpm1(Writer &w, Value x) {
  // exp(x) - 1 = 2^n * (exp(r) - 1) + (2^n - 1).
  Value inside = w.atMost(w.atLeast(x, w.real(-25.0f)), w.real(88.0f));
  auto [n, r] = reduceByLn2(w, inside);
  Value fraction = w.fma(w.mul(r, r), expTail(w, r), r);
  Value scale = w.fromBits(w.shiftLeft(w.addInt(w.toInt(n), w.word(127)), 23));
  Value result = w.fma(scale, fraction, w.sub(scale, w.real(1.0f)));
  result = w.select(w.is(arith::CmpFPredicate::OGT, x, w.real(88.7228394f)), w.real(kInfinity), result);
  return w.select(w.isNaN(x), x, result);
}

static Value buildLog(Writer &w, Value x) {
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)) (Cephes, logf).
  Value least = w.real(std::numeric_limits<float>::min());
  Value raw = w.bits(w.atLeast(x, least));
  Value exponent = w.subInt(w.shiftRight(raw, 23), w.word(126));
  Value m = w.fromBits(w.addInt(w.andInt(raw, w.word(0x007fffff)), w.word(0x3f000000)));
  Value low = w.less(m, w.real(0.707106781186547524f));
  Value e = w.sub(w.toReal(exponent), w.select(low, w.real(1.0f), w.real(0.0f)));
  Value z = w.add(w.sub(m, w.real(1.0f)), w.select(low, m, w.real(0.0f)));
  Value square = w.mul(z, z);
  Value p = w.polynomial(z, {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                             1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                             3.3333331174e-1f});
  Value y = w.mul(w.mul(z, square), p);
  y = w.fma(e, w.real(-2.12194440e-4f), y);
  y = w.fma(square, w.real(-0.5f), y);
  Value result = w.fma(e, w.real(0.693359375f), w.add(z, y));
  result = w.select(w.is(arith::CmpFPredicate::OEQ, x, w.real(kInfinity)), x, result);
  result = w.select(w.is(arith::CmpFPredicate::OEQ, x, w.real(0.0f)), w.real(-kInfinity), result);
  // Negative, or NaN.
  Value bad = w.is(arith::CmpFPredicate::ULT, x, w.real(0.0f));
  return w.select(bad, w.real(std::numeric_limits<float>::quiet_NaN()), result);
}

static Value buildTanh(Writer &w, Value x) {
  // |x| < 0.625: odd polynomial (Cephes, tanhf). Otherwise 1 - 2 / (exp(2|x|) + 1).
  Value size = w.abs(x), square = w.mul(x, x);
  Value p = w.polynomial(square, {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                  -3.33332819422e-1f});
  Value small = w.fma(w.mul(p, square), x, x);
  Value power = buildExp(w, w.add(size, size));
  Value large = w.sub(w.real(1.0f), w.div(w.real(2.0f), w.add(power, w.real(1.0f))));
  return w.select(w.less(size, w.real(0.625f)), small, w.copySign(large, x));
}

static Value buildErf(Writer &w, Value x) {
  // |x| < 1: x * P(x^2), the Taylor series to x^21, whose first missing term is
  // below 3e-10. Otherwise 1 - exp(-x^2) * t * Q(t), t = 1 / (1 + p |x|) (Hastings; Abramowitz and Stegun
  // 7.1.26), with an error of 1.5e-7 absolute.
  Value size = w.abs(x), square = w.mul(x, x);
  Value series = w.polynomial(square, {1.4807192815e-8f, -1.6342614095e-7f, 1.6462114366e-6f, -1.4925650358e-5f,
                                       1.2055332982e-4f, -8.5483270235e-4f, 5.2239776254e-3f, -2.6866170645e-2f,
                                       1.1283791671e-1f, -3.7612638903e-1f, 1.1283791671f});
  Value small = w.mul(x, series);
  Value t = w.div(w.real(1.0f), w.fma(w.real(0.3275911f), size, w.real(1.0f)));
  Value q = w.polynomial(t, {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f});
  Value large = w.sub(w.real(1.0f), w.mul(w.mul(t, q), buildExp(w, w.neg(square))));
  Value result = w.select(w.less(size, w.real(1.0f)), small, w.copySign(large, x));
  return w.select(w.isNaN(x), x, result);
}

/// sin(x) for shift 0, cos(x) for shift 1.
static Value buildSine(Writer &w, Value x, int32_t shift) {
  Value n = w.round(w.mul(x, w.real(0.636619772367581343f)));
  Value r = w.fma(n, w.real(-1.57079637050628662f), x);
  r = w.fma(n, w.real(4.37113882867379290e-8f), r);
  r = w.fma(n, w.real(1.71512451000588187e-15f), r);
  // Large, infinite and NaN have no quadrant: any integer will do for them.
  Value bounded = w.atMost(w.atLeast(n, w.real(-1e9f)), w.real(1e9f));
  Value quadrant = w.addInt(w.toInt(bounded), w.word(shift));
  Value square = w.mul(r, r);
  Value sine = w.polynomial(square, {2.7183114e-6f, -1.9839335e-4f, 8.3333291e-3f, -1.6666667e-1f});
  sine = w.fma(w.mul(sine, square), r, r);
  Value cosine = w.polynomial(square, {2.4433157e-5f, -1.3887316e-3f, 4.1666646e-2f, -0.5f});
  cosine = w.fma(cosine, square, w.real(1.0f));
  auto bit = [&](int32_t mask) -> Value {
    return arith::CmpIOp::create(w.b, w.loc, arith::CmpIPredicate::ne, w.andInt(quadrant, w.word(mask)), w.word(0));
  };
  Value result = w.select(bit(1), cosine, sine);
  return w.select(bit(2), w.neg(result), result);
}

static Value buildPow(Writer &w, Value x, Value y) {
  // exp(y * log|x|) in f64 where the product needs the digits: log|x| = e ln 2
  // + log m would lose them times y. The f32 log is split from its error by one
  // Newton step: l + (x - exp(l)) / exp(l).
  Value size = w.abs(x);
  Value l = buildLog(w, size);
  Value back = buildExp(w, l);
  Value correction = w.div(w.sub(size, back), back);
  Value finite = w.less(w.abs(w.mul(correction, w.real(1.0f))), w.real(1.0f));
  correction = w.select(finite, correction, w.real(0.0f));
  Value product = w.mul(y, l);
  Value rest = w.fma(y, l, w.neg(product));
  rest = w.fma(y, correction, rest);
  Value power = buildExp(w, product);
  Value small = w.less(w.abs(rest), w.real(1.0f));
  Value refined = w.fma(power, w.select(small, rest, w.real(0.0f)), power);
  power = w.select(w.is(arith::CmpFPredicate::OEQ, power, w.real(kInfinity)), power, refined);
  // A negative base: defined for whole exponents, negative for odd ones.
  Value whole = w.is(arith::CmpFPredicate::OEQ, w.round(y), y);
  Value half = w.mul(y, w.real(0.5f));
  Value odd = w.is(arith::CmpFPredicate::UNE, w.round(half), half);
  Value negative = w.less(x, w.real(0.0f));
  Value nan = w.real(std::numeric_limits<float>::quiet_NaN());
  Value ofNegative = w.select(whole, w.select(odd, w.neg(power), power), nan);
  Value result = w.select(negative, ofNegative, power);
  Value one = w.real(1.0f);
  result = w.select(w.is(arith::CmpFPredicate::OEQ, y, w.real(0.0f)), one, result);
  return w.select(w.is(arith::CmpFPredicate::OEQ, x, one), one, result);
}

//===----------------------------------------------------------------------===//
// bf16: LLVM would call the compiler's runtime library for the narrowing.
//===----------------------------------------------------------------------===//

static Value buildWiden(Writer &w, Value x) {
  Value half = arith::BitcastOp::create(w.b, w.loc, w.b.getI16Type(), x);
  return w.fromBits(w.shiftLeft(arith::ExtUIOp::create(w.b, w.loc, w.b.getI32Type(), half), 16));
}

static Value buildNarrow(Writer &w, Value x) {
  // To nearest even: add half of the last place that stays, less one if it is
  // even. A NaN could overflow to infinity that way, so it is made quiet first.
  Value raw = w.bits(x);
  Value last = w.andInt(w.shiftRight(raw, 16), w.word(1));
  Value rounded = w.addInt(w.addInt(raw, w.word(0x7fff)), last);
  Value quiet = arith::OrIOp::create(w.b, w.loc, raw, w.word(0x00400000));
  Value bits = w.shiftRight(w.select(w.isNaN(x), quiet, rounded), 16);
  Value half = arith::TruncIOp::create(w.b, w.loc, w.b.getI16Type(), bits);
  return arith::BitcastOp::create(w.b, w.loc, w.b.getBF16Type(), half);
}

void segue::expandMath(Operation *root) {
  SmallVector<Operation *> ops;
  root->walk([&](Operation *op) {
    if (isa<math::ExpOp, math::ExpM1Op, math::LogOp, math::TanhOp, math::ErfOp, math::SinOp, math::CosOp, math::PowFOp,
            math::RsqrtOp, arith::ExtFOp, arith::TruncFOp>(op))
      ops.push_back(op);
  });
  for (Operation *op : ops) {
    OpBuilder b(op);
    Writer w(b, op->getLoc());
    Value x = op->getOperand(0), result;
    if (isa<arith::ExtFOp>(op) && x.getType().isBF16())
      result = buildWiden(w, x);
    else if (isa<arith::TruncFOp>(op) && op->getResult(0).getType().isBF16())
      result = buildNarrow(w, x);
    else if (!x.getType().isF32() || isa<arith::ExtFOp, arith::TruncFOp>(op))
      continue;
    else if (isa<math::ExpOp>(op))
      result = buildExp(w, x);
    else if (isa<math::ExpM1Op>(op))
      result = buildExpm1(w, x);
    else if (isa<math::LogOp>(op))
      result = buildLog(w, x);
    else if (isa<math::TanhOp>(op))
      result = buildTanh(w, x);
    else if (isa<math::ErfOp>(op))
      result = buildErf(w, x);
    else if (isa<math::SinOp>(op))
      result = buildSine(w, x, 0);
    else if (isa<math::CosOp>(op))
      result = buildSine(w, x, 1);
    else if (isa<math::RsqrtOp>(op))
      result = w.div(w.real(1.0f), math::SqrtOp::create(b, op->getLoc(), x));
    else
      result = buildPow(w, x, op->getOperand(1));
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }
}
