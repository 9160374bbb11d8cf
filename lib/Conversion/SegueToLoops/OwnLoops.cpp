//===- OwnLoops.cpp - ops that write the loops of their kernel ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// KernelOpInterface and CostOpInterface of ops whose elements depend on one another.
// Their loops are all of the kernel; what they read is computed where they read it.
//
//===----------------------------------------------------------------------===//

#include "KernelBuilder.h"
#include "KernelModels.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace segue;

namespace {
/// The costs of an op whose own loops are a launch of their own.
template <typename OpTy> struct OwnLoopsCost : CostOpInterface::ExternalModel<OwnLoopsCost<OpTy>, OpTy> {
  int64_t getElementCost(Operation *) const { return 1; }
  int64_t getFlops(Operation *op) const {
    return cast<RankedTensorType>(op->getOperand(0).getType()).getNumElements();
  }
  Remake getRemake(Operation *) const { return Remake::OnDemand; }
};

template <typename Model, typename OpTy> struct OwnLoopsModel : KernelModel<Model, OpTy> {
  static void attach(MLIRContext *context) { OpTy::template attachInterface<Model, OwnLoopsCost<OpTy>>(*context); }
  KernelRole getKernelRole(Operation *) const { return KernelRole::Member; }
  bool hasKernelLoops(Operation *) const { return true; }
  bool getKernelReads(Operation *, IndexSpace &, const IndexExpr &, SmallVectorImpl<KernelRead> &) const {
    llvm_unreachable("reads what its loops are at");
  }
  Value buildElement(Operation *op, KernelBuilder &, const IndexExpr &, size_t) const {
    op->emitOpError("is used in its own kernel");
    return {};
  }
};

/// Every task walks all indices, in order, for its own columns.
struct ScatterModel : OwnLoopsModel<ScatterModel, ScatterAddOp> {
  FailureOr<KernelShape> getKernelShape(Operation *op) const {
    auto scatter = cast<ScatterAddOp>(op);
    int64_t rows = scatter.getIndices().getType().getNumElements();
    return KernelShape{KernelShape::Kind::OwnByColumns, rows, scatter.getUpdates().getType().getNumElements() / rows};
  }
  OperandAccess getOperandAccess(Operation *, unsigned operand) const {
    return operand == 0 ? OperandAccess::Element : operand == 1 ? OperandAccess::Row : OperandAccess::Found;
  }
  bool mayOverwrite(Operation *, unsigned operand) const { return operand == 2; }
  void buildOwnLoops(Operation *op, KernelBuilder &kernel) const {
    auto scatter = cast<ScatterAddOp>(op);
    for (unsigned argument : kernel.resultArgumentsOf(scatter.getResult()))
      build(scatter, kernel, argument);
  }

private:
  static void build(ScatterAddOp scatter, KernelBuilder &kernel, unsigned argument) {
    Location loc = kernel.getLoc();
    auto [begin, end] = kernel.getRange();
    int64_t tableRows = scatter.getType().getDimSize(0);
    Value zero = kernel.constantIndex(0), width = kernel.constantIndex(kernel.getPlan().shape.cols);
    Type element = scatter.getType().getElementType(), type = computeType(element);
    auto address = [&](Value row, Value column) -> Value {
      OpBuilder &b = kernel.top().builder;
      return arith::AddIOp::create(b, loc, arith::MulIOp::create(b, loc, row, width).getResult(), column);
    };
    // The table begins as `base`, which may lie where it is.
    auto base = cast_or_null<BlockArgument>(scatter.getBase());
    Value begun = kernel.constantIndex(tableRows);
    if (base)
      begun = arith::SelectOp::create(kernel.front(), loc, kernel.isSameBuffer(base.getArgNumber(), argument), zero, begun);
    kernel.loop(zero, begun, 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      kernel.loop(begin, end, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
        Value at = address(row, column);
        OpBuilder &b = kernel.top().builder;
        Value first = base ? kernel.load(base.getArgNumber(), at, element, b) : kernel.identity(ReduceKind::Sum, type, b);
        kernel.store(first, argument, at, b);
        return {};
      });
      return {};
    });
    Value rows = kernel.constantIndex(kernel.getPlan().shape.rows);
    kernel.loop(zero, rows, 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      kernel.defineRow(row);
      Value index = kernel.checkedIndex(scatter.getIndices(), kernel.getPlan().row, tableRows, kernel.innermost());
      // A bad index is reported, and what is added is 0.
      kernel.loop(begin, end, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
        kernel.defineColumn(column);
        Value update = kernel.element(scatter.getUpdates(), kernel.getPlan().element);
        if (kernel.hasFailed())
          return {};
        Value at = address(index, column);
        OpBuilder &b = kernel.top().builder;
        Value sum = kernel.load(argument, at, element, b);
        kernel.store(kernel.combine(ReduceKind::Sum, sum, update, b), argument, at, b);
        return {};
      });
      return {};
    });
  }
};

