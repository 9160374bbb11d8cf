//===- Commands.cpp - launches, calls of attention and of the library -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Conversion/SegueToProg/Commands.h"
#include "FunctionLowering.h"
#include "Products.h"
#include "mlir/IR/DialectRegistry.h"

using namespace mlir;
using namespace segue;

#include "segue/Conversion/SegueToProg/Commands.cpp.inc"

static std::optional<uint64_t> freeIf(bool fits) { return fits ? std::optional<uint64_t>(0) : std::nullopt; }

/// A mask as [batch, heads, rows, keys], repeated where it is 1.
static Window broadcastMask(const Window &mask, ArrayRef<int64_t> shape) { return mask.broadcast({0, 1, 2, 3}, shape); }

static SmallVector<int64_t> scoreShape(Value q, Value k) {
  SmallVector<int64_t> shape(typeOf(q).getShape());
  shape.back() = typeOf(k).getDimSize(2);
  return shape;
}

namespace {
struct LaunchCommand : CommandOpInterface::ExternalModel<LaunchCommand, segue::LaunchOp> {
  LogicalResult lower(Operation *base, FunctionLowering &f) const {
    auto op = cast<segue::LaunchOp>(base);
    SmallVector<Window> inputs, outputs;
    for (Value input : op.getInputs())
      inputs.push_back(f.denseWindowOf(input));
    for (Value result : op.getResults())
      outputs.push_back(f.targetOf(result));
    f.prepare(inputs, outputs);
    SmallVector<Value> args;
    SmallVector<int64_t> offsets;
    for (const Window &window : llvm::concat<Window>(inputs, outputs)) {
      args.push_back(window.buffer);
      offsets.push_back(window.byteOffset());
    }
    bool atStart = llvm::all_of(offsets, [](int64_t offset) { return offset == 0; });
    SmallVector<int64_t> inPlace;
    for (size_t i = 0; i + 1 < op.getInPlace().size(); i += 2) {
      inPlace.push_back(op.getInPlace()[i]);
      inPlace.push_back(op.getInPlace()[i + 1] + inputs.size());
    }
    OpBuilder &b = f.getBuilder();
    f.emitted(prog::LaunchOp::create(b, f.getLoc(), op.getKernelAttr(), args,
                                     atStart ? DenseI64ArrayAttr() : b.getDenseI64ArrayAttr(offsets),
                                     b.getI64IntegerAttr(op.getRange()), b.getI64IntegerAttr(op.getGrain()),
                                     inPlace.empty() ? DenseI64ArrayAttr() : b.getDenseI64ArrayAttr(inPlace)));
    return success();
  }
  std::optional<uint64_t> getReadCost(Operation *, unsigned, const Window &window) const {
    return freeIf(window.isDense());
  }
  std::optional<uint64_t> getWriteCost(Operation *, unsigned, const Window &place) const {
    return freeIf(place.isDense());
  }
  bool mayWriteOver(Operation *op, unsigned operand, unsigned result) const {
    ArrayRef<int64_t> pairs = cast<segue::LaunchOp>(op).getInPlace();
    for (size_t pair = 0; pair + 1 < pairs.size(); pair += 2)
      if (pairs[pair] == operand && pairs[pair + 1] == result)
        return true;
    return false;
  }
};

/// Returns views of the windows, in their order.
static SmallVector<Value> viewsOf(ArrayRef<Window> windows, FunctionLowering &f) {
  SmallVector<Value> views;
  for (const Window &window : windows)
    views.push_back(f.view(window));
  return views;
}

/// True for the seed and the step of dropout, which are as they lie.
static bool isScalar(Value value) { return cast<RankedTensorType>(value.getType()).getRank() == 0; }

/// DropoutOfCommand is the part of a command of attention that drops weights. It is empty where the probability is 0 as f32.
struct DropoutOfCommand {
  template <typename OpTy> DropoutOfCommand(OpTy op, FunctionLowering &f, SmallVectorImpl<Window> &reading) {
    float asked = op.getDropout() ? float(op.getDropout()->convertToDouble()) : 0;
    if (asked == 0)
      return;
    probability = f.getBuilder().getF32FloatAttr(asked);
    id = op.getIdAttr();
    first = reading.size();
    reading.push_back(f.denseWindowOf(op.getSeed()));
    reading.push_back(f.denseWindowOf(op.getStep()));
  }
  Value seed(ArrayRef<Value> views) const { return probability ? views[first] : Value(); }
  Value step(ArrayRef<Value> views) const { return probability ? views[first + 1] : Value(); }

