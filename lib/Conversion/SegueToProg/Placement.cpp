//===- Placement.cpp - where the values of a function are written ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Results lie as they are declared. Then each temporary of a library call gets the
// order of dimensions in which making and reading it moves the fewest bytes. Then
// the function is walked backwards, so that all users of a value are decided
// before it. A value that must lie in a given place (a result, an operand of a
// concat or pad, a view that is worth copying) proposes that place to its
// producer, through transposes and reshapes. So does a result of a kernel that may
// lie where an operand does. A producer that can write there does; otherwise a copy is made when commands are emitted. What is worth what is
// for AccessCosts to say. Nothing here is needed for correctness: without any
// proposal taken there are more copies.
//
//===----------------------------------------------------------------------===//

#include "FunctionLowering.h"
#include "segue/Conversion/SegueToProg/Commands.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/Support/InterleavedRange.h"

using namespace mlir;
using namespace segue;

/// The value whose bytes `value` shows.
Value FunctionLowering::rootOf(Value value) {
  while (isView(value.getDefiningOp()) && !owned.contains(value))
    value = value.getDefiningOp()->getOperand(0);
  return value;
}

void FunctionLowering::placeValues() {
  Block &body = func.getBody().front();
  for (auto [i, op] : llvm::enumerate(body)) {
    position[&op] = i;
    for (Value operand : op.getOperands()) {
      while (isView(operand.getDefiningOp()))
        operand = operand.getDefiningOp()->getOperand(0);
      lastUse[operand] = i;
    }
  }
  placeResults();
  if (choosesOrders)
    orderTemporaries();
  for (Operation &op : llvm::reverse(body.without_terminator()))
    placeOperandsOf(&op);
}

/// Returns true if `value` may be written over input `input`: nothing reads that later on,
/// and the op that makes `value` can work in place.
bool FunctionLowering::mayOverwrite(OpResult value, unsigned input) {
  BlockArgument arg = func.getArgument(input);
  Operation *producer = value.getOwner();
  auto last = lastUse.find(arg);
  if (last == lastUse.end() || last->second < position[producer])
    return true;
  if (last->second > position[producer])
    return false;
  auto command = dyn_cast<CommandOpInterface>(producer);
  return command && llvm::all_of(producer->getOpOperands(), [&](OpOperand &operand) {
           return rootOf(operand.get()) != arg ||
                  command.mayWriteOver(operand.getOperandNumber(), value.getResultNumber());
         });
}

void FunctionLowering::placeResults() {
  auto terminator = cast<func::ReturnOp>(func.getBody().front().getTerminator());
  for (auto [i, value] : llvm::enumerate(terminator.getOperands())) {
    auto buffer = program.getOutputBuffer(i);
    if (!isComputedOn(program.getOutput(i).getType())) {
      if (!isa<BlockArgument>(value) || aliasOf[i] != cast<BlockArgument>(value).getArgNumber())
        lateResults.push_back(i);
      continue;
    }
    std::optional<SmallVector<int64_t>> strides = prog::stridesOf(cast<MemRefType>(buffer.getType()));
    Window place{buffer, 0, typeOf(value).getElementType(), SmallVector<int64_t>(typeOf(value).getShape()), *strides};
    if (auto arg = dyn_cast<BlockArgument>(value)) {
      if (aliasOf[i] != arg.getArgNumber())
        lateResults.push_back(i);
      continue;
    }
    // Shape ops take any place, but what they are made of is written earlier:
    // too early for a place that lies over an input.
    auto result = cast<OpResult>(value);
    bool isShape = isView(result.getOwner()) || isInParts(result.getOwner()) ||
                   result.getOwner()->hasTrait<OpTrait::ConstantLike>();
    bool fits = isShape ? aliasOf[i] < 0 : AccessCosts::writeDirect(result, place).has_value();
    if (windows.contains(value) || !fits || (aliasOf[i] >= 0 && !mayOverwrite(result, aliasOf[i]))) {
      lateResults.push_back(i);
      continue;
    }
    windows[value] = place;
    owned.insert(value);
    ++counts.placed;
  }
}

/// Lays out, for the commands that a library computes, results that nobody else has placed.
/// Kernels write dense rows alone.
void FunctionLowering::orderTemporaries() {
  AccessCosts byUse;
  for (Operation &op : func.getBody().front().without_terminator()) {
    if (!isa<CommandOpInterface>(op))
      continue;
    for (Value result : op.getResults()) {
      if (windows.contains(result))
        continue;
      uint64_t saved = 0;
      Window place = byUse.cheapestTemporary(result, saved);
      if (!saved)
        continue;
      place.buffer = temporary(place.shape, place.element).buffer;
      windows[result] = place;
      ++counts.ordered;
      counts.orderedBytes += saved;
      if (explains)
        mlir::emitRemark(op.getLoc()) << "@" << func.getName() << ": a temporary of " << typeOf(result)
                                      << " lies in strides [" << llvm::interleaved(place.strides) << "], which moves "
                                      << saved << " bytes less than dense rows";
    }
  }
}