/// Every task walks along some rows, in order, with one value that it carries from
/// element to element. `Model::step` makes the next one of it and of the operands at
/// hand, in the type that `Model::carriedType` says.
template <typename Model, typename OpTy> struct AlongRowsModel : OwnLoopsModel<Model, OpTy> {
  FailureOr<KernelShape> getKernelShape(Operation *base) const {
    auto op = cast<OpTy>(base);
    ArrayRef<int64_t> shape = op.getType().getShape();
    int64_t inner = 1, extent = shape[op.getDim()];
    for (int64_t trailing : shape.drop_front(op.getDim() + 1))
      inner *= trailing;
    return KernelShape{KernelShape::Kind::OwnByRows, op.getType().getNumElements() / extent, extent, 0, inner};
  }
  void buildOwnLoops(Operation *base, KernelBuilder &kernel) const {
    auto op = cast<OpTy>(base);
    Location loc = kernel.getLoc();
    auto [begin, end] = kernel.getRange();
    int64_t extent = kernel.getPlan().shape.cols;
    Value zero = kernel.constantIndex(0), count = kernel.constantIndex(extent), last = kernel.constantIndex(extent - 1);
    Type type = computeType(elementOf(op.getResult())), carriedType = Model::carriedType(type);
    kernel.loop(begin, end, 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      kernel.defineRow(row);
      OpBuilder &outside = kernel.top().builder;
      Value nothing = arith::ConstantOp::create(outside, loc, cast<TypedAttr>(outside.getZeroAttr(carriedType)));
      kernel.loop(zero, count, 1, nothing, [&](Value step, ValueRange carried) -> SmallVector<Value> {
        OpBuilder &b = kernel.top().builder;
        kernel.defineColumn(Model::isReversed(op) ? arith::SubIOp::create(b, loc, last, step).getResult() : step);
        SmallVector<Value> operands;
        for (Value operand : op->getOperands()) {
          operands.push_back(kernel.element(operand, kernel.getPlan().element));
          if (!operands.back())
            return {carried[0]};
          if (isa<FloatType>(carriedType) && carriedType != type)
            operands.back() = arith::ExtFOp::create(b, loc, carriedType, operands.back());
        }
        Value isFirst = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, step, zero);
        Value next = Model::step(b, loc, carried[0], operands, isFirst);
        Value stored = carriedType == type ? next : arith::TruncFOp::create(b, loc, type, next).getResult();
        Value at = kernel.materialize(kernel.getPlan().element, kernel.innermost());
        for (unsigned argument : kernel.resultArgumentsOf(op.getResult()))
          kernel.store(stored, argument, at, b);
        return {next};
      });
      return {};
    });
  }
};

struct CumsumModel : AlongRowsModel<CumsumModel, CumsumOp> {
  static bool isReversed(CumsumOp op) { return op.getReverse(); }
  static Type carriedType(Type type) { return isa<FloatType>(type) ? Float64Type::get(type.getContext()) : type; }
  static Value step(OpBuilder &b, Location loc, Value sum, ArrayRef<Value> operands, Value) {
    if (isa<FloatType>(sum.getType()))
      return arith::AddFOp::create(b, loc, sum, operands[0]);
    return arith::AddIOp::create(b, loc, sum, operands[0]);
  }
};

struct CummaxModel : AlongRowsModel<CummaxModel, CummaxOp> {
  static bool isReversed(CummaxOp) { return false; }
  static Type carriedType(Type type) { return type; }
  static Value step(OpBuilder &b, Location loc, Value largest, ArrayRef<Value> operands, Value isFirst) {
    Value x = operands[0], larger;
    if (isa<FloatType>(x.getType()))
      larger = arith::MaximumFOp::create(b, loc, largest, x);
    else
      larger = arith::MaxSIOp::create(b, loc, largest, x);
    return arith::SelectOp::create(b, loc, isFirst, x, larger);
  }
};

struct RecurrenceModel : AlongRowsModel<RecurrenceModel, RecurrenceOp> {
  static bool isReversed(RecurrenceOp op) { return op.getReverse(); }
  static Type carriedType(Type type) { return Float64Type::get(type.getContext()); }
  static Value step(OpBuilder &b, Location loc, Value before, ArrayRef<Value> operands, Value isFirst) {
    Value product = arith::MulFOp::create(b, loc, operands[0], before);
    // A first factor that is not finite would make NaN of nothing.
    Value next = arith::AddFOp::create(b, loc, product, operands[1]);
    return arith::SelectOp::create(b, loc, isFirst, operands[1], next);
  }
};
} // namespace

void segue::attachOwnLoops(MLIRContext *context) {
  CummaxModel::attach(context);
  CumsumModel::attach(context);
  RecurrenceModel::attach(context);
  ScatterModel::attach(context);
}
