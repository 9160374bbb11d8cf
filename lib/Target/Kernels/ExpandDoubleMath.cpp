//===- ExpandDoubleMath.cpp - transcendental functions of f64 -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Branch-free f64 forms, as those of ExpandMath.cpp are for f32: argument
// reduction, then a polynomial. What f32 has in 7 digits these have in 15: some
// units in the last place, which docs/guides/numerics.md states. Whole numbers are
// found by adding 1.5 * 2^52, which leaves them in the last bits: AVX2 has no
// conversion of f64 to i64.
//
//===----------------------------------------------------------------------===//

#include "ExpandDoubleMath.h"
#include "MathWriter.h"
#include "llvm/ADT/TypeSwitch.h"
#include <algorithm>
#include <limits>

using namespace mlir;
using namespace segue;

namespace {

/// Writes f64 and i64 arithmetic.
class Writer : public MathWriter {
public:
  using MathWriter::MathWriter;
  using MathWriter::is;

  Value real(double value) { return arith::ConstantOp::create(b, loc, b.getF64FloatAttr(value)); }
  Value word(int64_t value) { return arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(value)); }
  Value is(Value l, double r) { return is(arith::CmpFPredicate::OEQ, l, real(r)); }
  Value bits(Value x) { return arith::BitcastOp::create(b, loc, b.getI64Type(), x); }
  Value fromBits(Value x) { return arith::BitcastOp::create(b, loc, b.getF64Type(), x); }
  Value shiftLeft(Value l, int64_t by) { return arith::ShLIOp::create(b, loc, l, word(by)); }
  Value shiftRight(Value l, int64_t by) { return arith::ShRUIOp::create(b, loc, l, word(by)); }
  /// Highest power first.
  Value polynomial(Value x, ArrayRef<double> coefficients) {
    Value sum;
    for (double coefficient : coefficients)
      sum = sum ? fma(sum, x, real(coefficient)) : real(coefficient);
    return sum;
  }
  /// A whole number below 2^51 as i64.
  Value toInt(Value whole) { return subInt(bits(add(whole, real(kMagic))), word(kMagicBits)); }
  /// An i64 below 2^51 as f64.
  Value toReal(Value whole) { return sub(fromBits(addInt(whole, word(kMagicBits))), real(kMagic)); }
  /// 2^n for n in [-1022, 1023].
  Value powerOfTwo(Value n) { return fromBits(shiftLeft(addInt(n, word(1023)), 52)); }

private:
  static constexpr double kMagic = 0x1.8p52;
  static constexpr int64_t kMagicBits = 0x4338000000000000;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// exp of less is 0 here, of more infinity. The lower bound leaves the results normal numbers.
constexpr double kLowest = -708.0, kHighest = 709.782712893384;
/// ln 2, whose high part has 32 zeros behind, so that products with an exponent are exact.
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;

/// x = n * ln 2 + rest with |rest| <= ln 2 / 2.
struct Reduced {
  Value n, rest;
};

} // namespace

static Reduced reduceByLn2(Writer &w, Value x) {
  Value n = w.round(w.mul(x, w.real(1.44269504088896340736)));
  return {n, w.fma(n, w.real(-kLn2Low), w.fma(n, w.real(-kLn2High), x))};
}

/// exp(r) - 1 - r over r^2 for |r| <= ln 2 / 2: its Taylor series, whose first missing term is below 2^-57.
static Value expTail(Writer &w, Value r) {
  SmallVector<double> coefficients;
  double factorial = 1;
  for (int k = 2; k <= 13; ++k)
    coefficients.push_back(1 / (factorial *= k));
  std::reverse(coefficients.begin(), coefficients.end());
  return w.polynomial(r, coefficients);
}

/// exp(x) for x that is inside of the bounds.
static Value expInside(Writer &w, Value x) {
  auto [n, r] = reduceByLn2(w, x);
  Value power = w.add(w.fma(w.mul(r, r), expTail(w, r), r), w.real(1.0));
  // 2^n goes into the exponent: the power is below 1 where n is 1024.
  return w.fromBits(w.addInt(w.bits(power), w.shiftLeft(w.toInt(n), 52)));
}

static Value buildExp(Writer &w, Value x) {
  Value lowest = w.real(kLowest), highest = w.real(kHighest);
  Value result = expInside(w, w.atMost(w.atLeast(x, lowest), highest));
  result = w.select(w.less(x, lowest), w.real(0.0), result);
  result = w.select(w.more(x, highest), w.real(kInfinity), result);
  return w.select(w.isNaN(x), x, result);
}