/// Proposes that `value` is written to `place`. That is taken if it has no place yet,
/// nobody else needs it dense, and its producer can write there.
void FunctionLowering::propose(Value value, const Window &place) {
  Operation *producer = value.getDefiningOp();
  if (!producer || windows.contains(value) || isa<ConstantOp, SliceOp, BroadcastOp>(producer))
    return;
  if (!value.hasOneUse() && !place.isDense())
    return;
  bool isShape = isa<TransposeOp, ReshapeOp, ConcatOp, PadOp>(producer);
  if (!isShape && !AccessCosts::writeDirect(value, place))
    return;
  windows[value] = place;
  owned.insert(value);
  if (!isShape)
    ++counts.placed;
}

/// The window that `value` will have if its root gets a dense one.
std::optional<Window> FunctionLowering::predict(Value value) {
  if (auto known = windows.find(value); known != windows.end())
    return known->second;
  if (isView(value.getDefiningOp())) {
    std::optional<Window> operand = predict(value.getDefiningOp()->getOperand(0));
    return operand ? applyShapeOp(value.getDefiningOp(), *operand) : std::nullopt;
  }
  return Window::dense({}, typeOf(value).getShape(), typeOf(value).getElementType());
}

/// Has the operand that a result of `op` may overwrite, and that nothing reads later, made where that result lies. Not
/// over an input of the program, which is read until then.
void FunctionLowering::placeOverwritten(CommandOpInterface op) {
  for (OpResult result : op->getResults()) {
    auto placed = windows.find(result);
    if (placed == windows.end() || !placed->second.isDense())
      continue;
    Window place = placed->second;
    bool isOverInput = false;
    for (auto [i, alias] : llvm::enumerate(aliasOf))
      isOverInput |= alias >= 0 && program.getOutputBuffer(i) == place.buffer;
    if (isOverInput)
      continue;
    auto mayLieThere = [&](Value value) {
      return value.getDefiningOp() && !windows.contains(value) && lastUse.lookup(value) == position[op] &&
             llvm::all_of(op->getOpOperands(), [&](OpOperand &operand) {
               return rootOf(operand.get()) != value ||
                      (operand.get() == value && op.mayWriteOver(operand.getOperandNumber(), result.getResultNumber()));
             });
    };
    auto operand = llvm::find_if(op->getOperands(), mayLieThere);
    if (operand == op->getOperands().end())
      continue;
    Window early = Window::dense(place.buffer, typeOf(*operand).getShape(), typeOf(*operand).getElementType());
    early.offset = place.offset;
    propose(*operand, early);
  }
}

void FunctionLowering::placeOperandsOf(Operation *op) {
  if (auto command = dyn_cast<CommandOpInterface>(op))
    return placeOverwritten(command);
  if (auto concat = dyn_cast<ConcatOp>(op)) {
    Value result = concat.getResult();
    if (!windows.contains(result)) {
      windows[result] = temporary(typeOf(result).getShape(), typeOf(result).getElementType());
      owned.insert(result);
    }
    Window whole = windows[result];
    SmallVector<int64_t> starts(whole.shape.size(), 0), steps(whole.shape.size(), 1);
    for (Value input : concat.getInputs()) {
      propose(input, whole.slice(starts, steps, typeOf(input).getShape()));
      starts[concat.getDim()] += typeOf(input).getDimSize(concat.getDim());
    }
    return;
  }
  if (auto pad = dyn_cast<PadOp>(op)) {
    Value result = pad.getResult();
    if (!windows.contains(result)) {
      windows[result] = temporary(typeOf(result).getShape(), typeOf(result).getElementType());
      owned.insert(result);
    }
    // A fill covers a whole buffer: only then may the operand be written early.
    Window whole = windows[result];
    if (whole.bytes() == prog::viewBytes(cast<MemRefType>(whole.buffer.getType())) && whole.isDense()) {
      pendingFills[whole.buffer] = pad.getValue();
      SmallVector<int64_t> steps;
      for (int64_t interior : pad.getInterior())
        steps.push_back(interior + 1);
      propose(pad.getInput(), whole.slice(pad.getLow(), steps, typeOf(pad.getInput()).getShape()));
    }
    return;
  }
  if (!isView(op) || op->use_empty())
    return;
  // A shape op without a place is a view, unless no strides show it or its
  // readers would copy that view.
  Value result = op->getResult(0);
  if (!windows.contains(result)) {
    if (isa<SliceOp, BroadcastOp>(op))
      return;
    std::optional<Window> operand = predict(op->getOperand(0));
    if (operand && !costs.isWorthCopying(op, *operand))
      return;
    windows[result] = temporary(typeOf(result).getShape(), typeOf(result).getElementType());
    owned.insert(result);
  }
  if (std::optional<Window> inverse = invertShapeOp(op, windows[result]))
    propose(op->getOperand(0), *inverse);
}
