//===- Elementwise.cpp - derivatives of elementwise ops -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With x the operand, y the result and g the gradient of the result, all in
// f32. Where both would do, a formula uses the value that the next op most
// likely keeps anyway: y for exp, tanh, sigmoid and relu, x for gelu and silu.
// At the kinks of abs, relu, max, min and pow the answers are PyTorch's.
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// Unary
//===----------------------------------------------------------------------===//

/// A function from x, y and g in f32 to the gradient of x in f32.
using UnaryFormula = Value (*)(GradientBuilder &b, Value x, Value y, Value g);

/// Calls `formula` with casts around it. Operands that the formula does not use
/// leave a dead cast, which `segue-autodiff` removes.
template <typename OpTy, UnaryFormula formula>
static Gradients unary(OpTy op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value gradient = formula(b, b.up(op.getInput()), b.up(op.getResult()), b.up(gradients[0]));
  return SmallVector<Value>{b.down(gradient, op.getInput())};
}

template <typename OpTy, UnaryFormula formula> static void attachUnary(MLIRContext *context) {
  attachDerivative<OpTy, unary<OpTy, formula>>(context);
}

static Value negGradient(GradientBuilder &b, Value, Value, Value g) { return b.neg(g); }

static Value absGradient(GradientBuilder &b, Value x, Value, Value g) { return b.mul(g, b.create<SignOp>(x)); }

static Value expGradient(GradientBuilder &b, Value, Value y, Value g) { return b.mul(g, y); }

/// The factor is exp(x) and not y + 1, which loses all digits where y is near -1.
static Value expm1Gradient(GradientBuilder &b, Value x, Value, Value g) { return b.mul(g, b.exp(x)); }

static Value logGradient(GradientBuilder &b, Value x, Value, Value g) { return b.div(g, x); }

static Value log1pGradient(GradientBuilder &b, Value x, Value, Value g) { return b.div(g, b.add(x, 1.0)); }

static Value sqrtGradient(GradientBuilder &b, Value, Value y, Value g) { return b.div(b.mul(g, 0.5), y); }

static Value rsqrtGradient(GradientBuilder &b, Value, Value y, Value g) {
  return b.mul(b.mul(g, -0.5), b.mul(b.mul(y, y), y));
}

static Value sinGradient(GradientBuilder &b, Value x, Value, Value g) { return b.mul(g, b.create<CosOp>(x)); }

static Value cosGradient(GradientBuilder &b, Value x, Value, Value g) { return b.neg(b.mul(g, b.create<SinOp>(x))); }

static Value tanhGradient(GradientBuilder &b, Value, Value y, Value g) { return b.mul(g, b.sub(1.0, b.mul(y, y))); }

/// d/dx erf(x) = 2 / sqrt(pi) * exp(-x^2).
static Value erfGradient(GradientBuilder &b, Value x, Value, Value g) {
  return b.mul(b.mul(g, 2 * llvm::numbers::inv_sqrtpi), b.exp(b.neg(b.mul(x, x))));
}

static Value sigmoidGradient(GradientBuilder &b, Value, Value y, Value g) { return b.mul(g, b.mul(y, b.sub(1.0, y))); }

/// With s = sigmoid(x): d/dx (x s) = s (1 + x (1 - s)).
static Value siluGradient(GradientBuilder &b, Value x, Value, Value g) {
  Value s = b.create<SigmoidOp>(x);
  return b.mul(g, b.mul(s, b.add(b.mul(x, b.sub(1.0, s)), 1.0)));
}

/// The gradient is zero where the result is zero, so that a NaN passes its gradient on.
static Value reluGradient(GradientBuilder &b, Value, Value y, Value g) {
  return b.select(b.compare(Predicate::Le, y, 0.0), b.splat(g, 0.0), g);
}

