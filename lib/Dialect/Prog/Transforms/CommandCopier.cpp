//===- CommandCopier.cpp - commands of another program --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CommandCopier.h"

using namespace mlir;
using namespace segue::prog;

Value segue::prog::rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewOp>())
    buffer = view.getSource();
  return buffer;
}

bool segue::prog::isCommand(Operation *op) {
  return !isa<ProgramOp, PhaseOp, BlockOp, ViewOp, AllocOp, ConstantOp>(op);
}

CommandCopier::CommandCopier(ProgramOp from, ProgramOp to) {
  OpBuilder builder = OpBuilder::atBlockBegin(&to.getBlock());
  for (Operation &op : from.getBlock())
    if (isa<AllocOp, ConstantOp>(op))
      builder.clone(op, map);
}

void CommandCopier::copy(OpBuilder &builder, Operation *command) {
  SmallVector<Value> views;
  for (Value operand : command->getOperands())
    copyView(builder, operand, views);
  builder.clone(*command, map);
  for (Value view : views) // another command may stand in another block
    map.erase(view);
}

void CommandCopier::copyView(OpBuilder &builder, Value buffer, SmallVectorImpl<Value> &views) {
  auto view = buffer.getDefiningOp<ViewOp>();
  if (!view || map.contains(buffer))
    return;
  copyView(builder, view.getSource(), views);
  builder.clone(*view, map);
  views.push_back(buffer);
}
