//===- AccessCosts.cpp - what commands pay for where values lie -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AccessCosts.h"
#include "segue/Conversion/SegueToProg/Commands.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

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

uint64_t AccessCosts::read(Value value, const Window &window) {
  uint64_t cost = 0;
  bool isCopied = false; // once, whoever reads the copy
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (isView(user)) {
      cost += readView(user, window);
      continue;
    }
    // A value that is returned, joined or padded is written anew wherever it lies.
    auto command = dyn_cast<CommandOpInterface>(user);
    if (!command)
      continue;
    std::optional<uint64_t> moved = command.getReadCost(use.getOperandNumber(), window);
    cost += moved.value_or(0);
    isCopied |= !moved;
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
  // If both prices are equal, the copy's is paid once the producer cannot write it.
  return viewed > 0 && copyOfView(op) <= viewed;
}

//===----------------------------------------------------------------------===//
// Writers
//===----------------------------------------------------------------------===//

std::optional<uint64_t> AccessCosts::writeDirect(Value value, const Window &place) {
  Operation *producer = value.getDefiningOp();
  if (isView(producer)) {
    Value operand = producer->getOperand(0);
    std::optional<Window> inverse = invertShapeOp(producer, place);
    if (!inverse || (!operand.hasOneUse() && !inverse->isDense()))
      return std::nullopt;
    return writeDirect(operand, *inverse);
  }
  if (!producer)
    return std::nullopt;
  if (auto command = dyn_cast<CommandOpInterface>(producer))
    return command.getWriteCost(cast<OpResult>(value).getResultNumber(), place);
  // Parts are written wherever they lie; slices, broadcasts and constants are copied to
  // where they must be.
  return isInParts(producer) ? std::optional<uint64_t>(0) : std::nullopt;
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

/// Returns true if `value`, or a view of it, is joined, padded or returned: its command may
/// write it there at once.
static bool isWrittenElsewhere(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) {
    return isInParts(user) || user->hasTrait<OpTrait::IsTerminator>() ||
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
