//===- Normalization.cpp - derivatives of norms, softmax and losses -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All in f32, of f64 in f64, from the statistics that the forward op gives, in forms that
// fuse into one pass over rows: elementwise, reductions along a row, and sums
// over rows for scale and shift. Statistics are results too and may have
// gradients of their own.
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"

using namespace mlir;
using namespace segue;

/// The mean along the last dimension, repeated along it.
static Value rowMean(GradientBuilder &b, Value x) {
  return b.rows(b.reduce(ReduceKind::Mean, x, {typeOf(x).getRank() - 1}), x);
}

/// The gradient that reaches a normalised row: scaled by gamma where there is one.
static Value scaled(GradientBuilder &b, Value g, Value gamma) {
  return gamma ? b.mul(g, b.columns(b.up(gamma), g)) : g;
}

/// A gradient of `rstd` reaches x through d rstd / d x = -rstd^2 / n * xhat,
/// with xhat the normalised row.
static Value throughRstd(GradientBuilder &b, Value gradient, Value rstd, Value xhat) {
  double extent = shapeOf(xhat).back();
  Value perRow = b.mul(b.mul(gradient, b.mul(rstd, rstd)), -1 / extent);
  return b.mul(b.rows(perRow, xhat), xhat);
}

/// With xhat = (x - mean) rstd and h = g gamma:
/// dx = rstd (h - mean(h) - xhat mean(h xhat)), dgamma = sum(g xhat), dbeta = sum(g).
static Gradients layerNormGradients(LayerNormOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value x = b.up(op.getInput());
  Value rstd = b.rows(op.getRstd(), x);
  Value xhat = b.mul(b.sub(x, b.rows(op.getMean(), x)), rstd);
  Value dx, dgamma, dbeta;
  if (gradients[0]) {
    Value g = b.up(gradients[0]);
    Value h = scaled(b, g, op.getGamma());
    dx = b.mul(rstd, b.sub(b.sub(h, rowMean(b, h)), b.mul(xhat, rowMean(b, b.mul(h, xhat)))));
    if (op.getGamma())
      dgamma = b.down(b.sumRows(b.mul(g, xhat)), op.getGamma());
    if (op.getBeta())
      dbeta = b.down(b.sumRows(g), op.getBeta());
  }
  if (gradients[1])
    dx = b.accumulate(dx, b.rows(b.mul(gradients[1], 1.0 / shapeOf(x).back()), x));
  if (gradients[2])
    dx = b.accumulate(dx, throughRstd(b, gradients[2], op.getRstd(), xhat));

  SmallVector<Value> answer{b.down(dx, op.getInput())};
  if (op.getGamma())
    answer.push_back(dgamma);
  if (op.getBeta())
    answer.push_back(dbeta);
  return answer;
}

/// A layer_norm without the mean has dx = rstd (h - xhat mean(h xhat)).
static Gradients rmsNormGradients(RmsNormOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value x = b.up(op.getInput());
  Value rstd = b.rows(op.getRstd(), x);
  Value xhat = b.mul(x, rstd);
  Value dx, dgamma;
  if (gradients[0]) {
    Value g = b.up(gradients[0]);
    Value h = scaled(b, g, op.getGamma());
    dx = b.mul(rstd, b.sub(h, b.mul(xhat, rowMean(b, b.mul(h, xhat)))));
    if (op.getGamma())
      dgamma = b.down(b.sumRows(b.mul(g, xhat)), op.getGamma());
  }
  if (gradients[1])
    dx = b.accumulate(dx, throughRstd(b, gradients[1], op.getRstd(), xhat));

  SmallVector<Value> answer{b.down(dx, op.getInput())};
  if (op.getGamma())
    answer.push_back(dgamma);
  return answer;
}

/// dx = y (g - sum(g y)).
static Gradients softmaxGradients(SoftmaxOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  int64_t dim = op.getDim();
  Value y = b.up(op.getResult()), g = b.up(gradients[0]);
  Value total = b.spread(b.sum(b.mul(g, y), {dim}), {dim}, shapeOf(y));
  return SmallVector<Value>{b.down(b.mul(y, b.sub(g, total)), op.getInput())};
}

/// dx = g - exp(y) sum(g).
static Gradients logSoftmaxGradients(LogSoftmaxOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  int64_t dim = op.getDim();
  Value y = b.up(op.getResult()), g = b.up(gradients[0]);
  Value total = b.spread(b.sum(g, {dim}), {dim}, shapeOf(y));
  return SmallVector<Value>{b.down(b.sub(g, b.mul(b.exp(y), total)), op.getInput())};
}

/// With p = exp(logits - lse): dlogits = (p - onehot) g for the loss, where the
/// target is not ignored, and p g for lse. Columns are counted in i32: they
/// are compared with every target.
static Gradients crossEntropyGradients(CrossEntropyOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  Value logits = b.up(op.getLogits());
  ArrayRef<int64_t> shape = shapeOf(logits);
  Value p = b.exp(b.sub(logits, b.rows(op.getLse(), logits)));
  Value dlogits;
  if (Value g = gradients[0]) {
    Value targets = op.getTargets();
    Value ignored = b.compare(
        Predicate::Eq, targets,
        b.create<ConstantOp>(DenseElementsAttr::get(
            typeOf(targets), b.builder.getIntegerAttr(typeOf(targets).getElementType(), op.getIgnoreIndex()))));
    Value counted = b.select(ignored, b.splat(g, 0.0), g);
    Value column = b.create<IotaOp>(RankedTensorType::get(shape, b.builder.getI32Type()), 1);
    Value target = b.rows(b.cast(targets, b.builder.getI32Type()), column);
    Value hit = b.compare(Predicate::Eq, column, target);
    dlogits = b.mul(b.select(hit, b.add(p, -1.0), p), b.rows(counted, logits));
  }
  if (Value g = gradients[1])
    dlogits = b.accumulate(dlogits, b.mul(p, b.rows(g, logits)));
  return SmallVector<Value>{b.down(dlogits, op.getLogits()), Value()};
}

void segue::attachNormalizationDerivatives(MLIRContext *context) {
  attachDerivative<LayerNormOp, layerNormGradients>(context);
  attachDerivative<RmsNormOp, rmsNormGradients>(context);
  attachDerivative<SoftmaxOp, softmaxGradients>(context);
  attachDerivative<LogSoftmaxOp, logSoftmaxGradients>(context);
  attachDerivative<CrossEntropyOp, crossEntropyGradients>(context);
}
