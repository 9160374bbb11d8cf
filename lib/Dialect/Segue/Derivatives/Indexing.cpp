//===- Indexing.cpp - derivatives of gather and scatter_add ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each is the derivative of the other. Rows of a table that were picked often
// are summed in f32, or in f64 where the table holds that.
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"

using namespace mlir;
using namespace segue;

static Gradients gatherGradients(GatherOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  Value updates = b.up(gradients[0]);
  auto type = RankedTensorType::get(shapeOf(op.getTable()), typeOf(updates).getElementType());
  Value sums = b.create<ScatterAddOp>(type, updates, op.getIndices());
  return SmallVector<Value>{b.down(sums, op.getTable()), Value()};
}

static Gradients scatterAddGradients(ScatterAddOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  SmallVector<Value> found{b.create<GatherOp>(gradients[0], op.getIndices()), Value()};
  if (op.getBase())
    found.push_back(gradients[0]);
  return found;
}

void segue::attachIndexingDerivatives(MLIRContext *context) {
  attachDerivative<GatherOp, gatherGradients>(context);
  attachDerivative<ScatterAddOp, scatterAddGradients>(context);
}
