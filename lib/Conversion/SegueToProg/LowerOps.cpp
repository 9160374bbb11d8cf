//===- LowerOps.cpp - what each op becomes --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FunctionLowering.h"
#include "segue/Conversion/SegueToProg/Commands.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

LogicalResult FunctionLowering::lower(Operation *op) {
  if (auto command = dyn_cast<CommandOpInterface>(op))
    return command.lower(*this);
  if (isView(op))
    return lowerShapeOp(op), success();
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](ConcatOp op) { return lowerConcat(op), success(); })
      .Case([&](PadOp op) { return lowerPad(op), success(); })
      .Case([&](segue::ToLayoutOp op) {
        // Inside of a program all layouts are ours to choose; what inputs and
        // outputs declare is kept where they are read and written.
        windows[op.getResult()] = windowOf(op.getInput());
        return success();
      })
      .Case([&](segue::ConstantOp op) -> LogicalResult {
        if (isEmptyTensor(op.getType()))
          return success(); // nothing to write
        if (!elementsToBytes(op.getValue(), /*splat=*/true))
          return op.emitOpError() << "has a resource without bytes";
        if (owned.contains(op.getResult()))
          lowerConstantResult(op);
        return success();
      })
      .Default([](Operation *op) {
        return op->emitOpError() << "is not a command of a program; run segue-expand, segue-form-kernels and "
                                    "segue-outline-kernels first";
      });
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
  if (Attribute element = op.getSplat(); element && coversBuffer)
    fill(target.buffer, element);
  else
    copy(constantWindow(op), target);
}
