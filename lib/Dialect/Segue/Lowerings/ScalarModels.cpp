//===- ScalarModels.cpp - one element of each elementwise op --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// ScalarOpInterface of the elementwise primitives: what they do to one element,
// in `arith` and `math`, and how accurately. Floats but f64 arrive as f32 whatever they
// are stored as. A function of `math` without an instruction has its form in
// lib/Target/Kernels.
//
//===----------------------------------------------------------------------===//

#include "ScalarModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

/// Makes a model of a function.
namespace {
template <typename OpTy, Value (*build)(OpTy, OpBuilder &, Location, ValueRange), Accuracy accuracy>
struct ScalarModel : ScalarOpInterface::ExternalModel<ScalarModel<OpTy, build, accuracy>, OpTy> {
  Value buildScalar(Operation *op, OpBuilder &builder, ValueRange operands) const {
    return build(cast<OpTy>(op), builder, op->getLoc(), operands);
  }
  Accuracy getAccuracy(Operation *) const { return accuracy; }
};
} // namespace

template <typename OpTy, Value (*build)(OpTy, OpBuilder &, Location, ValueRange), Accuracy accuracy>
static void attach(MLIRContext *context) {
  OpTy::template attachInterface<ScalarModel<OpTy, build, accuracy>>(*context);
}

static bool isFloat(Value value) { return isa<FloatType>(value.getType()); }

static Value constant(OpBuilder &b, Location loc, Type type, double value) {
  if (isa<FloatType>(type))
    return arith::ConstantOp::create(b, loc, b.getFloatAttr(type, value));
  return arith::ConstantOp::create(b, loc, b.getIntegerAttr(type, static_cast<int64_t>(value)));
}

//===----------------------------------------------------------------------===//
// Families
//===----------------------------------------------------------------------===//

/// A float op of `math` with one operand.
template <typename OpTy, typename MathOp>
static Value unaryMath(OpTy, OpBuilder &b, Location loc, ValueRange v) {
  return MathOp::create(b, loc, v[0]);
}

/// Ops of `arith` for floats and for integers.
template <typename OpTy, typename FloatOp, typename IntOp>
static Value binaryArith(OpTy, OpBuilder &b, Location loc, ValueRange v) {
  if (isFloat(v[0]))
    return FloatOp::create(b, loc, v[0], v[1]);
  return IntOp::create(b, loc, v[0], v[1]);
}

template <typename OpTy, typename IntOp>
static Value binaryInt(OpTy, OpBuilder &b, Location loc, ValueRange v) {
  return IntOp::create(b, loc, v[0], v[1]);
}

//===----------------------------------------------------------------------===//
// Single ops
//===----------------------------------------------------------------------===//

static Value negScalar(NegOp, OpBuilder &b, Location loc, ValueRange v) {
  if (isFloat(v[0]))
    return arith::NegFOp::create(b, loc, v[0]);
  return arith::SubIOp::create(b, loc, constant(b, loc, v[0].getType(), 0), v[0]);
}

static Value absScalar(AbsOp, OpBuilder &b, Location loc, ValueRange v) {
  if (isFloat(v[0]))
    return math::AbsFOp::create(b, loc, v[0]);
  return math::AbsIOp::create(b, loc, v[0]);
}

static Value signScalar(SignOp, OpBuilder &b, Location loc, ValueRange v) {
  Type type = v[0].getType();
  Value zero = constant(b, loc, type, 0), one = constant(b, loc, type, 1), minus = constant(b, loc, type, -1);
  Value positive, negative;
  if (isFloat(v[0])) {
    positive = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, v[0], zero);
    negative = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, v[0], zero);
  } else {
    positive = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::sgt, v[0], zero);
    negative = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, v[0], zero);
  }
  return arith::SelectOp::create(b, loc, positive, one, arith::SelectOp::create(b, loc, negative, minus, zero));
}

static Value notScalar(NotOp, OpBuilder &b, Location loc, ValueRange v) {
  return arith::XOrIOp::create(b, loc, v[0], constant(b, loc, b.getI1Type(), 1));
}

