//===- Elementwise.cpp - evaluates elementwise ops ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include <cmath>

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

/// `result[i] = apply(input[i])` on doubles.
template <typename OpTy> static void addUnary(EvaluatorTable &table, double (*apply)(double)) {
  table.of<OpTy>() = [apply](Operation *op, const Frame &in, Results out) {
    const HostTensor &input = in[op->getOperand(0)];
    for (int64_t i = 0; i < input.size(); ++i)
      out[0].floats[i] = apply(input.floats[i]);
    return success();
  };
}

/// Adds an op on floats and integers. Integers are computed modulo
/// 2^64, hence unsigned, and wrapped to their width by the caller.
template <typename OpTy>
static void addUnary(EvaluatorTable &table, double (*apply)(double), uint64_t (*applyInt)(uint64_t)) {
  table.of<OpTy>() = [apply, applyInt](Operation *op, const Frame &in, Results out) {
    const HostTensor &input = in[op->getOperand(0)];
    for (int64_t i = 0; i < input.size(); ++i)
      if (input.isFloat())
        out[0].floats[i] = apply(input.floats[i]);
      else
        out[0].ints[i] = static_cast<int64_t>(applyInt(static_cast<uint64_t>(input.ints[i])));
    return success();
  };
}

/// `result[i] = apply(lhs[i], rhs[i])`.
template <typename OpTy>
static void addBinary(EvaluatorTable &table, double (*apply)(double, double), int64_t (*applyInt)(int64_t, int64_t)) {
  table.of<OpTy>() = [apply, applyInt](Operation *op, const Frame &in, Results out) {
    const HostTensor &lhs = in[op->getOperand(0)], &rhs = in[op->getOperand(1)];
    for (int64_t i = 0; i < lhs.size(); ++i)
      if (lhs.isFloat())
        out[0].floats[i] = apply(lhs.floats[i], rhs.floats[i]);
      else
        out[0].ints[i] = applyInt(lhs.ints[i], rhs.ints[i]);
    return success();
  };
}

static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// NaN if either is.
static double maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmax(a, b); }
static double minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmin(a, b); }

/// Integer arithmetic modulo 2^64.
static int64_t addInt(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + b); }
static int64_t subInt(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) - b); }
static int64_t mulInt(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) * b); }

static double geluErf(double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }
double interpreter::geluTanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static LogicalResult evaluateDetach(DetachOp op, const Frame &in, Results out) {
  for (int64_t i = 0; i < out[0].size(); ++i)
    copyElement(out[0], i, in[op.getInput()], i);
  return success();
}

static LogicalResult evaluateGelu(GeluOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  for (int64_t i = 0; i < input.size(); ++i)
    out[0].floats[i] = op.getKind() == GeluKind::Erf ? geluErf(input.floats[i]) 
                                                             : interpreter::geluTanh(input.floats[i]);
  return success();
}

template <typename T> static bool holds(Predicate predicate, T a, T b) {
  switch (predicate) {
  case Predicate::Eq:
    return a == b;
  case Predicate::Ne:
    return a != b;
  case Predicate::Lt:
    return a < b;
  case Predicate::Le:
    return a <= b;
  case Predicate::Gt:
    return a > b;
  case Predicate::Ge:
    return a >= b;
  }
  llvm_unreachable("all predicates are above");
}

static LogicalResult evaluateCompare(CompareOp op, const Frame &in, Results out) {
  const HostTensor &lhs = in[op.getLhs()], &rhs = in[op.getRhs()];
  for (int64_t i = 0; i < lhs.size(); ++i)
    out[0].ints[i] = lhs.isFloat() ? holds(op.getPredicate(), lhs.floats[i], rhs.floats[i])
                                   : holds(op.getPredicate(), lhs.ints[i], rhs.ints[i]);
  return success();
}

static LogicalResult evaluateSelect(SelectOp op, const Frame &in, Results out) {
  const HostTensor &condition = in[op.getCondition()];
  for (int64_t i = 0; i < condition.size(); ++i)
    copyElement(out[0], i, in[condition.ints[i] ? op.getOnTrue() : op.getOnFalse()], i);
  return success();
}