/// The normal distribution function plus x times its density.
static Value geluErfGradient(GradientBuilder &b, Value x, Value g) {
  Value below = b.mul(b.add(b.create<ErfOp>(b.mul(x, 1 / llvm::numbers::sqrt2)), 1.0), 0.5);
  double scale = llvm::numbers::inv_sqrtpi / llvm::numbers::sqrt2;
  Value density = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), scale);
  return b.mul(g, b.add(below, b.mul(x, density)));
}

/// With u = k (x + c x^3) and t = tanh(u): (1 + t) / 2 + x / 2 (1 - t^2) u'.
static Value geluTanhGradient(GradientBuilder &b, Value x, Value g) {
  const double k = llvm::numbers::sqrt2 * llvm::numbers::inv_sqrtpi, c = 0.044715;
  Value square = b.mul(x, x);
  Value t = b.create<TanhOp>(b.mul(x, b.add(b.mul(square, k * c), k)));
  Value slope = b.add(b.mul(square, 3 * k * c), k);
  Value first = b.mul(b.add(t, 1.0), 0.5);
  Value second = b.mul(b.mul(b.mul(x, 0.5), b.sub(1.0, b.mul(t, t))), slope);
  return b.mul(g, b.add(first, second));
}

static Gradients geluGradients(GeluOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  Value x = b.up(op.getInput()), g = b.up(gradients[0]);
  Value gradient = op.getKind() == GeluKind::Erf ? geluErfGradient(b, x, g) : geluTanhGradient(b, x, g);
  return SmallVector<Value>{b.down(gradient, op.getInput())};
}

/// Constant almost everywhere, or said to be.
template <typename OpTy> static Gradients flatGradients(OpTy, GradientBuilder &, ValueRange, ArrayRef<bool>) {
  return SmallVector<Value>{Value()};
}

/// Casts between floats pass the gradient on; the autodiff pass asks no other.
static Gradients castGradients(CastOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  if (!wanted[0])
    return SmallVector<Value>{Value()};
  return SmallVector<Value>{b.down(gradients[0], op.getInput())};
}

//===----------------------------------------------------------------------===//
// Binary
//===----------------------------------------------------------------------===//

static Gradients addGradients(AddOp, GradientBuilder &, ValueRange gradients, ArrayRef<bool>) {
  return SmallVector<Value>{gradients[0], gradients[0]};
}

static Gradients subGradients(SubOp, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  return SmallVector<Value>{gradients[0], wanted[1] ? b.neg(gradients[0]) : Value()};
}

static Gradients mulGradients(MulOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  return SmallVector<Value>{wanted[0] ? b.mul(gradients[0], op.getRhs()) : Value(),
                            wanted[1] ? b.mul(gradients[0], op.getLhs()) : Value()};
}

static Gradients divGradients(DivOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = b.up(gradients[0]), divisor = b.up(op.getRhs());
  Value lhs = b.div(g, divisor), rhs;
  if (wanted[1])
    rhs = b.down(b.neg(b.mul(lhs, b.up(op.getResult()))), op.getRhs());
  return SmallVector<Value>{b.down(lhs, op.getLhs()), rhs};
}

/// d/da rem(a, b) = 1, d/db = -trunc(a / b).
static Gradients remGradients(RemOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = gradients[0], ofDivisor;
  if (wanted[1]) {
    Value quotient = b.create<TruncOp>(b.div(b.up(op.getLhs()), b.up(op.getRhs())));
    ofDivisor = b.down(b.neg(b.mul(b.up(g), quotient)), op.getRhs());
  }
  return SmallVector<Value>{g, ofDivisor};
}

/// The operand that wins takes the gradient; equal ones half of it each. Where
/// either is NaN none loses, and both take all of it.
template <typename OpTy, Predicate loses>
static Gradients extremumGradients(OpTy op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = gradients[0], zero = b.splat(g, 0.0), half = b.mul(g, 0.5);
  auto share = [&](Value mine, Value other) {
    Value kept = b.select(b.compare(Predicate::Eq, mine, other), half, g);
    return b.select(b.compare(loses, mine, other), zero, kept);
  };
  return SmallVector<Value>{wanted[0] ? share(op.getLhs(), op.getRhs()) : Value(),
                            wanted[1] ? share(op.getRhs(), op.getLhs()) : Value()};
}