/// Small constant exponents are what models use; they are exact and cheap.
static Value powScalar(PowOp, OpBuilder &b, Location loc, ValueRange v) {
  Value x = v[0];
  Type type = x.getType();
  auto product = [&](Value l, Value r) -> Value { return arith::MulFOp::create(b, loc, l, r); };
  auto inverse = [&](Value d) -> Value { return arith::DivFOp::create(b, loc, constant(b, loc, type, 1), d); };
  FloatAttr exponent;
  if (matchPattern(v[1], m_Constant(&exponent))) {
    double value = exponent.getValueAsDouble();
    if (value == 0)
      return constant(b, loc, type, 1);
    if (value == 1)
      return x;
    if (value == 2)
      return product(x, x);
    if (value == 3)
      return product(product(x, x), x);
    if (value == 4)
      return product(product(x, x), product(x, x));
    if (value == 0.5)
      return math::SqrtOp::create(b, loc, x);
    if (value == -0.5)
      return math::RsqrtOp::create(b, loc, x);
    if (value == -1)
      return inverse(x);
    if (value == -2)
      return inverse(product(x, x));
  }
  return math::PowFOp::create(b, loc, x, v[1]);
}

/// Long division in f64. A quotient is cut to 29 digits, whose product with the 24 of `rhs` is exact, and so is the
/// difference, as both are nearly equal: each round takes 28 digits off the quotient, which has 254 at most. A quotient
/// that was rounded up to a whole number leaves less than nothing.
static Value remScalar(RemOp, OpBuilder &b, Location loc, ValueRange v) {
  constexpr int kRounds = 10;
  Type type = v[0].getType(), wide = b.getF64Type(), bits = b.getI64Type();
  auto magnitude = [&](Value x) -> Value {
    return math::AbsFOp::create(b, loc, arith::ExtFOp::create(b, loc, wide, x).getResult());
  };
  // Beyond all floats, in the place of infinity, which would be multiplied with 0.
  Value large = constant(b, loc, wide, 0x1p200), zero = constant(b, loc, wide, 0);
  Value rest = magnitude(v[0]), divisor = arith::MinimumFOp::create(b, loc, magnitude(v[1]), large);
  Value digits = arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(~((int64_t(1) << 24) - 1)));
  for (int round = 0; round < kRounds; ++round) {
    Value quotient = arith::BitcastOp::create(b, loc, bits, arith::DivFOp::create(b, loc, rest, divisor).getResult());
    quotient = arith::BitcastOp::create(b, loc, wide, arith::AndIOp::create(b, loc, quotient, digits).getResult());
    quotient = math::TruncOp::create(b, loc, quotient);
    rest = arith::SubFOp::create(b, loc, rest, arith::MulFOp::create(b, loc, quotient, divisor).getResult());
  }
  Value below = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, rest, zero);
  rest = arith::SelectOp::create(b, loc, below, arith::AddFOp::create(b, loc, rest, divisor).getResult(), rest);
  Value result = arith::TruncFOp::create(b, loc, type, rest);
  Value isNegative = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, v[0], constant(b, loc, type, 0));
  return arith::SelectOp::create(b, loc, isNegative, arith::NegFOp::create(b, loc, result).getResult(), result);
}

static Value compareScalar(CompareOp op, OpBuilder &b, Location loc, ValueRange v) {
  auto at = static_cast<unsigned>(op.getPredicate());
  if (isFloat(v[0])) {
    constexpr arith::CmpFPredicate predicates[] = {arith::CmpFPredicate::OEQ, arith::CmpFPredicate::UNE,
                                                   arith::CmpFPredicate::OLT, arith::CmpFPredicate::OLE,
                                                   arith::CmpFPredicate::OGT, arith::CmpFPredicate::OGE};
    return arith::CmpFOp::create(b, loc, predicates[at], v[0], v[1]);
  }
  constexpr arith::CmpIPredicate predicates[] = {arith::CmpIPredicate::eq,  arith::CmpIPredicate::ne,
                                                 arith::CmpIPredicate::slt, arith::CmpIPredicate::sle,
                                                 arith::CmpIPredicate::sgt, arith::CmpIPredicate::sge};
  constexpr arith::CmpIPredicate truth[] = {arith::CmpIPredicate::eq,  arith::CmpIPredicate::ne,
                                            arith::CmpIPredicate::ult, arith::CmpIPredicate::ule,
                                            arith::CmpIPredicate::ugt, arith::CmpIPredicate::uge};
  return arith::CmpIOp::create(b, loc, v[0].getType().isInteger(1) ? truth[at] : predicates[at], v[0], v[1]);
}

