//===- LowerOps.cpp - what each op becomes --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FunctionLowering.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

LogicalResult FunctionLowering::lower(Operation *op) {
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](segue::LaunchOp op) { return lowerLaunch(op); })
      .Case([&](DotGeneralOp op) { return lowerDot(op); })
      .Case([&](segue::AttentionOp op) { return lowerAttention(op); })
      .Case([&](segue::AttentionGradOp op) { return lowerAttentionGrad(op); })
      .Case([&](ConcatOp op) { return lowerConcat(op), success(); })
      .Case([&](PadOp op) { return lowerPad(op), success(); })
      .Case<TransposeOp, SliceOp, BroadcastOp, ReshapeOp>([&](Operation *op) { return lowerShapeOp(op), success(); })
      .Case([&](segue::ToLayoutOp op) {
        // Inside of a program all layouts are ours to choose; what inputs and
        // outputs declare is kept where they are read and written.
        windows[op.getResult()] = windowOf(op.getInput());
        return success();
      })
      .Case([&](segue::ConstantOp op) -> LogicalResult {
        if (!elementsToBytes(op.getValue(), /*splat=*/true))
          return op.emitOpError() << "has a resource without bytes";
        if (owned.contains(op.getResult()))
          lowerConstantResult(op);
        return success();
      })
      .Default([](Operation *op) {
        return op->emitOpError() << "is no command of a program; run segue-expand, segue-form-kernels and "
                                    "segue-outline-kernels first";
      });
}

LogicalResult FunctionLowering::lowerLaunch(segue::LaunchOp op) {
  SmallVector<Window> inputs, outputs;
  for (Value input : op.getInputs())
    inputs.push_back(denseWindowOf(input));
  for (Value result : op.getResults())
    outputs.push_back(targetOf(result));
  prepare(inputs, outputs);
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
  emitted(prog::LaunchOp::create(builder, loc, op.getKernelAttr(), args,
                                 atStart ? DenseI64ArrayAttr() : builder.getDenseI64ArrayAttr(offsets),
                                 builder.getI64IntegerAttr(op.getRange()), builder.getI64IntegerAttr(op.getGrain()),
                                 inPlace.empty() ? DenseI64ArrayAttr() : builder.getDenseI64ArrayAttr(inPlace)));
  return success();
}

/// `window` as [batch, rows, columns]; nothing where strides cannot show it.
static std::optional<Window> asMatrix(const Window &window, ArrayRef<int64_t> batch, ArrayRef<int64_t> rows,
                                      ArrayRef<int64_t> columns) {
  std::optional<Collapsed> b = window.collapse(batch), m = window.collapse(rows), n = window.collapse(columns);
  if (!b || !m || !n)
    return std::nullopt;
  // Strides of unit dimensions are free: let them be those of a dense matrix.
  if (n->extent == 1)
    n->stride = 1;
  if (m->extent == 1)
    m->stride = n->stride * n->extent;
  if (b->extent == 1)
    b->stride = m->stride * m->extent;
  return Window{window.buffer,
                window.offset,
                window.element,
                {b->extent, m->extent, n->extent},
                {b->stride, m->stride, n->stride}};
}

/// `value` as [batch, rows, columns], copied where strides cannot show it.
Window FunctionLowering::matrixOf(Value value, ArrayRef<int64_t> batch, ArrayRef<int64_t> rows,
                                  ArrayRef<int64_t> columns) {
  Window window = windowOf(value);
  if (std::optional<Window> matrix = asMatrix(window, batch, rows, columns))
    return *matrix;
  SmallVector<int64_t> order(batch);
  llvm::append_range(order, rows);
  llvm::append_range(order, columns);
  Window dense = copyToTemporary(window.transpose(order));
  auto dims = llvm::to_vector(llvm::seq<int64_t>(0, order.size()));
  ArrayRef<int64_t> all(dims);
  return *asMatrix(dense, all.take_front(batch.size()), all.slice(batch.size(), rows.size()),
                   all.take_back(columns.size()));
}

