//===- OpCost.cpp - what an op costs --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "OpCost.h"

#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

static int64_t elements(Value value) { return cast<RankedTensorType>(value.getType()).getNumElements(); }

/// Flops per element of the first operand or, without one, of the result.
static int64_t flopsPerElement(Operation *op) {
  return TypeSwitch<Operation *, int64_t>(op)
      .Case<ConstantOp, IotaOp, RandomOp, ReshapeOp, TransposeOp, BroadcastOp, SliceOp, ToLayoutOp>(
          [](auto) { return 0; })
      .Case<DivOp, SqrtOp, RsqrtOp>([](auto) { return 4; })
      .Case<LayerNormOp, RmsNormOp>([](auto) { return 8; })
      .Case<ExpOp, Expm1Op, LogOp, Log1pOp, SinOp, CosOp, TanhOp, ErfOp>([](auto) { return 16; })
      .Case<SigmoidOp, SiluOp, GeluOp, SoftmaxOp, LogSoftmaxOp, CrossEntropyOp>([](auto) { return 24; })
      .Case<PowOp>([](auto) { return 32; })
      .Default([](auto) { return 1; });
}

int64_t segue::estimateFlops(Operation *op) {
  if (auto dot = dyn_cast<DotGeneralOp>(op)) {
    int64_t flops = 2 * elements(dot.getResult());
    for (int64_t dim : dot.getLhsContract())
      flops *= cast<RankedTensorType>(dot.getLhs().getType()).getDimSize(dim);
    return flops;
  }
  // Two products over [rows, keys] per head, five in the gradient.
  if (isa<AttentionOp, AttentionGradOp>(op)) {
    auto keys = cast<RankedTensorType>(op->getOperand(1).getType()).getDimSize(2);
    return (isa<AttentionOp>(op) ? 4 : 10) * elements(op->getOperand(0)) * keys;
  }
  // A gather moves rows of its result out of a table that may be large.
  Value counted = op->getNumOperands() && !isa<GatherOp>(op) ? op->getOperand(0) : Value(op->getResult(0));
  return flopsPerElement(op) * elements(counted);
}

bool segue::isCheapToRecompute(Operation *op) {
  return isa_and_present<SegueDialect>(op->getDialect()) &&
         !isa<DotGeneralOp, AttentionOp, AttentionGradOp, ScatterAddOp, AdamWOp, SgdOp, FusedOp, LaunchOp>(op);
}
