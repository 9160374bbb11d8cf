//===- ExpandMath.cpp - transcendental functions as arithmetic ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Branch-free f32 forms of exp, expm1, log, log1p, tanh, erf, sin, cos and pow:
// argument reduction, then a polynomial. They carry no fast-math flags, since
// reassociation would undo the reduction; products and sums are written as fma.
// docs/guides/numerics.md states how many units in the last place each may be
// off, and test/python/test_extremes.py holds them to that.
//
// f64 has forms of its own, in ExpandDoubleMath.cpp.
//
// Kernels run with denormals flushed, so results below the least normal number
// are 0 here. Where f32 lacks the digits, sin, cos and pow reduce in f64, which
// takes two registers for one and still vectorises.
//
//===----------------------------------------------------------------------===//

#include "ExpandMath.h"
#include "ExpandDoubleMath.h"
#include "MathWriter.h"
#include "llvm/ADT/TypeSwitch.h"
#include <limits>

using namespace mlir;
using namespace segue;

namespace {

/// Writes f32 and i32 arithmetic.
class Writer : public MathWriter {
public:
  using MathWriter::MathWriter;

  Value real(float value) { return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value)); }
  Value wide(double value) { return arith::ConstantOp::create(b, loc, b.getF64FloatAttr(value)); }
  Value word(int32_t value) { return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(value)); }
  Value bits(Value x) { return arith::BitcastOp::create(b, loc, b.getI32Type(), x); }
  Value fromBits(Value x) { return arith::BitcastOp::create(b, loc, b.getF32Type(), x); }
  Value toInt(Value x) { return arith::FPToSIOp::create(b, loc, b.getI32Type(), x); }
  Value toReal(Value x) { return arith::SIToFPOp::create(b, loc, b.getF32Type(), x); }
  Value widen(Value x) { return arith::ExtFOp::create(b, loc, b.getF64Type(), x); }
  Value narrow(Value x) { return arith::TruncFOp::create(b, loc, b.getF32Type(), x); }
  Value shiftLeft(Value l, int32_t by) { return arith::ShLIOp::create(b, loc, l, word(by)); }
  Value shiftRight(Value l, int32_t by) { return arith::ShRUIOp::create(b, loc, l, word(by)); }
  /// Returns a polynomial whose coefficients begin with that of the highest power.
  Value polynomial(Value x, std::initializer_list<float> coefficients) {
    Value sum;
    for (float coefficient : coefficients)
      sum = sum ? fma(sum, x, real(coefficient)) : real(coefficient);
    return sum;
  }
  Value widePolynomial(Value x, std::initializer_list<double> coefficients) {
    Value sum;
    for (double coefficient : coefficients)
      sum = sum ? fma(sum, x, wide(coefficient)) : wide(coefficient);
    return sum;
  }
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// exp of less is 0 here, of more infinity. The lower bound is the natural logarithm of the least normal f32; the upper
/// one the last f32 below that of the largest, as exp of the next one is more than it.
constexpr float kLowest = -87.3365448f, kHighest = 88.7228317f;
/// The natural logarithm of the largest f32.
constexpr double kLogOfLargest = 88.722839052068351;

/// The parts of x = n * ln 2 + rest with |rest| <= ln 2 / 2.
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

/// exp(r) * 2^n for whole n in [-126, 128] and |r| <= ln 2 / 2.
static Value scaledExp(Writer &w, Value r, Value n) {
  Value power = w.fma(w.mul(r, r), expTail(w, r), w.add(r, w.real(1.0f)));
  // 2^n goes into the exponent: the power is below 1 where n is 128.
  return w.fromBits(w.addInt(w.bits(power), w.shiftLeft(n, 23)));
}

static Value buildExp(Writer &w, Value x) {
  Value lowest = w.real(kLowest), highest = w.real(kHighest);
  auto [n, r] = reduceByLn2(w, w.atMost(w.atLeast(x, lowest), highest));
  Value result = scaledExp(w, r, w.toInt(n));
  // Exactly 0, not the least normal number: a masked score must vanish.
  result = w.select(w.less(x, lowest), w.real(0.0f), result);
  result = w.select(w.is(arith::CmpFPredicate::OGT, x, highest), w.real(kInfinity), result);
  return w.select(w.isNaN(x), x, result);
}