/// The bias of a product, along the last dimension of its result; the same for
/// all others in n. `turned`: n is what the left operand has free.
std::optional<Window> FunctionLowering::biasOf(DotGeneralOp op, bool turned) {
  if (!op.getBias())
    return std::nullopt;
  Window bias = windowOf(op.getBias());
  SmallVector<int64_t> extents;
  for (int64_t dim : turned ? op.getLhsFree() : op.getRhsFree())
    extents.push_back(typeOf(turned ? op.getLhs() : op.getRhs()).getDimSize(dim));
  bias = bias.broadcast({static_cast<int64_t>(extents.size()) - 1}, extents);
  auto columns = llvm::to_vector(llvm::seq<int64_t>(0, extents.size()));
  std::optional<Collapsed> n = bias.collapse(columns);
  if (!n || (n->extent != 1 && n->stride != 1)) {
    bias = copyToTemporary(bias);
    n = bias.collapse(columns);
  }
  return Window{bias.buffer, bias.offset, bias.element, {n->extent}, {1}};
}

/// A product with a weight of codes, multiplied as they lie. False where no
/// such product is, and nothing has been done.
bool FunctionLowering::lowerDotOfCodes(DotGeneralOp op) {
  std::optional<Window> weight = windowOfCodes(op.getRhs());
  std::optional<Window> b =
      weight ? asMatrix(*weight, op.getRhsBatch(), op.getRhsContract(), op.getRhsFree()) : std::nullopt;
  if (!b || b->shape[0] != 1)
    return false;
  // All of the matrix, as it is or transposed, and not a part of it.
  auto input = cast<BlockArgument>(b->buffer);
  RankedTensorType type = program.getInput(input.getArgNumber()).getType();
  int64_t rows = type.getDimSize(0), columns = type.getDimSize(1);
  auto sees = [&](unsigned row, unsigned column) {
    return b->shape[row] == rows && b->shape[column] == columns && (rows == 1 || b->strides[row] == columns) &&
           (columns == 1 || b->strides[column] == 1);
  };
  bool transposed = sees(2, 1);
  if (b->offset != 0 || (!transposed && !sees(1, 2)))
    return false;

  Window a = matrixOf(op.getLhs(), op.getLhsBatch(), op.getLhsFree(), op.getLhsContract());
  auto hasRows = [](const Window &matrix) {
    return (matrix.shape[2] == 1 || matrix.strides[2] == 1) &&
           (matrix.shape[1] == 1 || matrix.strides[1] >= matrix.shape[2]);
  };
  if (!hasRows(a))
    a = copyToTemporary(a);
  Window result = targetOf(op.getResult());
  auto dims = llvm::to_vector(llvm::seq<int64_t>(0, result.shape.size()));
  ArrayRef<int64_t> all(dims);
  size_t batch = op.getLhsBatch().size(), last = batch + op.getLhsFree().size();
  auto matrix = [&](const Window &window) {
    return asMatrix(window, all.take_front(batch), all.slice(batch, last - batch), all.drop_front(last));
  };
  std::optional<Window> c = matrix(result), copyTo;
  if (!c || !hasRows(*c)) {
    copyTo = result;
    result = temporary(result.shape, result.element);
    c = matrix(result);
  }
  for (Window *one : {&a, &*c})
    one->strides[2] = one->shape[2] == 1 ? 1 : one->strides[2];

  std::optional<Window> bias = biasOf(op, /*turned=*/false);
  SmallVector<Window> reading{a, Window{input, 0, {}, {}, {}}};
  if (bias)
    reading.push_back(*bias);
  prepare(reading, *c);
  Value lhsView = view(a), biasView = bias ? view(*bias) : Value();
  emitted(prog::MatmulOp::create(builder, loc, lhsView, input, TypeAttr::get(type),
                                 transposed ? builder.getUnitAttr() : UnitAttr(), biasView, view(*c), UnitAttr(),
                                 prog::ActivationAttr::get(builder.getContext(), prog::Activation::None)));
  ++counts.fused;
  if (copyTo)
    copy(result, *copyTo);
  return true;
}

