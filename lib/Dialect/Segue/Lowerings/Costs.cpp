//===- Costs.cpp - what each op costs -------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// CostOpInterface of all ops, one line each, but of those that write loops
// themselves (OwnLoops.cpp) and those that are library calls (Commands.cpp). The
// costs are rough: they choose between saving and recomputing, between one kernel
// and two, and between a row buffer and a second computation.
//
//===----------------------------------------------------------------------===//

#include "ScalarModels.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

// Costs of one element. A division and a root keep the divider busy; functions
// without an instruction are polynomials; ten rounds of Philox give four numbers.
constexpr int64_t kMoves = 0, kSimple = 1, kDivides = 4, kNormalizes = 8, kPolynomial = 16, kComposite = 24,
                  kPower = 32, kLongDivision = 80, kDraws = 100;
/// The test of an index against its table comes before the element is read.
constexpr int64_t kChecksIndex = 4;

static int64_t elements(Value value) { return cast<RankedTensorType>(value.getType()).getNumElements(); }

//===----------------------------------------------------------------------===//
// Flops of a whole op
//===----------------------------------------------------------------------===//

/// The cost of an element for each of the first operand or, without one, of the
/// result.
static int64_t flopsByElement(Operation *op, int64_t cost) {
  return cost * elements(op->getNumOperands() ? op->getOperand(0) : Value(op->getResult(0)));
}

static int64_t noFlops(Operation *, int64_t) { return 0; }

/// A gather moves rows of its result out of a table that may be large.
static int64_t flopsOfGather(Operation *op, int64_t) { return elements(op->getResult(0)); }

static int64_t flopsOfProduct(Operation *op, int64_t) {
  auto dot = cast<DotGeneralOp>(op);
  int64_t flops = 2 * elements(dot.getResult());
  for (int64_t dim : dot.getLhsContract())
    flops *= dot.getLhs().getType().getDimSize(dim);
  return flops;
}

/// Products over [rows, keys] per head: two in attention, five in its gradient.
template <int64_t products> static int64_t flopsOfAttention(Operation *op, int64_t) {
  return 2 * products * elements(op->getOperand(0)) * cast<RankedTensorType>(op->getOperand(1).getType()).getDimSize(2);
}

static int64_t flopsOfBody(Operation *op, int64_t) {
  int64_t flops = 0;
  for (Operation &inner : op->getRegion(0).front().without_terminator())
    flops += flopsOf(&inner);
  return flops;
}

//===----------------------------------------------------------------------===//
// All ops
//===----------------------------------------------------------------------===//

namespace {
template <typename OpTy, int64_t element, Remake remake, int64_t (*flops)(Operation *, int64_t)>
struct CostModel : CostOpInterface::ExternalModel<CostModel<OpTy, element, remake, flops>, OpTy> {
  int64_t getElementCost(Operation *) const { return element; }
  int64_t getFlops(Operation *op) const { return flops(op, element); }
  Remake getRemake(Operation *) const { return remake; }
};
} // namespace

template <typename OpTy, int64_t element, Remake remake, int64_t (*flops)(Operation *, int64_t) = flopsByElement>
static void attachOne(MLIRContext *context) {
  OpTy::template attachInterface<CostModel<OpTy, element, remake, flops>>(*context);
}

/// Ops that fuse and cost `element` for each element.
template <int64_t element, typename... OpTys> static void attach(MLIRContext *context) {
  (attachOne<OpTys, element, Remake::IfCheaper>(context), ...);
}

void segue::attachCosts(MLIRContext *context) {
  attachOne<ConstantOp, kMoves, Remake::Always>(context);
  attachOne<IotaOp, kMoves, Remake::Always>(context);
  attachOne<ReshapeOp, kMoves, Remake::Always>(context);
  attachOne<TransposeOp, kMoves, Remake::Always>(context);
  attachOne<BroadcastOp, kMoves, Remake::Always>(context);
  attachOne<DetachOp, kMoves, Remake::Always>(context);
  // A slice keeps less than its operand has: it is worth a choice.
  attach<kMoves, SliceOp, ToLayoutOp>(context);

  attach<kSimple, NegOp, AbsOp, SignOp, FloorOp, CeilOp, TruncOp, RoundOp, NotOp, AddOp, SubOp, MulOp, MaxOp, MinOp,
         AndOp, OrOp, CompareOp, SelectOp, CastOp, ReluOp, PadOp, ConcatOp, ReduceOp>(context);
  attach<kDivides, DivOp, SqrtOp, RsqrtOp>(context);
  attach<kPolynomial, ExpOp, Expm1Op, LogOp, Log1pOp, SinOp, CosOp, TanhOp, ErfOp>(context);
  attach<kPower, PowOp>(context);
  attach<kLongDivision, RemOp>(context);
  attach<kNormalizes, LayerNormOp, RmsNormOp>(context);
  attach<kComposite, SigmoidOp, SiluOp, GeluOp, SoftmaxOp, LogSoftmaxOp, CrossEntropyOp>(context);
  attachOne<RandomOp, kDraws, Remake::IfCheaper, noFlops>(context);
  attachOne<GatherOp, kChecksIndex, Remake::IfCheaper, flopsOfGather>(context);

  attachOne<DotGeneralOp, kSimple, Remake::OnDemand, flopsOfProduct>(context);
  attachOne<AttentionOp, kSimple, Remake::OnDemand, flopsOfAttention<2>>(context);
  attachOne<AttentionGradOp, kSimple, Remake::OnDemand, flopsOfAttention<5>>(context);
  attachOne<FusedOp, kSimple, Remake::OnDemand, flopsOfBody>(context);
  // The kernel of a launch says on its function what a unit of its range costs.
  attachOne<LaunchOp, kSimple, Remake::OnDemand, noFlops>(context);
  attachOne<YieldOp, kMoves, Remake::OnDemand, noFlops>(context);
}