static Value buildExpm1(Writer &w, Value x) {
  // exp(x) - 1 = 2^n * (exp(r) - 1) + (2^n - 1), where 2^128 is twice 2^127.
  Value highest = w.real(kHighest);
  auto [n, r] = reduceByLn2(w, w.atMost(w.atLeast(x, w.real(-25.0f)), highest));
  Value fraction = w.fma(w.mul(r, r), expTail(w, r), r);
  Value whole = w.toInt(n);
  Value scale = w.fromBits(w.shiftLeft(w.addInt(w.minInt(whole, w.word(127)), w.word(127)), 23));
  Value result = w.fma(scale, fraction, w.sub(scale, w.real(1.0f)));
  result = w.select(w.is(arith::CmpFPredicate::OEQ, n, w.real(128.0f)), w.add(result, result), result);
  result = w.select(w.is(arith::CmpFPredicate::OGT, x, highest), w.real(kInfinity), result);
  return w.select(w.isNaN(x), x, result);
}

/// A normal x as 2^e * (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)); what is
/// smaller is taken for the least normal number.
struct Parts {
  Value e, z;
};

static Parts splitForLog(Writer &w, Value x) {
  Value raw = w.bits(w.atLeast(x, w.real(std::numeric_limits<float>::min())));
  Value m = w.fromBits(w.addInt(w.andInt(raw, w.word(0x007fffff)), w.word(0x3f000000)));
  Value low = w.less(m, w.real(0.707106781186547524f));
  Value e = w.subInt(w.shiftRight(raw, 23), w.select(low, w.word(127), w.word(126)));
  Value z = w.add(w.sub(m, w.real(1.0f)), w.select(low, m, w.real(0.0f)));
  return {e, z};
}

/// e ln 2 + log(1 + z) (Cephes, logf).
static Value logOfParts(Writer &w, Parts parts) {
  Value z = parts.z, e = w.toReal(parts.e), square = w.mul(z, z);
  Value p = w.polynomial(z, {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                             1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                             3.3333331174e-1f});
  Value y = w.mul(w.mul(z, square), p);
  y = w.fma(e, w.real(-2.12194440e-4f), y);
  y = w.fma(square, w.real(-0.5f), y);
  return w.fma(e, w.real(0.693359375f), w.add(z, y));
}

/// Returns `result`, the logarithm of x > 0, with the values for x of 0, of infinity, below 0 and NaN.
static Value withEndsOfLog(Writer &w, Value x, Value result) {
  result = w.select(w.is(arith::CmpFPredicate::OEQ, x, w.real(kInfinity)), x, result);
  result = w.select(w.is(arith::CmpFPredicate::OEQ, x, w.real(0.0f)), w.real(-kInfinity), result);
  Value bad = w.is(arith::CmpFPredicate::ULT, x, w.real(0.0f));
  return w.select(bad, w.real(std::numeric_limits<float>::quiet_NaN()), result);
}

static Value buildLog(Writer &w, Value x) { return withEndsOfLog(w, x, logOfParts(w, splitForLog(w, x))); }