LogicalResult FunctionLowering::lowerDot(DotGeneralOp op) {
  if (lowerDotOfCodes(op))
    return success();
  // The contracted dimensions may be taken in any order, if it is the same on
  // both sides: take one in which both collapse.
  Window lhs = windowOf(op.getLhs()), rhs = windowOf(op.getRhs());
  SmallVector<int64_t> lhsContract(op.getLhsContract()), rhsContract(op.getRhsContract());
  auto order = llvm::to_vector(llvm::seq<size_t>(0, lhsContract.size()));
  auto take = [&](auto key) {
    llvm::stable_sort(order, [&](size_t a, size_t b) { return key(a) > key(b); });
    for (auto [i, from] : llvm::enumerate(order)) {
      lhsContract[i] = op.getLhsContract()[from];
      rhsContract[i] = op.getRhsContract()[from];
    }
    return lhs.collapse(lhsContract) && rhs.collapse(rhsContract);
  };
  bool collapses = lhs.collapse(lhsContract) && rhs.collapse(rhsContract);
  if (!collapses && !take([&](size_t i) { return lhs.strides[op.getLhsContract()[i]]; }))
    take([&](size_t i) { return rhs.strides[op.getRhsContract()[i]]; });

  SmallVector<int64_t> lhsFree = op.getLhsFree(), rhsFree = op.getRhsFree();
  Window a = matrixOf(op.getLhs(), op.getLhsBatch(), lhsFree, lhsContract);
  Window b = matrixOf(op.getRhs(), op.getRhsBatch(), rhsContract, rhsFree);

  // The result, turned where its rows and not its columns are contiguous, or
  // where a bias lies along the rows.
  Window result = targetOf(op.getResult());
  auto dims = llvm::to_vector(llvm::seq<int64_t>(0, result.shape.size()));
  ArrayRef<int64_t> all(dims);
  size_t batch = op.getLhsBatch().size();
  auto matrix = [&](const Window &window) {
    return asMatrix(window, all.take_front(batch), all.slice(batch, lhsFree.size()),
                    all.drop_front(batch + lhsFree.size()));
  };
  std::optional<Window> c = matrix(result);
  bool biasAlongRows = op.getBias() && rhsFree.empty();
  auto fits = [&](bool turned) { return c && (c->shape[turned ? 1 : 2] == 1 || c->strides[turned ? 1 : 2] == 1); };
  bool turned = biasAlongRows || (!fits(false) && fits(true) && !op.getBias());
  std::optional<Window> copyTo;
  if (!fits(turned)) {
    copyTo = result;
    result = temporary(result.shape, result.element);
    c = matrix(result);
    turned = biasAlongRows;
  }
  if (turned) {
    std::swap(a, b);
    a = a.transpose({0, 2, 1});
    b = b.transpose({0, 2, 1});
    c = c->transpose({0, 2, 1});
  }
  // A single column has any stride.
  if (c->shape[2] == 1)
    c->strides[2] = 1;

  SmallVector<Window> reading{a, b};
  if (std::optional<Window> bias = biasOf(op, turned))
    reading.push_back(*bias);
  prepare(reading, *c);
  Value lhsView = view(a), rhsView = view(b), biasView = op.getBias() ? view(reading.back()) : Value();
  emitted(prog::MatmulOp::create(builder, loc, lhsView, rhsView, TypeAttr(), UnitAttr(), biasView, view(*c), UnitAttr(),
                                 prog::ActivationAttr::get(builder.getContext(), prog::Activation::None)));
  if (copyTo)
    copy(result, *copyTo);
  return success();
}

/// A mask as [batch, heads, rows, keys], repeated where it is 1.
static Window broadcastMask(const Window &mask, ArrayRef<int64_t> shape) { return mask.broadcast({0, 1, 2, 3}, shape); }

static SmallVector<int64_t> scoreShape(Value q, Value k) {
  SmallVector<int64_t> shape(typeOf(q).getShape());
  shape.back() = typeOf(k).getDimSize(2);
  return shape;
}

