//===- Products.cpp - matrix products as commands -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Products.h"
#include "FunctionLowering.h"
#include "segue/Conversion/SegueToProg/Commands.h"

using namespace mlir;
using namespace segue;

/// Returns `window` as [batch, rows, columns]; nothing if strides cannot show it.
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

/// Returns `value` as [batch, rows, columns], copied if strides cannot show it.
static Window matrixOf(FunctionLowering &f, Value value, ArrayRef<int64_t> batch, ArrayRef<int64_t> rows,
                       ArrayRef<int64_t> columns) {
  Window window = f.windowOf(value);
  if (std::optional<Window> matrix = asMatrix(window, batch, rows, columns))
    return *matrix;
  SmallVector<int64_t> order(batch);
  llvm::append_range(order, rows);
  llvm::append_range(order, columns);
  Window dense = f.copyToTemporary(window.transpose(order));
  auto dims = llvm::to_vector(llvm::seq<int64_t>(0, order.size()));
  ArrayRef<int64_t> all(dims);
  return *asMatrix(dense, all.take_front(batch.size()), all.slice(batch.size(), rows.size()),
                   all.take_back(columns.size()));
}

/// The bias of a product, along the last dimension of its result; the same for
/// all others in n. `turned`: n is what the left operand has free.
static std::optional<Window> biasOf(FunctionLowering &f, DotGeneralOp op, bool turned) {
  if (!op.getBias())
    return std::nullopt;
  Window bias = f.windowOf(op.getBias());
  SmallVector<int64_t> extents;
  for (int64_t dim : turned ? op.getLhsFree() : op.getRhsFree())
    extents.push_back(typeOf(turned ? op.getLhs() : op.getRhs()).getDimSize(dim));
  bias = bias.broadcast({static_cast<int64_t>(extents.size()) - 1}, extents);
  auto columns = llvm::to_vector(llvm::seq<int64_t>(0, extents.size()));
  std::optional<Collapsed> n = bias.collapse(columns);
  if (!n || (n->extent != 1 && n->stride != 1)) {
    bias = f.copyToTemporary(bias);
    n = bias.collapse(columns);
  }
  return Window{bias.buffer, bias.offset, bias.element, {n->extent}, {1}};
}

/// A product with a weight of codes, multiplied as they lie. False where no
/// such product is, and nothing has been done.
static bool lowerDotOfCodes(FunctionLowering &f, DotGeneralOp op) {
  std::optional<Window> weight = f.windowOfCodes(op.getRhs());
  std::optional<Window> b =
      weight ? asMatrix(*weight, op.getRhsBatch(), op.getRhsContract(), op.getRhsFree()) : std::nullopt;
  if (!b || b->shape[0] != 1)
    return false;
  // All of the matrix, as it is or transposed, and not a part of it.
  auto input = cast<BlockArgument>(b->buffer);
  RankedTensorType type = f.inputType(input.getArgNumber());
  int64_t rows = type.getDimSize(0), columns = type.getDimSize(1);
  auto sees = [&](unsigned row, unsigned column) {
    return b->shape[row] == rows && b->shape[column] == columns && (rows == 1 || b->strides[row] == columns) &&
           (columns == 1 || b->strides[column] == 1);
  };
  bool transposed = sees(2, 1);
  if (b->offset != 0 || (!transposed && !sees(1, 2)))
    return false;

  Window a = matrixOf(f, op.getLhs(), op.getLhsBatch(), op.getLhsFree(), op.getLhsContract());
  auto hasRows = [](const Window &matrix) {
    return (matrix.shape[2] == 1 || matrix.strides[2] == 1) &&
           (matrix.shape[1] == 1 || matrix.strides[1] >= matrix.shape[2]);
  };
  if (!hasRows(a))
    a = f.copyToTemporary(a);
  Window result = f.targetOf(op.getResult());
  auto dims = llvm::to_vector(llvm::seq<int64_t>(0, result.shape.size()));
  ArrayRef<int64_t> all(dims);
  size_t batch = op.getLhsBatch().size(), last = batch + op.getLhsFree().size();
  auto matrix = [&](const Window &window) {
    return asMatrix(window, all.take_front(batch), all.slice(batch, last - batch), all.drop_front(last));
  };
  std::optional<Window> c = matrix(result), copyTo;
  if (!c || !hasRows(*c)) {
    copyTo = result;
    result = f.temporary(result.shape, result.element);
    c = matrix(result);
  }
  for (Window *one : {&a, &*c})
    one->strides[2] = one->shape[2] == 1 ? 1 : one->strides[2];

  std::optional<Window> bias = biasOf(f, op, /*turned=*/false);
  SmallVector<Window> reading{a, Window{input, 0, {}, {}, {}}};
  if (bias)
    reading.push_back(*bias);
  f.prepare(reading, *c);
  Value lhsView = f.view(a), biasView = bias ? f.view(*bias) : Value();
  OpBuilder &builder = f.getBuilder();
  f.emitted(prog::MatmulOp::create(builder, f.getLoc(), lhsView, input, TypeAttr::get(type),
                                   transposed ? builder.getUnitAttr() : UnitAttr(), biasView, f.view(*c), UnitAttr(),
                                   prog::ActivationAttr::get(builder.getContext(), prog::Activation::None)));
  f.countFused();
  if (copyTo)
    f.copy(result, *copyTo);
  return true;
}

