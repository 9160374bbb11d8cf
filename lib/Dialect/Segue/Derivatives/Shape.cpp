//===- Shape.cpp - derivatives of shape ops and reductions ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An op that moves elements has as derivative the op that moves them back; one
// that copies elements sums the gradients of the copies.
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"

using namespace mlir;
using namespace segue;

static Gradients reshapeGradients(ReshapeOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  return SmallVector<Value>{b.reshape(gradients[0], shapeOf(op.getInput()))};
}

static Gradients transposeGradients(TransposeOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  SmallVector<int64_t> inverse(op.getPermutation().size());
  for (auto [to, from] : llvm::enumerate(op.getPermutation()))
    inverse[from] = to;
  return SmallVector<Value>{b.transpose(gradients[0], inverse)};
}

/// Sums along new dimensions and along those that were repeated.
static Gradients broadcastGradients(BroadcastOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  ArrayRef<int64_t> from = shapeOf(op.getInput()), to = shapeOf(op.getResult());
  SmallVector<bool> repeated(to.size(), true);
  for (auto [dim, extent] : llvm::zip_equal(op.getDims(), from))
    repeated[dim] = extent != to[dim];
  SmallVector<int64_t> dims;
  for (auto [dim, flag] : llvm::enumerate(repeated))
    if (flag)
      dims.push_back(dim);
  return SmallVector<Value>{b.reshape(b.sum(gradients[0], dims), from)};
}

static Gradients sliceGradients(SliceOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  SmallVector<int64_t> low(op.getStarts()), high, interior;
  for (auto [extent, start, step, taken] :
       llvm::zip_equal(shapeOf(op.getInput()), op.getStarts(), op.getSteps(), shapeOf(op.getResult()))) {
    interior.push_back(step - 1);
    high.push_back(extent - (start + (taken - 1) * step + 1));
  }
  return SmallVector<Value>{b.create<PadOp>(gradients[0], low, high, interior)};
}

static Gradients padGradients(PadOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  SmallVector<int64_t> starts(op.getLow()), limits, steps;
  for (auto [extent, low, interior] : llvm::zip_equal(shapeOf(op.getInput()), op.getLow(), op.getInterior())) {
    steps.push_back(interior + 1);
    limits.push_back(low + (extent - 1) * (interior + 1) + 1);
  }
  return SmallVector<Value>{b.create<SliceOp>(gradients[0], starts, limits, steps)};
}

static Gradients concatGradients(ConcatOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  ArrayRef<int64_t> whole = shapeOf(op.getResult());
  SmallVector<int64_t> starts(whole.size(), 0), limits(whole), steps(whole.size(), 1);
  SmallVector<Value> answer;
  int64_t dim = op.getDim(), offset = 0;
  for (auto [input, want] : llvm::zip_equal(op.getInputs(), wanted)) {
    starts[dim] = offset;
    limits[dim] = offset += shapeOf(input)[dim];
    answer.push_back(want ? Value(b.create<SliceOp>(gradients[0], starts, limits, steps)) : Value());
  }
  return answer;
}

static Gradients toLayoutGradients(ToLayoutOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  return SmallVector<Value>{b.create<ToLayoutOp>(op.getInput().getType(), gradients[0])};
}

/// Sum and mean repeat the gradient. Max and min give it to the elements that
/// equal the result, in equal shares. A result that is NaN equals none: all its
/// elements get 0 / 0.
static Gradients reduceGradients(ReduceOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  Value x = op.getInput(), g = gradients[0];
  ArrayRef<int64_t> shape = shapeOf(x), dims = op.getDims();
  switch (op.getKind()) {
  case ReduceKind::Sum:
    return SmallVector<Value>{b.spread(g, dims, shape)};
  case ReduceKind::Mean: {
    double count = 1;
    for (int64_t dim : dims)
      count *= shape[dim];
    return SmallVector<Value>{b.spread(b.mul(g, 1 / count), dims, shape)};
  }
  case ReduceKind::Max:
  case ReduceKind::Min: {
    Value equal = b.compare(Predicate::Eq, x, b.spread(op.getResult(), dims, shape));
    Value whole = b.up(g);
    Value count = b.sum(b.cast(equal, typeOf(whole).getElementType()), dims);
    Value share = b.div(whole, count), rest = b.mul(share, 0.0);
    auto everywhere = [&](Value perRow) { return b.spread(b.down(perRow, x), dims, shape); };
    return SmallVector<Value>{b.select(equal, everywhere(share), everywhere(rest))};
  }
  }
  llvm_unreachable("all kinds are above");
}

void segue::attachShapeDerivatives(MLIRContext *context) {
  attachDerivative<ReshapeOp, reshapeGradients>(context);
  attachDerivative<TransposeOp, transposeGradients>(context);
  attachDerivative<BroadcastOp, broadcastGradients>(context);
  attachDerivative<SliceOp, sliceGradients>(context);
  attachDerivative<PadOp, padGradients>(context);
  attachDerivative<ConcatOp, concatGradients>(context);
  attachDerivative<ToLayoutOp, toLayoutGradients>(context);
  attachDerivative<ReduceOp, reduceGradients>(context);
}