static Value selectScalar(SelectOp, OpBuilder &b, Location loc, ValueRange v) {
  return arith::SelectOp::create(b, loc, v[0], v[1], v[2]);
}

/// Rounds toward zero and saturates; NaN gives 0. `arith.fptosi` alone is
/// undefined outside of its range.
static Value floatToInt(OpBuilder &b, Location loc, Value x, IntegerType to) {
  auto low = APInt::getSignedMinValue(to.getWidth()), high = APInt::getSignedMaxValue(to.getWidth());
  Value lowest = constant(b, loc, x.getType(), low.roundToDouble(true));
  if (to.getWidth() < 24) { // both ends are floats: a few instructions, through i32, to which x86 converts
    Value highest = constant(b, loc, x.getType(), high.roundToDouble(true));
    auto orElse = [&](arith::CmpFPredicate predicate, Value limit, Value value) {
      return arith::SelectOp::create(b, loc, arith::CmpFOp::create(b, loc, predicate, x, limit), value, x);
    };
    x = orElse(arith::CmpFPredicate::OLT, lowest, lowest);
    x = orElse(arith::CmpFPredicate::OGT, highest, highest);
    x = orElse(arith::CmpFPredicate::UNO, x, constant(b, loc, x.getType(), 0));
    return arith::TruncIOp::create(b, loc, to, arith::FPToSIOp::create(b, loc, b.getI32Type(), x));
  }
  // The least float above the range: a power of two, exact.
  Value above = constant(b, loc, x.getType(), -low.roundToDouble(true));
  Value zero = constant(b, loc, x.getType(), 0);
  Value tooHigh = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGE, x, above);
  Value tooLow = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, x, lowest);
  Value isNaN = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNO, x, x);
  Value bad = arith::OrIOp::create(b, loc, tooHigh, arith::OrIOp::create(b, loc, tooLow, isNaN));
  Value number = arith::FPToSIOp::create(b, loc, to, arith::SelectOp::create(b, loc, bad, zero, x));
  Value least = arith::ConstantOp::create(b, loc, b.getIntegerAttr(to, low));
  Value most = arith::ConstantOp::create(b, loc, b.getIntegerAttr(to, high));
  number = arith::SelectOp::create(b, loc, tooHigh, most, number);
  return arith::SelectOp::create(b, loc, tooLow, least, number);
}

/// A float as one that is stored as `to`: in its compute type, rounded as storing would.
static Value roundedTo(OpBuilder &b, Location loc, Value x, Type to) {
  Type f32 = b.getF32Type();
  if (to.isF64())
    return x.getType() == to ? x : arith::ExtFOp::create(b, loc, to, x).getResult();
  if (x.getType().isF64())
    x = arith::TruncFOp::create(b, loc, f32, x);
  return to == f32 ? x : arith::ExtFOp::create(b, loc, f32, arith::TruncFOp::create(b, loc, to, x).getResult());
}

