//===- Expansions.cpp - composite ops in terms of primitives --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// ExpandableOpInterface of the composite ops. Each computes in f32, of f64 in f64, and
// rounds its results once. The forms are chosen for one pass over a row where that is
// possible and for accuracy where floats cancel; each says why where it is not
// the textbook one.
//
//===----------------------------------------------------------------------===//

#include "ScalarModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectRegistry.h"
#include "segue/Dialect/Segue/IR/Formula.h"
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include <cmath>

using namespace mlir;
using namespace segue;

namespace {
template <typename OpTy, SmallVector<Value> (*expansion)(OpTy, Formula &)>
struct ExpandModel : ExpandableOpInterface::ExternalModel<ExpandModel<OpTy, expansion>, OpTy> {
  SmallVector<Value> expand(Operation *op, OpBuilder &builder) const {
    Formula formula(builder, op->getLoc());
    SmallVector<Value> results = expansion(cast<OpTy>(op), formula);
    for (auto [value, type] : llvm::zip_equal(results, op->getResultTypes()))
      value = formula.to(value, cast<RankedTensorType>(type).getElementType());
    return results;
  }
};

} // namespace

//===----------------------------------------------------------------------===//
// Activations
//===----------------------------------------------------------------------===//

/// Returns x / (1 + exp(-t)), which never cancels, and is right at both infinities of t.
static Value timesSigmoid(Formula &f, Value x, Value t) { return f.div(x, f.add(f.exp(f.neg(t)), 1.0)); }

static SmallVector<Value> expandSigmoid(SigmoidOp op, Formula &f) {
  Value x = f.up(op.getInput());
  return {timesSigmoid(f, f.splat(x, 1.0), x)};
}

static SmallVector<Value> expandSilu(SiluOp op, Formula &f) {
  Value x = f.up(op.getInput());
  return {timesSigmoid(f, x, x)};
}

/// Derivatives have been taken.
static SmallVector<Value> expandDetach(DetachOp op, Formula &) { return {op.getInput()}; }

static SmallVector<Value> expandRelu(ReluOp op, Formula &f) {
  return {f.max(op.getInput(), f.splat(op.getInput(), 0.0))};
}

static SmallVector<Value> expandGelu(GeluOp op, Formula &f) {
  Value x = f.up(op.getInput());
  if (op.getKind() == GeluKind::Erf)
    return {f.mul(f.mul(x, 0.5), f.add(f.erf(f.mul(x, M_SQRT1_2)), 1.0))};
  // (1 + tanh(u)) / 2 = sigmoid(2 u): one exponential, and no cancellation
  // where tanh(u) is near -1.
  double twice = 2 * std::sqrt(2 / M_PI);
  Value cubic = f.add(f.mul(f.mul(x, x), twice * 0.044715), twice);
  return {timesSigmoid(f, x, f.mul(x, cubic))};
}

//===----------------------------------------------------------------------===//
// Normalisation and losses
//===----------------------------------------------------------------------===//

static int64_t lastDim(Value value) { return Formula::typeOf(value).getRank() - 1; }

static SmallVector<Value> expandLayerNorm(LayerNormOp op, Formula &f) {
  Value x = f.up(op.getInput());
  int64_t dim = lastDim(x);
  // Two passes: the one-pass form E[x^2] - E[x]^2 loses all digits when the
  // mean is large.
  Value mean = f.reduce(ReduceKind::Mean, x, dim);
  Value centred = f.sub(x, f.along(mean, dim, x));
  Value variance = f.reduce(ReduceKind::Mean, f.mul(centred, centred), dim);
  Value rstd = f.rsqrt(f.add(variance, op.getEps().convertToDouble()));
  Value result = f.mul(centred, f.along(rstd, dim, x));
  if (op.getGamma())
    result = f.mul(result, f.over(f.up(op.getGamma()), x));
  if (op.getBeta())
    result = f.add(result, f.over(f.up(op.getBeta()), x));
  return {result, mean, rstd};
}