static Value buildLog1p(Writer &w, Value x) {
  // The part that 1 + x lost in rounding goes back into the fraction, where it still
  // counts; with e = 0 the fraction is x again. That part is 0 long before 2^-e ends.
  Value one = w.real(1.0f), sum = w.add(one, x), lost = w.sub(x, w.sub(sum, one));
  Parts parts = splitForLog(w, sum);
  Value scale = w.fromBits(w.shiftLeft(w.subInt(w.word(127), w.minInt(parts.e, w.word(64))), 23));
  parts.z = w.fma(lost, scale, parts.z);
  return withEndsOfLog(w, sum, logOfParts(w, parts));
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
  // x in quarter turns: x * 2/pi. From 2^47 on x is an integer times 2^24, from
  // 2^71 on times 2^48 and so on; that power of two goes into 2/pi, of which
  // whole turns are left out. The product then has at most 48 bits before the
  // point, so that whole quarters are exact in f64, and the low part of 2/pi
  // gives the rest its digits.
  struct Range {
    float above, scale;
    double high, low;
  };
  constexpr Range ranges[] = {{0, 1, 0x1.45f306dc9c883p-1, -0x1.6b01ec5417056p-55},
                              {0x1p47f, 0x1p-24f, -0x1.236377d5ac07bp-1, -0x1.505c1596447e5p-57},
                              {0x1p71f, 0x1p-48f, 0x1.529fc2757d1f5p-4, 0x1.a6ee06db14acdp-59},
                              {0x1p95f, 0x1p-72f, 0x1.3abe8fa9a6ee0p-3, 0x1.b6c52b3278872p-57},
                              {0x1p119f, 0x1p-96f, 0x1.f534ddc0db629p+0, 0x1.664f10e4107f9p-54}};
  Value size = w.abs(x), scale = w.real(1.0f), high = w.wide(ranges[0].high), low = w.wide(ranges[0].low);
  for (const Range &range : llvm::drop_begin(ranges)) {
    Value beyond = w.is(arith::CmpFPredicate::OGE, size, w.real(range.above));
    scale = w.select(beyond, w.real(range.scale), scale);
    high = w.select(beyond, w.wide(range.high), high);
    low = w.select(beyond, w.wide(range.low), low);
  }
  Value scaled = w.widen(w.mul(x, scale)), product = w.mul(scaled, high);
  Value rest = w.fma(scaled, low, w.fma(scaled, high, w.neg(product)));
  // Adding 1.5 * 2^52 rounds to a whole number, which is then in the last bits.
  Value magic = w.wide(0x1.8p52), shifted = w.add(product, magic);
  rest = w.add(w.sub(product, w.sub(shifted, magic)), rest);
  Value r = w.narrow(w.mul(rest, w.wide(0x1.921fb54442d18p+0)));
  Value bits = arith::BitcastOp::create(w.b, w.loc, w.b.getI64Type(), shifted);
  Value quadrant = w.addInt(arith::TruncIOp::create(w.b, w.loc, w.b.getI32Type(), bits), w.word(shift));
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
  // exp(y * log|x|), the logarithm and the product in f64: in f32 a product of
  // 80 would have lost six of its bits. With s = z / (2 + z),
  // log(1 + z) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...), |s| < 0.172.
  Value size = w.abs(x), one = w.real(1.0f), zero = w.real(0.0f);
  auto [e, z] = splitForLog(w, size);
  Value wideZ = w.widen(z), s = w.div(wideZ, w.add(wideZ, w.wide(2.0)));
  Value series = w.widePolynomial(w.mul(s, s), {2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0});
  Value l = w.fma(w.widen(w.toReal(e)), w.wide(0.69314718055994531), w.mul(s, series));
  auto is = [&](Value value, float number) { return w.is(arith::CmpFPredicate::OEQ, value, w.real(number)); };
  l = w.select(is(size, 0), w.wide(-kInfinity), l);
  l = w.select(is(size, kInfinity), w.wide(kInfinity), l);
  Value product = w.mul(w.widen(y), l);
  // 1 to an infinite power is 1; infinity times its logarithm would be NaN.
  product = w.select(is(size, 1), w.wide(0.0), product);

  Value lowest = w.wide(kLowest), highest = w.wide(kLogOfLargest);
  Value inside = w.atMost(w.atLeast(product, lowest), highest);
  Value n = w.round(w.mul(inside, w.wide(1.44269504088896341)));
  Value r = w.narrow(w.fma(n, w.wide(-0.69314718055994531), inside));
  Value power = scaledExp(w, r, w.toInt(n));
  power = w.select(w.less(product, lowest), zero, power);
  power = w.select(w.is(arith::CmpFPredicate::OGT, product, highest), w.real(kInfinity), power);

  // The sign of the base stays for odd exponents. A finite negative base has
  // powers for whole exponents alone.
  Value whole = w.is(arith::CmpFPredicate::OEQ, w.round(y), y), half = w.mul(y, w.real(0.5f));
  Value odd = w.is(arith::CmpFPredicate::UNE, w.round(half), half);
  Value result = w.select(whole, w.select(odd, w.copySign(power, x), power), power);
  Value nan = w.real(std::numeric_limits<float>::quiet_NaN());
  Value ofNegative = w.select(w.is(arith::CmpFPredicate::OEQ, x, w.real(-kInfinity)), result, w.select(whole, result, nan));
  result = w.select(w.less(x, zero), ofNegative, result);
  result = w.select(w.is(arith::CmpFPredicate::UNO, x, y), nan, result);
  result = w.select(is(y, 0), one, result);
  return w.select(is(x, 1), one, result);
}