static Value castScalar(CastOp op, OpBuilder &b, Location loc, ValueRange v) {
  Type from = op.getInput().getType().getElementType(), to = op.getType().getElementType();
  Value x = v[0];
  if (from == to)
    return x;
  if (isa<FloatType>(from) && isa<FloatType>(to))
    return roundedTo(b, loc, x, to);
  if (isa<FloatType>(from)) {
    if (to.isInteger(1))
      return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNE, x, constant(b, loc, x.getType(), 0));
    return floatToInt(b, loc, x, cast<IntegerType>(to));
  }
  if (isa<FloatType>(to)) {
    Type wide = computeType(to);
    Value number;
    if (from.isInteger(1))
      number = arith::UIToFPOp::create(b, loc, wide, x);
    else
      number = arith::SIToFPOp::create(b, loc, wide, x);
    return roundedTo(b, loc, number, to);
  }
  if (to.isInteger(1))
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, x, constant(b, loc, from, 0));
  if (from.isInteger(1))
    return arith::ExtUIOp::create(b, loc, to, x);
  if (from.getIntOrFloatBitWidth() < to.getIntOrFloatBitWidth())
    return arith::ExtSIOp::create(b, loc, to, x);
  return arith::TruncIOp::create(b, loc, to, x);
}

void segue::attachScalarModels(MLIRContext *context) {
  attach<NegOp, negScalar, Accuracy::Exact>(context);
  attach<AbsOp, absScalar, Accuracy::Exact>(context);
  attach<SignOp, signScalar, Accuracy::Exact>(context);
  attach<FloorOp, unaryMath<FloorOp, math::FloorOp>, Accuracy::Exact>(context);
  attach<CeilOp, unaryMath<CeilOp, math::CeilOp>, Accuracy::Exact>(context);
  attach<TruncOp, unaryMath<TruncOp, math::TruncOp>, Accuracy::Exact>(context);
  attach<RoundOp, unaryMath<RoundOp, math::RoundEvenOp>, Accuracy::Exact>(context);
  attach<ExpOp, unaryMath<ExpOp, math::ExpOp>, Accuracy::ApproximatedEverywhere>(context);
  attach<Expm1Op, unaryMath<Expm1Op, math::ExpM1Op>, Accuracy::Approximated>(context);
  attach<LogOp, unaryMath<LogOp, math::LogOp>, Accuracy::Approximated>(context);
  attach<Log1pOp, unaryMath<Log1pOp, math::Log1pOp>, Accuracy::Approximated>(context);
  attach<SqrtOp, unaryMath<SqrtOp, math::SqrtOp>, Accuracy::Approximated>(context);
  attach<RsqrtOp, unaryMath<RsqrtOp, math::RsqrtOp>, Accuracy::Approximated>(context);
  attach<SinOp, unaryMath<SinOp, math::SinOp>, Accuracy::Approximated>(context);
  attach<CosOp, unaryMath<CosOp, math::CosOp>, Accuracy::Approximated>(context);
  attach<TanhOp, unaryMath<TanhOp, math::TanhOp>, Accuracy::Approximated>(context);
  attach<ErfOp, unaryMath<ErfOp, math::ErfOp>, Accuracy::Approximated>(context);
  attach<NotOp, notScalar, Accuracy::Exact>(context);
  attach<AddOp, binaryArith<AddOp, arith::AddFOp, arith::AddIOp>, Accuracy::Rounded>(context);
  attach<SubOp, binaryArith<SubOp, arith::SubFOp, arith::SubIOp>, Accuracy::Rounded>(context);
  attach<MulOp, binaryArith<MulOp, arith::MulFOp, arith::MulIOp>, Accuracy::Rounded>(context);
  attach<DivOp, binaryArith<DivOp, arith::DivFOp, arith::DivSIOp>, Accuracy::Approximated>(context);
  attach<MaxOp, binaryArith<MaxOp, arith::MaximumFOp, arith::MaxSIOp>, Accuracy::Exact>(context);
  attach<MinOp, binaryArith<MinOp, arith::MinimumFOp, arith::MinSIOp>, Accuracy::Exact>(context);
  attach<PowOp, powScalar, Accuracy::Approximated>(context);
  attach<RemOp, remScalar, Accuracy::Exact>(context);
  attach<AndOp, binaryInt<AndOp, arith::AndIOp>, Accuracy::Exact>(context);
  attach<OrOp, binaryInt<OrOp, arith::OrIOp>, Accuracy::Exact>(context);
  attach<CompareOp, compareScalar, Accuracy::Exact>(context);
  attach<SelectOp, selectScalar, Accuracy::Exact>(context);
  attach<CastOp, castScalar, Accuracy::Rounded>(context);
}