static SmallVector<Value> expandRmsNorm(RmsNormOp op, Formula &f) {
  Value x = f.up(op.getInput());
  int64_t dim = lastDim(x);
  Value rstd = f.rsqrt(f.add(f.reduce(ReduceKind::Mean, f.mul(x, x), dim), op.getEps().convertToDouble()));
  Value result = f.mul(x, f.along(rstd, dim, x));
  if (op.getGamma())
    result = f.mul(result, f.over(f.up(op.getGamma()), x));
  return {result, rstd};
}

static SmallVector<Value> expandSoftmax(SoftmaxOp op, Formula &f) {
  Value x = f.up(op.getInput());
  int64_t dim = op.getDim();
  Value power = f.exp(f.sub(x, f.along(f.reduce(ReduceKind::Max, x, dim), dim, x)));
  Value sum = f.reduce(ReduceKind::Sum, power, dim);
  return {f.mul(power, f.along(f.div(f.splat(sum, 1.0), sum), dim, x))};
}

static SmallVector<Value> expandLogSoftmax(LogSoftmaxOp op, Formula &f) {
  Value x = f.up(op.getInput());
  int64_t dim = op.getDim();
  Value shifted = f.sub(x, f.along(f.reduce(ReduceKind::Max, x, dim), dim, x));
  Value sum = f.reduce(ReduceKind::Sum, f.exp(shifted), dim);
  return {f.sub(shifted, f.along(f.log(sum), dim, x))};
}

static SmallVector<Value> expandCrossEntropy(CrossEntropyOp op, Formula &f) {
  Value x = f.up(op.getLogits()), targets = op.getTargets();
  int64_t classes = Formula::typeOf(x).getDimSize(1);
  Type indexType = Formula::typeOf(targets).getElementType(), i32 = f.b.getI32Type();
  Value max = f.reduce(ReduceKind::Max, x, 1);
  Value sum = f.reduce(ReduceKind::Sum, f.exp(f.sub(x, f.along(max, 1, x))), 1);
  Value logSum = f.log(sum), lse = f.add(max, logSum);

  // The gather from a count is the target itself, checked against the classes.
  Value valid = f.compare(Predicate::Ne, targets, f.splat(targets, static_cast<int64_t>(op.getIgnoreIndex())));
  Value target = f.gather(f.iota({classes}, 0, indexType), f.select(valid, targets, f.splat(targets, 0)));
  Value chosen = f.compare(Predicate::Eq, f.iota(Formula::typeOf(x).getShape(), 1, i32), f.along(f.to(target, i32), 1, x));
  Value logit = f.reduce(ReduceKind::Sum, f.select(chosen, x, f.splat(x, 0.0)), 1);
  // The loss is not taken as lse - logit: of large logits, lse keeps few digits behind the point.
  Value loss = f.add(logSum, f.sub(max, logit));
  return {f.select(valid, loss, f.splat(loss, 0.0)), lse};
}

template <typename OpTy, SmallVector<Value> (*expansion)(OpTy, Formula &)>
static void attach(MLIRContext *context) {
  OpTy::template attachInterface<ExpandModel<OpTy, expansion>>(*context);
}

void segue::registerLowerings(DialectRegistry &registry) {
  registry.insert<arith::ArithDialect, math::MathDialect>();
  registry.addExtension(+[](MLIRContext *context, SegueDialect *) {
    attachCosts(context);
    attachScalarModels(context);
    attach<DetachOp, expandDetach>(context);
    attach<SigmoidOp, expandSigmoid>(context);
    attach<SiluOp, expandSilu>(context);
    attach<ReluOp, expandRelu>(context);
    attach<GeluOp, expandGelu>(context);
    attach<LayerNormOp, expandLayerNorm>(context);
    attach<RmsNormOp, expandRmsNorm>(context);
    attach<SoftmaxOp, expandSoftmax>(context);
    attach<LogSoftmaxOp, expandLogSoftmax>(context);
    attach<CrossEntropyOp, expandCrossEntropy>(context);
  });
}
