//===- AccessCosts.cpp - what commands pay for where values lie -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AccessCosts.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

Window segue::denseWindow(Value value) {
  return Window::dense({}, typeOf(value).getShape(), typeOf(value).getElementType());
}

void segue::forEachOrder(ArrayRef<int64_t> shape, function_ref<void(ArrayRef<int64_t>)> visit) {
  if (static_cast<int64_t>(shape.size()) > kMostOrderedDimensions)
    return visit(prog::denseStrides(shape));
  SmallVector<unsigned> order = llvm::to_vector(llvm::seq<unsigned>(0, shape.size()));
  SmallVector<int64_t> strides(shape.size());
  do {
    int64_t stride = 1;
    for (unsigned dim : llvm::reverse(order)) {
      strides[dim] = stride;
      stride *= shape[dim];
    }
    visit(strides);
  } while (std::next_permutation(order.begin(), order.end()));
}

//===----------------------------------------------------------------------===//
// Readers
//===----------------------------------------------------------------------===//

static bool needsCopy(OpOperand &use, const Window &window) {
  return llvm::TypeSwitch<Operation *, bool>(use.getOwner())
      .Case([&](segue::LaunchOp) { return !window.isDense(); })
      .Case([&](segue::AttentionOp op) { return use.get() != op.getMask() && !window.hasUnitLastStride(); })
      .Case([&](segue::AttentionGradOp op) {
        if (use.get() == op.getLse())
          return !window.isDense();
        return use.get() != op.getMask() && !window.hasUnitLastStride();
      })
      // What is returned, joined or padded is written anew wherever it lies.
      .Default(false);
}

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

uint64_t AccessCosts::read(Value value, const Window &window) {
  uint64_t cost = 0;
  bool isCopied = false; // once, whoever reads the copy
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (isView(user))
      cost += readView(user, window);
    else if (auto dot = dyn_cast<DotGeneralOp>(user))
      cost += readByProduct(dot, use.getOperandNumber(), window);
    else
      isCopied |= needsCopy(use, window);
  }
  return cost + (isCopied ? conversionOf(window) : 0);
}

uint64_t AccessCosts::copyOfView(Operation *op) {
  Value result = op->getResult(0);
  auto known = readDense.find(result);
  if (known == readDense.end())
    known = readDense.try_emplace(result, read(result, denseWindow(result))).first;
  return conversionOf(denseWindow(result)) + known->second;
}

/// A view is read where it lies, or copied for its readers.
uint64_t AccessCosts::readView(Operation *op, const Window &window) {
  Value result = op->getResult(0);
  if (written && written->contains(result))
    return 0; // the copy is made in any case
  std::optional<Window> seen = applyShapeOp(op, window);
  uint64_t viewed = seen ? read(result, *seen) : 0;
  return seen && viewed == 0 ? 0 : seen ? std::min(viewed, copyOfView(op)) : copyOfView(op);
}

bool AccessCosts::isWorthCopying(Operation *op, const Window &operand) {
  std::optional<Window> seen = applyShapeOp(op, operand);
  if (!seen)
    return true;
  uint64_t viewed = read(op->getResult(0), *seen);
  // Of two equal prices the copy's is paid once the producer cannot write it.
  return viewed > 0 && copyOfView(op) <= viewed;
}

//===----------------------------------------------------------------------===//
// Writers
//===----------------------------------------------------------------------===//

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

std::optional<uint64_t> AccessCosts::writeDirect(Value value, const Window &place) {
  Operation *producer = value.getDefiningOp();
  while (producer && isa<TransposeOp, ReshapeOp>(producer)) {
    Value operand = producer->getOperand(0);
    std::optional<Window> inverse = invertShapeOp(producer, place);
    if (!inverse || (!operand.hasOneUse() && !inverse->isDense()))
      return std::nullopt;
    return writeDirect(operand, *inverse);
  }
  if (!producer)
    return std::nullopt;
  auto where = [](bool fits) { return fits ? std::optional<uint64_t>(0) : std::nullopt; };
  return llvm::TypeSwitch<Operation *, std::optional<uint64_t>>(producer)
      .Case([&](DotGeneralOp dot) { return writeByProduct(dot, place); })
      .Case<ConcatOp, PadOp>([](auto) { return 0; })
      .Case([&](segue::AttentionOp op) {
        return where(value == op.getLse() ? place.isDense() : place.hasUnitLastStride());
      })
      .Case([&](segue::AttentionGradOp) { return where(place.hasUnitLastStride()); })
      .Case([&](segue::LaunchOp) { return where(place.isDense()); })
      // Slices, broadcasts and constants are copied to where they must be.
      .Default([](Operation *) { return std::nullopt; });
}

uint64_t AccessCosts::write(Value value, const Window &place) {
  uint64_t copied = conversionOf(place) + read(value, denseWindow(value));
  std::optional<uint64_t> direct = writeDirect(value, place);
  return direct ? std::min(copied, *direct + read(value, place)) : copied;
}

uint64_t AccessCosts::writeTiles(Value value) {
  Window rows = denseWindow(value);
  return conversionOf(rows) + read(value, rows);
}

//===----------------------------------------------------------------------===//
// Temporaries
//===----------------------------------------------------------------------===//

/// True if `value`, or a view of it, is joined, padded or returned: its command may
/// write it there at once.
static bool isWrittenElsewhere(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) {
    return isa<ConcatOp, PadOp>(user) || user->hasTrait<OpTrait::IsTerminator>() ||
           (isView(user) && isWrittenElsewhere(user->getResult(0)));
  });
}

Window AccessCosts::cheapestTemporary(Value value, uint64_t &saved) {
  Window best = denseWindow(value);
  uint64_t byRows = read(value, best), least = byRows;
  saved = 0;
  if (byRows == 0 || isWrittenElsewhere(value))
    return best;
  // The library that computes products of narrow elements does not promise the same
  // order of sums when it writes columns.
  bool mayTurn = typeOf(value).getElementTypeBitWidth() >= 32;
  forEachOrder(best.shape, [&](ArrayRef<int64_t> strides) {
    Window window = best;
    window.strides.assign(strides.begin(), strides.end());
    std::optional<uint64_t> direct = writeDirect(value, window);
    if (!direct || (*direct && !mayTurn))
      return;
    if (uint64_t cost = *direct + read(value, window); cost < least) {
      least = cost;
      best = window;
    }
  });
  saved = byRows - least;
  return best;
}