  FloatAttr probability;
  IntegerAttr id;
  size_t first = 0;
};

struct AttentionCommand : CommandOpInterface::ExternalModel<AttentionCommand, segue::AttentionOp> {
  LogicalResult lower(Operation *base, FunctionLowering &f) const {
    auto op = cast<segue::AttentionOp>(base);
    SmallVector<Window> reading{f.rowWindowOf(op.getQ()), f.rowWindowOf(op.getK()), f.rowWindowOf(op.getV())};
    if (op.getMask())
      reading.push_back(broadcastMask(f.windowOf(op.getMask()), scoreShape(op.getQ(), op.getK())));
    DropoutOfCommand dropout(op, f, reading);
    SmallVector<Window> writing{f.targetOf(op.getResult()), f.targetOf(op.getLse())};
    f.prepare(reading, writing);
    SmallVector<Value> from = viewsOf(reading, f), to = viewsOf(writing, f);
    OpBuilder &b = f.getBuilder();
    f.emitted(prog::AttentionOp::create(b, f.getLoc(), from[0], from[1], from[2], op.getMask() ? from[3] : Value(),
                                        dropout.seed(from), dropout.step(from), to[0], to[1], dropout.probability,
                                        dropout.id, op.getCausalAttr(),
                                        b.getF32FloatAttr(op.getScale().convertToDouble())));
    return success();
  }
  std::optional<uint64_t> getReadCost(Operation *base, unsigned operand, const Window &window) const {
    auto op = cast<segue::AttentionOp>(base);
    Value value = base->getOperand(operand);
    return freeIf(value == op.getMask() || isScalar(value) || window.hasUnitLastStride());
  }
  std::optional<uint64_t> getWriteCost(Operation *base, unsigned result, const Window &place) const {
    bool isLse = base->getResult(result) == cast<segue::AttentionOp>(base).getLse();
    return freeIf(isLse ? place.isDense() : place.hasUnitLastStride());
  }
};

struct AttentionGradCommand : CommandOpInterface::ExternalModel<AttentionGradCommand, segue::AttentionGradOp> {
  LogicalResult lower(Operation *base, FunctionLowering &f) const {
    auto op = cast<segue::AttentionGradOp>(base);
    SmallVector<Window> reading{f.rowWindowOf(op.getQ()),   f.rowWindowOf(op.getK()),     f.rowWindowOf(op.getV()),
                                f.rowWindowOf(op.getOut()), f.denseWindowOf(op.getLse()), f.rowWindowOf(op.getGrad())};
    if (op.getMask())
      reading.push_back(broadcastMask(f.windowOf(op.getMask()), scoreShape(op.getQ(), op.getK())));
    DropoutOfCommand dropout(op, f, reading);
    SmallVector<Window> writing{f.targetOf(op.getGradQ()), f.targetOf(op.getGradK()), f.targetOf(op.getGradV())};
    f.prepare(reading, writing);
    SmallVector<Value> from = viewsOf(reading, f), to = viewsOf(writing, f);
    OpBuilder &b = f.getBuilder();
    f.emitted(prog::AttentionGradOp::create(b, f.getLoc(), from[0], from[1], from[2], op.getMask() ? from[6] : Value(),
                                            dropout.seed(from), dropout.step(from), from[3], from[4], from[5], to[0],
                                            to[1], to[2], dropout.probability, dropout.id, op.getCausalAttr(),
                                            b.getF32FloatAttr(op.getScale().convertToDouble())));
    return success();
  }
  std::optional<uint64_t> getReadCost(Operation *base, unsigned operand, const Window &window) const {
    auto op = cast<segue::AttentionGradOp>(base);
    Value value = base->getOperand(operand);
    if (value == op.getLse())
      return freeIf(window.isDense());
    return freeIf(value == op.getMask() || isScalar(value) || window.hasUnitLastStride());
  }
  std::optional<uint64_t> getWriteCost(Operation *, unsigned, const Window &place) const {
    return freeIf(place.hasUnitLastStride());
  }
};

/// An op that is an operation of the device's library, which reads and writes dense
/// tensors. The op says its numbers and flops, and the shape of a workspace of i64 if it has
/// one, which is written behind its results; its name is that of the operation.
template <typename OpTy>
struct LibraryCommand : CommandOpInterface::ExternalModel<LibraryCommand<OpTy>, OpTy> {
  LogicalResult lower(Operation *op, FunctionLowering &f) const {
    SmallVector<Window> reading, writing;
    for (Value operand : op->getOperands())
      reading.push_back(f.denseWindowOf(operand));
    for (Value result : op->getResults())
      writing.push_back(f.targetOf(result));
    if constexpr (requires(OpTy typed) { typed.getLibraryWorkspace(); })
      writing.push_back(f.temporary(cast<OpTy>(op).getLibraryWorkspace(), f.getBuilder().getI64Type()));
    f.prepare(reading, writing);
    f.emitted(prog::LibraryCallOp::create(f.getBuilder(), f.getLoc(), op->getName().stripDialect(),
                                          viewsOf(reading, f), viewsOf(writing, f),
                                          cast<OpTy>(op).getLibraryNumbers()));
    return success();
  }
  std::optional<uint64_t> getReadCost(Operation *, unsigned, const Window &window) const {
    return freeIf(window.isDense());
  }
  std::optional<uint64_t> getWriteCost(Operation *, unsigned, const Window &place) const {
    return freeIf(place.isDense());
  }
};

template <typename OpTy> struct LibraryCost : CostOpInterface::ExternalModel<LibraryCost<OpTy>, OpTy> {
  int64_t getElementCost(Operation *) const { return 1; }
  int64_t getFlops(Operation *op) const { return cast<OpTy>(op).getLibraryFlops(); }
  Remake getRemake(Operation *) const { return Remake::OnDemand; }
};
} // namespace

template <typename... OpTys> static void attachLibraryCalls(MLIRContext *context) {
  (OpTys::template attachInterface<LibraryCommand<OpTys>, LibraryCost<OpTys>>(*context), ...);
}

void segue::registerCommands(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, SegueDialect *) {
    segue::LaunchOp::attachInterface<LaunchCommand>(*context);
    segue::AttentionOp::attachInterface<AttentionCommand>(*context);
    segue::AttentionGradOp::attachInterface<AttentionGradCommand>(*context);
    attachProducts(context);
    attachLibraryCalls<segue::Conv2dOp, segue::Conv2dInputGradOp, segue::Conv2dWeightGradOp, segue::Conv3dOp,
                       segue::Conv3dInputGradOp, segue::Conv3dWeightGradOp, segue::GroupedDotOp,
                       segue::GroupedOuterOp, segue::DotGeluOp, segue::ArgsortOp>(context);
  });
}