static Value buildExpm1(Writer &w, Value x) {
  // exp(x) - 1 = 2^n * (exp(r) - 1) + (2^n - 1), halved where n is 1024.
  Value highest = w.real(kHighest);
  auto [n, r] = reduceByLn2(w, w.atMost(w.atLeast(x, w.real(-50.0)), highest));
  Value fraction = w.fma(w.mul(r, r), expTail(w, r), r), isLast = w.is(n, 1024);
  Value scale = w.powerOfTwo(w.toInt(w.atMost(n, w.real(1023.0))));
  Value result = w.fma(scale, fraction, w.sub(scale, w.real(1.0)));
  result = w.select(isLast, w.add(result, result), result);
  result = w.select(w.more(x, highest), w.real(kInfinity), result);
  return w.select(w.isNaN(x), x, result);
}

namespace {
/// A normal x as 2^e * (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)).
struct Parts {
  Value e, z;
};
} // namespace

static Parts splitForLog(Writer &w, Value x) {
  Value raw = w.bits(w.atLeast(x, w.real(std::numeric_limits<double>::min())));
  Value m = w.fromBits(w.addInt(w.andInt(raw, w.word(0x000fffffffffffff)), w.word(0x3fe0000000000000)));
  Value low = w.less(m, w.real(0.70710678118654752440));
  Value e = w.subInt(w.shiftRight(raw, 52), w.select(low, w.word(1023), w.word(1022)));
  return {e, w.add(w.sub(m, w.real(1.0)), w.select(low, m, w.real(0.0)))};
}

/// e ln 2 + log(1 + z). With s = z / (2 + z), log(1 + z) = z - s (z - s^2 (2/3 + 2/5 s^2 + ...)), |s| < 0.172: z
/// itself stays exact, and the rest is a small part of it.
static Value logOfParts(Writer &w, Parts parts) {
  Value z = parts.z, e = w.toReal(parts.e), s = w.div(z, w.add(z, w.real(2.0))), square = w.mul(s, s);
  SmallVector<double> coefficients;
  for (int k = 23; k >= 3; k -= 2)
    coefficients.push_back(2.0 / k);
  Value series = w.mul(square, w.polynomial(square, coefficients));
  Value rest = w.fma(w.neg(s), w.sub(z, series), w.mul(e, w.real(kLn2Low)));
  return w.fma(e, w.real(kLn2High), w.add(z, rest));
}

/// `result`, the logarithm of x > 0, with what x of 0, of infinity, below 0 and NaN give.
static Value withEndsOfLog(Writer &w, Value x, Value result) {
  result = w.select(w.is(x, kInfinity), x, result);
  result = w.select(w.is(x, 0.0), w.real(-kInfinity), result);
  return w.select(w.is(arith::CmpFPredicate::ULT, x, w.real(0.0)), w.real(kNaN), result);
}

static Value buildLog(Writer &w, Value x) { return withEndsOfLog(w, x, logOfParts(w, splitForLog(w, x))); }

static Value buildLog1p(Writer &w, Value x) {
  // The digits that 1 + x lost in rounding go back into the fraction, where they still count.
  Value one = w.real(1.0), sum = w.add(one, x), lost = w.sub(x, w.sub(sum, one));
  Parts parts = splitForLog(w, sum);
  Value scale = w.powerOfTwo(w.subInt(w.word(0), w.minInt(parts.e, w.word(200))));
  // The lost digits of an infinite x are not a number; the result is set then.
  parts.z = w.fma(lost, scale, parts.z);
  return withEndsOfLog(w, sum, logOfParts(w, parts));
}

static Value buildTanh(Writer &w, Value x) {
  // (exp(2 |x|) - 1) / (exp(2 |x|) + 1), which is 1 from 20 on.
  Value size = w.abs(x), power = buildExpm1(w, w.atMost(w.add(size, size), w.real(60.0)));
  Value result = w.copySign(w.div(power, w.add(power, w.real(2.0))), x);
  return w.select(w.isNaN(x), x, result);
}

