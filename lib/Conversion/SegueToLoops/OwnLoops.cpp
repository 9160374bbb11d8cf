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
/// Loops of an op's own are a launch of their own.
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
    return operand == 1 ? OperandAccess::Row : OperandAccess::Element;
  }
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
    kernel.loop(zero, kernel.constantIndex(tableRows), 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      kernel.loop(begin, end, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
        Value at = address(row, column);
        OpBuilder &b = kernel.top().builder;
        kernel.store(kernel.identity(ReduceKind::Sum, type, b), argument, at, b);
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

/// Every task sums along some rows, in order.
struct CumsumModel : OwnLoopsModel<CumsumModel, CumsumOp> {
  FailureOr<KernelShape> getKernelShape(Operation *op) const {
    auto cumsum = cast<CumsumOp>(op);
    ArrayRef<int64_t> shape = cumsum.getType().getShape();
    int64_t inner = 1, extent = shape[cumsum.getDim()];
    for (int64_t trailing : shape.drop_front(cumsum.getDim() + 1))
      inner *= trailing;
    return KernelShape{KernelShape::Kind::OwnByRows, cumsum.getType().getNumElements() / extent, extent, 0, inner};
  }
  void buildOwnLoops(Operation *op, KernelBuilder &kernel) const {
    auto cumsum = cast<CumsumOp>(op);
    Location loc = kernel.getLoc();
    auto [begin, end] = kernel.getRange();
    int64_t extent = kernel.getPlan().shape.cols;
    Value zero = kernel.constantIndex(0), count = kernel.constantIndex(extent), last = kernel.constantIndex(extent - 1);
    Type type = computeType(elementOf(cumsum.getInput()));
    bool isFloat = isa<FloatType>(type);
    kernel.loop(begin, end, 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      kernel.defineRow(row);
      OpBuilder &outside = kernel.top().builder;
      Type wide = isFloat ? Type(outside.getF64Type()) : type;
      Value nothing = arith::ConstantOp::create(outside, loc, cast<TypedAttr>(outside.getZeroAttr(wide)));
      kernel.loop(zero, count, 1, nothing, [&](Value step, ValueRange carried) -> SmallVector<Value> {
        OpBuilder &b = kernel.top().builder;
        kernel.defineColumn(cumsum.getReverse() ? arith::SubIOp::create(b, loc, last, step).getResult() : step);
        Value value = kernel.element(cumsum.getInput(), kernel.getPlan().element);
        if (!value)
          return {carried[0]};
        Value sum;
        if (isFloat)
          sum = arith::AddFOp::create(b, loc, carried[0], arith::ExtFOp::create(b, loc, wide, value).getResult());
        else
          sum = arith::AddIOp::create(b, loc, carried[0], value);
        Value stored = isFloat ? arith::TruncFOp::create(b, loc, type, sum).getResult() : sum;
        Value at = kernel.materialize(kernel.getPlan().element, kernel.innermost());
        for (unsigned argument : kernel.resultArgumentsOf(cumsum.getResult()))
          kernel.store(stored, argument, at, b);
        return {sum};
      });
      return {};
    });
  }
};
} // namespace

void segue::attachOwnLoops(MLIRContext *context) {
  CumsumModel::attach(context);
  ScatterModel::attach(context);
}