/// Toward zero, saturating, NaN to 0.
static int64_t toInteger(double value, unsigned width) {
  double limit = std::ldexp(1.0, width - 1);
  if (std::isnan(value))
    return 0;
  if (value >= limit)
    return llvm::maxIntN(width);
  if (value <= -limit)
    return llvm::minIntN(width);
  return static_cast<int64_t>(value);
}

static LogicalResult evaluateCast(CastOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  Type to = out[0].type.getElementType();
  for (int64_t i = 0; i < input.size(); ++i) {
    if (input.isFloat() && out[0].isFloat())
      out[0].floats[i] = input.floats[i];
    else if (input.isFloat())
      out[0].ints[i] = to.isInteger(1) ? input.floats[i] != 0 : toInteger(input.floats[i], to.getIntOrFloatBitWidth());
    else if (to.isF32())
      out[0].floats[i] = static_cast<float>(input.ints[i]); // once: by way of double it could round twice
    else if (out[0].isFloat())
      out[0].floats[i] = static_cast<double>(input.ints[i]);
    else
      out[0].ints[i] = to.isInteger(1) ? input.ints[i] != 0 : input.ints[i];
  }
  return success();
}

void interpreter::addElementwise(EvaluatorTable &table) {
  addUnary<NegOp>(table, [](double x) { return -x; }, [](uint64_t x) { return -x; });
  addUnary<AbsOp>(table, std::fabs, [](uint64_t x) { return static_cast<int64_t>(x) < 0 ? -x : x; });
  addUnary<SignOp>(
      table, [](double x) { return double(x > 0) - double(x < 0); },
      [](uint64_t x) { return static_cast<int64_t>(x) < 0 ? ~uint64_t(0) : uint64_t(x != 0); });
  addUnary<FloorOp>(table, std::floor);
  addUnary<CeilOp>(table, std::ceil);
  addUnary<TruncOp>(table, std::trunc);
  addUnary<RoundOp>(table, std::nearbyint); // to even: nothing here sets another mode
  addUnary<ExpOp>(table, std::exp);
  addUnary<Expm1Op>(table, std::expm1);
  addUnary<LogOp>(table, std::log);
  addUnary<Log1pOp>(table, std::log1p);
  addUnary<SqrtOp>(table, std::sqrt);
  addUnary<RsqrtOp>(table, [](double x) { return 1 / std::sqrt(x); });
  addUnary<SinOp>(table, std::sin);
  addUnary<CosOp>(table, std::cos);
  addUnary<TanhOp>(table, std::tanh);
  addUnary<ErfOp>(table, std::erf);
  addUnary<SigmoidOp>(table, sigmoid);
  addUnary<SiluOp>(table, [](double x) { return x * sigmoid(x); });
  addUnary<ReluOp>(table, [](double x) { return maximum(x, 0); });
  addUnary<NotOp>(table, std::fabs, [](uint64_t x) { return uint64_t(!x); });
  table.add(evaluateDetach);
  table.add(evaluateGelu);

  addBinary<AddOp>(table, [](double a, double b) { return a + b; }, addInt);
  addBinary<SubOp>(table, [](double a, double b) { return a - b; }, subInt);
  addBinary<MulOp>(table, [](double a, double b) { return a * b; }, mulInt);
  addBinary<DivOp>(table, [](double a, double b) { return a / b; }, nullptr);
  addBinary<PowOp>(table, std::pow, nullptr);
  addBinary<RemOp>(table, std::fmod, nullptr);
  addBinary<MaxOp>(table, maximum, [](int64_t a, int64_t b) { return std::max(a, b); });
  addBinary<MinOp>(table, minimum, [](int64_t a, int64_t b) { return std::min(a, b); });
  addBinary<AndOp>(table, nullptr, [](int64_t a, int64_t b) { return a & b; });
  addBinary<OrOp>(table, nullptr, [](int64_t a, int64_t b) { return a | b; });

  table.add(evaluateCompare);
  table.add(evaluateSelect);
  table.add(evaluateCast);
}