static Value buildErf(Writer &w, Value x) {
  // |x| < 1: the Taylor series to x^37. Otherwise 1 - erfc(|x|), erfc by Cody's rational approximation for
  // 0.46875 to 4 (Math. Comp. 23, 1969), which from 4 on is still right to the 1e-16 that matters beside 1.
  Value size = w.abs(x), square = w.mul(x, x);
  SmallVector<double> series;
  double factorial = 1, twoOverRootPi = 1.12837916709551257390;
  for (int k = 0; k <= 18; factorial *= ++k)
    series.push_back((k % 2 ? -1 : 1) * twoOverRootPi / (factorial * (2 * k + 1)));
  std::reverse(series.begin(), series.end());
  Value small = w.mul(x, w.polynomial(w.atMost(square, w.real(1.0)), series));

  constexpr double above[] = {2.15311535474403846343e-8, 5.64188496988670089180e-1, 8.88314979438837594118e0,
                              6.61191906371416294775e1,  2.98635138197400131132e2,  8.81952221241769090411e2,
                              1.71204761263407058314e3,  2.05107837782607146532e3,  1.23033935479799725272e3};
  constexpr double below[] = {1.0,
                              1.57449261107098347253e1,
                              1.17693950891312499305e2,
                              5.37181101862009857509e2,
                              1.62138957456669018874e3,
                              3.29079923573345962678e3,
                              4.36261909014324715820e3,
                              3.43936767414372163696e3,
                              1.23033935480374942043e3};
  Value inside = w.atMost(size, w.real(6.0));
  Value complement = w.div(w.mul(expInside(w, w.neg(w.mul(inside, inside))), w.polynomial(inside, above)),
                           w.polynomial(inside, below));
  Value large = w.copySign(w.sub(w.real(1.0), complement), x);
  return w.select(w.isNaN(x), x, w.select(w.less(size, w.real(1.0)), small, large));
}

/// sin(x) for shift 0, cos(x) for shift 1.
static Value buildSine(Writer &w, Value x, int64_t shift) {
  // x less n quarter turns, of which pi/2 is given in three parts; n is exact up to 2^51.
  Value n = w.round(w.mul(x, w.real(6.36619772367581382433e-01))), minus = w.neg(n);
  Value r = w.fma(minus, w.real(0x1.921fb54442d18p+0), x);
  r = w.fma(minus, w.real(0x1.1a62633145c07p-54), r);
  r = w.fma(minus, w.real(-0x1.f1976b7ed8fbcp-110), r);
  Value quadrant = w.addInt(w.toInt(n), w.word(shift)), square = w.mul(r, r);
  // The kernels of fdlibm, |r| <= pi / 4.
  Value sine = w.polynomial(square, {1.58969099521155010221e-10, -2.50507602534068634195e-08,
                                     2.75573137070700676789e-06, -1.98412698298579493134e-04,
                                     8.33333333332248946124e-03, -1.66666666666666324348e-01});
  sine = w.fma(w.mul(sine, square), r, r);
  Value cosine = w.polynomial(square, {-1.13596475577881948265e-11, 2.08757232129817482790e-09,
                                       -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                                       -1.38888888888741095749e-03, 4.16666666666666019037e-02, -0.5});
  cosine = w.fma(cosine, square, w.real(1.0));
  auto bit = [&](int64_t mask) -> Value {
    return arith::CmpIOp::create(w.b, w.loc, arith::CmpIPredicate::ne, w.andInt(quadrant, w.word(mask)), w.word(0));
  };
  Value result = w.select(bit(1), cosine, sine);
  return w.select(bit(2), w.neg(result), result);
}

static Value buildPow(Writer &w, Value x, Value y) {
  // exp(y log|x|). The product is rounded: a result of 1e100 keeps 13 digits, one near 1 all.
  Value size = w.abs(x), one = w.real(1.0), zero = w.real(0.0);
  Value l = logOfParts(w, splitForLog(w, size));
  l = w.select(w.is(size, 0.0), w.real(-kInfinity), l);
  l = w.select(w.is(size, kInfinity), size, l);
  // 1 to an infinite power is 1; infinity times its logarithm would be NaN.
  Value power = buildExp(w, w.select(w.is(size, 1.0), zero, w.mul(y, l)));
  // The sign of the base stays for odd exponents. A finite negative base has powers for whole exponents alone.
  Value whole = w.is(arith::CmpFPredicate::OEQ, w.round(y), y), half = w.mul(y, w.real(0.5));
  Value odd = w.is(arith::CmpFPredicate::UNE, w.round(half), half);
  Value result = w.select(whole, w.select(odd, w.copySign(power, x), power), power);
  Value nan = w.real(kNaN);
  Value ofNegative = w.select(w.is(x, -kInfinity), result, w.select(whole, result, nan));
  result = w.select(w.less(x, zero), ofNegative, result);
  result = w.select(w.is(arith::CmpFPredicate::UNO, x, y), nan, result);
  result = w.select(w.is(y, 0.0), one, result);
  return w.select(w.is(x, 1.0), one, result);
}

Value segue::buildDoubleMath(OpBuilder &builder, Operation *op) {
  Writer w(builder, op->getLoc());
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
      .Case([&](math::RsqrtOp) -> Value {
        return w.div(w.real(1.0), math::SqrtOp::create(builder, op->getLoc(), x));
      })
      .Default(Value());
}