static LogicalResult lowerDot(FunctionLowering &f, DotGeneralOp op) {
  if (lowerDotOfCodes(f, op))
    return success();
  // The contracted dimensions may be taken in any order, if it is the same on
  // both sides: take one in which both collapse.
  Window lhs = f.windowOf(op.getLhs()), rhs = f.windowOf(op.getRhs());
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
  Window a = matrixOf(f, op.getLhs(), op.getLhsBatch(), lhsFree, lhsContract);
  Window b = matrixOf(f, op.getRhs(), op.getRhsBatch(), rhsContract, rhsFree);

  // The result, turned where its rows and not its columns are contiguous, or
  // where a bias lies along the rows.
  Window result = f.targetOf(op.getResult());
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
    result = f.temporary(result.shape, result.element);
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
  if (std::optional<Window> bias = biasOf(f, op, turned))
    reading.push_back(*bias);
  f.prepare(reading, *c);
  Value lhsView = f.view(a), rhsView = f.view(b), biasView = op.getBias() ? f.view(reading.back()) : Value();
  f.emitted(prog::MatmulOp::create(f.getBuilder(), f.getLoc(), lhsView, rhsView, TypeAttr(), UnitAttr(), biasView,
                                   f.view(*c), UnitAttr(),
                                   prog::ActivationAttr::get(f.getBuilder().getContext(), prog::Activation::None)));
  if (copyTo)
    f.copy(result, *copyTo);
  return success();
}

//===----------------------------------------------------------------------===//
// Prices
//===----------------------------------------------------------------------===//

static uint64_t readByProduct(DotGeneralOp dot, unsigned operand, const Window &window) {
  if (operand > 1) // the bias
    return 0;
  bool isLhs = operand == 0;
  std::optional<Collapsed> batch = window.collapse(isLhs ? dot.getLhsBatch() : dot.getRhsBatch());
  SmallVector<int64_t> freeDims = isLhs ? dot.getLhsFree() : dot.getRhsFree();
  std::optional<Collapsed> free = window.collapse(freeDims);
  std::optional<Collapsed> contract = window.collapse(isLhs ? dot.getLhsContract() : dot.getRhsContract());
  if (!batch || !free || !contract)
    return conversionOf(window);
  const Collapsed &column = isLhs ? *contract : *free, &row = isLhs ? *free : *contract;
  if (column.extent == 1 || column.stride == 1)
    return 0;
  if (row.extent == 1 || row.stride == 1)
    return window.bytes() / layout_costs::kTurnedProductShare;
  return layout_costs::kScatteredProductPasses * window.bytes();
}

/// A product into `place`, whose dimensions are those of its batch, rows and columns.
static std::optional<uint64_t> writeByProduct(DotGeneralOp dot, const Window &place) {
  auto all = llvm::to_vector(llvm::seq<int64_t>(0, place.shape.size()));
  size_t batch = dot.getLhsBatch().size(), rows = dot.getLhsFree().size();
  ArrayRef<int64_t> dims(all);
  std::optional<Collapsed> b = place.collapse(dims.take_front(batch)), m = place.collapse(dims.slice(batch, rows)),
                           n = place.collapse(dims.drop_front(batch + rows));
  if (!b || !m || !n)
    return std::nullopt;
  if (n->extent == 1 || n->stride == 1)
    return 0;
  if (dot.getBias() || (m->extent != 1 && m->stride != 1))
    return std::nullopt;
  return place.bytes() / layout_costs::kTurnedProductShare;
}

namespace {
struct ProductCommand : CommandOpInterface::ExternalModel<ProductCommand, DotGeneralOp> {
  LogicalResult lower(Operation *op, FunctionLowering &f) const { return lowerDot(f, cast<DotGeneralOp>(op)); }
  std::optional<uint64_t> getReadCost(Operation *op, unsigned operand, const Window &window) const {
    return readByProduct(cast<DotGeneralOp>(op), operand, window);
  }
  std::optional<uint64_t> getWriteCost(Operation *op, unsigned, const Window &place) const {
    return writeByProduct(cast<DotGeneralOp>(op), place);
  }
};
} // namespace

void segue::attachProducts(MLIRContext *context) { DotGeneralOp::attachInterface<ProductCommand>(*context); }