//===----------------------------------------------------------------------===//
// bf16: LLVM would call the compiler's runtime library for the narrowing.
//===----------------------------------------------------------------------===//

static Value buildWiden(Writer &w, Value x) {
  Value half = arith::BitcastOp::create(w.b, w.loc, w.b.getI16Type(), x);
  return w.fromBits(w.shiftLeft(arith::ExtUIOp::create(w.b, w.loc, w.b.getI32Type(), half), 16));
}

static Value buildNarrow(Writer &w, Value x) {
  // The value is rounded to nearest even: half of the last place that stays is added, less
  // one if it is even. A NaN could overflow to infinity that way, so it is made quiet
  // first.
  Value raw = w.bits(x);
  Value last = w.andInt(w.shiftRight(raw, 16), w.word(1));
  Value rounded = w.addInt(w.addInt(raw, w.word(0x7fff)), last);
  Value quiet = arith::OrIOp::create(w.b, w.loc, raw, w.word(0x00400000));
  Value bits = w.shiftRight(w.select(w.isNaN(x), quiet, rounded), 16);
  Value half = arith::TruncIOp::create(w.b, w.loc, w.b.getI16Type(), bits);
  return arith::BitcastOp::create(w.b, w.loc, w.b.getBF16Type(), half);
}

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

/// Returns the result of an op of `math` on f32 as arithmetic, or null for a function that has no form here.
static Value buildMath(Writer &w, Operation *op) {
  Value x = op->getOperand(0);
  return TypeSwitch<Operation *, Value>(op)
      .Case([&](math::ExpOp) { return buildExp(w, x); })
      .Case([&](math::ExpM1Op) { return buildExpm1(w, x); })
      .Case([&](math::LogOp) { return buildLog(w, x); })
      .Case([&](math::Log1pOp) { return buildLog1p(w, x); })
      .Case([&](math::TanhOp) { return buildTanh(w, x); })
      .Case([&](math::ErfOp) { return buildErf(w, x); })
      .Case([&](math::SinOp) { return buildSine(w, x, 0); })
      .Case([&](math::CosOp) { return buildSine(w, x, 1); })
      .Case([&](math::PowFOp op) { return buildPow(w, x, op.getRhs()); })
      .Case([&](math::RsqrtOp) -> Value { return w.div(w.real(1.0f), math::SqrtOp::create(w.b, w.loc, x)); })
      .Default(Value());
}

/// Returns true for what processors and GPUs have an instruction for.
static bool isInstruction(Operation *op) {
  return isa<math::AbsFOp, math::AbsIOp, math::CeilOp, math::CopySignOp, math::FloorOp, math::FmaOp, math::RoundEvenOp,
             math::SqrtOp, math::TruncOp>(op);
}

/// Returns true for the conversions between bf16 and f32.
static bool convertsBf16(Operation *op) {
  return (isa<arith::ExtFOp>(op) && op->getOperand(0).getType().isBF16()) ||
         (isa<arith::TruncFOp>(op) && op->getResult(0).getType().isBF16());
}

LogicalResult segue::expandMath(Operation *root) {
  SmallVector<Operation *> ops;
  root->walk([&](Operation *op) {
    if ((isa_and_nonnull<math::MathDialect>(op->getDialect()) && !isInstruction(op)) || convertsBf16(op))
      ops.push_back(op);
  });
  for (Operation *op : ops) {
    OpBuilder b(op);
    Writer w(b, op->getLoc());
    Value x = op->getOperand(0), result;
    if (isa<arith::ExtFOp>(op))
      result = buildWiden(w, x);
    else if (isa<arith::TruncFOp>(op))
      result = buildNarrow(w, x);
    else if (x.getType().isF64())
      result = buildDoubleMath(b, op);
    else if (x.getType().isF32())
      result = buildMath(w, op);
    if (!result)
      return op->emitOpError() << "on " << x.getType() << " has no form in arithmetic, and a kernel calls no library: "
                                  "lib/Target/Kernels has the forms, of f32 in ExpandMath.cpp, of f64 in ExpandDoubleMath.cpp";
    op->getResult(0).replaceAllUsesWith(result);
    op->erase();
  }
  return success();
}