LogicalResult FunctionLowering::lowerAttention(segue::AttentionOp op) {
  SmallVector<Window> reading{rowWindowOf(op.getQ()), rowWindowOf(op.getK()), rowWindowOf(op.getV())};
  if (op.getMask())
    reading.push_back(broadcastMask(windowOf(op.getMask()), scoreShape(op.getQ(), op.getK())));
  SmallVector<Window> writing{targetOf(op.getResult()), targetOf(op.getLse())};
  prepare(reading, writing);
  SmallVector<Value> from, to;
  for (const Window &window : reading)
    from.push_back(view(window));
  for (const Window &window : writing)
    to.push_back(view(window));
  emitted(prog::AttentionOp::create(builder, loc, from[0], from[1], from[2], op.getMask() ? from[3] : Value(), to[0],
                                    to[1], op.getCausalAttr(),
                                    builder.getF32FloatAttr(op.getScale().convertToDouble())));
  return success();
}

LogicalResult FunctionLowering::lowerAttentionGrad(segue::AttentionGradOp op) {
  SmallVector<Window> reading{rowWindowOf(op.getQ()),   rowWindowOf(op.getK()),     rowWindowOf(op.getV()),
                              rowWindowOf(op.getOut()), denseWindowOf(op.getLse()), rowWindowOf(op.getGrad())};
  if (op.getMask())
    reading.push_back(broadcastMask(windowOf(op.getMask()), scoreShape(op.getQ(), op.getK())));
  SmallVector<Window> writing{targetOf(op.getGradQ()), targetOf(op.getGradK()), targetOf(op.getGradV())};
  prepare(reading, writing);
  SmallVector<Value> from, to;
  for (const Window &window : reading)
    from.push_back(view(window));
  for (const Window &window : writing)
    to.push_back(view(window));
  emitted(prog::AttentionGradOp::create(builder, loc, from[0], from[1], from[2], op.getMask() ? from[6] : Value(),
                                        from[3], from[4], from[5], to[0], to[1], to[2], op.getCausalAttr(),
                                        builder.getF32FloatAttr(op.getScale().convertToDouble())));
  return success();
}

/// A shape op with a place of its own is written, unless its operand already
/// lies there; the others are views.
void FunctionLowering::lowerShapeOp(Operation *op) {
  Value result = op->getResult(0);
  if (!owned.contains(result))
    return;
  Window source = windowOf(op->getOperand(0)), target = windows[result];
  std::optional<Window> seen = applyShapeOp(op, source);
  if (seen && seen->sameAs(target))
    return;
  if (std::optional<Window> inverse = invertShapeOp(op, target); inverse && inverse->sameAs(source))
    return;
  if (seen)
    return copy(*seen, target);
  copyReshaped(source, target);
}

void FunctionLowering::lowerConcat(ConcatOp op) {
  Window whole = windowOf(op.getResult());
  SmallVector<int64_t> starts(whole.shape.size(), 0), steps(whole.shape.size(), 1);
  for (Value input : op.getInputs()) {
    Window target = whole.slice(starts, steps, typeOf(input).getShape());
    Window source = windowOf(input);
    if (!source.sameAs(target))
      copy(source, target);
    starts[op.getDim()] += typeOf(input).getDimSize(op.getDim());
  }
}

void FunctionLowering::lowerPad(PadOp op) {
  Window whole = windowOf(op.getResult());
  SmallVector<int64_t> steps;
  for (int64_t interior : op.getInterior())
    steps.push_back(interior + 1);
  Window target = whole.slice(op.getLow(), steps, typeOf(op.getInput()).getShape());
  Window source = windowOf(op.getInput());
  // Written there already, and the buffer filled before.
  if (source.sameAs(target))
    return;
  bool coversBuffer = whole.isDense() && whole.bytes() == prog::viewBytes(cast<MemRefType>(whole.buffer.getType()));
  if (coversBuffer)
    fill(whole.buffer, op.getValue());
  else
    copy(splatWindow(op.getValue(), whole.shape), whole);
  copy(source, target);
}

void FunctionLowering::lowerConstantResult(segue::ConstantOp op) {
  Window target = windows[op.getResult()];
  bool coversBuffer = target.isDense() && target.bytes() == prog::viewBytes(cast<MemRefType>(target.buffer.getType()));
  if (op.getValue().isSplat() && coversBuffer)
    fill(target.buffer, op.getValue().getSplatValue<Attribute>());
  else
    copy(constantWindow(op), target);
}