/// d/da a^b = b a^(b-1), and 0 for b = 0 even where a = 0; d/db a^b =
/// a^b log(a), and 0 for a = 0 and b >= 0.
static Gradients powGradients(PowOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = b.up(gradients[0]), base = b.up(op.getLhs()), exponent = b.up(op.getRhs());
  Value zero = b.splat(g, 0.0);
  SmallVector<Value> answer(2);
  if (wanted[0]) {
    Value slope = b.mul(exponent, b.create<PowOp>(base, b.add(exponent, -1.0)));
    Value gradient = b.select(b.compare(Predicate::Eq, exponent, 0.0), zero, b.mul(g, slope));
    answer[0] = b.down(gradient, op.getLhs());
  }
  if (wanted[1]) {
    Value slope = b.mul(b.up(op.getResult()), b.create<LogOp>(base));
    Value flat = b.create<AndOp>(b.compare(Predicate::Eq, base, 0.0), b.compare(Predicate::Ge, exponent, 0.0));
    answer[1] = b.down(b.select(flat, zero, b.mul(g, slope)), op.getRhs());
  }
  return answer;
}

static Gradients selectGradients(SelectOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = gradients[0], zero = b.splat(g, 0.0);
  return SmallVector<Value>{Value(), wanted[1] ? b.select(op.getCondition(), g, zero) : Value(),
                            wanted[2] ? b.select(op.getCondition(), zero, g) : Value()};
}

void segue::attachElementwiseDerivatives(MLIRContext *context) {
  attachUnary<NegOp, negGradient>(context);
  attachUnary<AbsOp, absGradient>(context);
  attachUnary<ExpOp, expGradient>(context);
  attachUnary<Expm1Op, expm1Gradient>(context);
  attachUnary<LogOp, logGradient>(context);
  attachUnary<Log1pOp, log1pGradient>(context);
  attachUnary<SqrtOp, sqrtGradient>(context);
  attachUnary<RsqrtOp, rsqrtGradient>(context);
  attachUnary<SinOp, sinGradient>(context);
  attachUnary<CosOp, cosGradient>(context);
  attachUnary<TanhOp, tanhGradient>(context);
  attachUnary<ErfOp, erfGradient>(context);
  attachUnary<SigmoidOp, sigmoidGradient>(context);
  attachUnary<SiluOp, siluGradient>(context);
  attachUnary<ReluOp, reluGradient>(context);
  attachDerivative<DetachOp, flatGradients<DetachOp>>(context);
  attachDerivative<SignOp, flatGradients<SignOp>>(context);
  attachDerivative<FloorOp, flatGradients<FloorOp>>(context);
  attachDerivative<CeilOp, flatGradients<CeilOp>>(context);
  attachDerivative<TruncOp, flatGradients<TruncOp>>(context);
  attachDerivative<RoundOp, flatGradients<RoundOp>>(context);
  attachDerivative<GeluOp, geluGradients>(context);
  attachDerivative<CastOp, castGradients>(context);
  attachDerivative<AddOp, addGradients>(context);
  attachDerivative<SubOp, subGradients>(context);
  attachDerivative<MulOp, mulGradients>(context);
  attachDerivative<DivOp, divGradients>(context);
  attachDerivative<MaxOp, extremumGradients<MaxOp, Predicate::Lt>>(context);
  attachDerivative<MinOp, extremumGradients<MinOp, Predicate::Gt>>(context);
  attachDerivative<PowOp, powGradients>(context);
  attachDerivative<RemOp, remGradients>(context);
  attachDerivative<SelectOp, selectGradients>(context);
}
