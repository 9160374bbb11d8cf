//===- EmptyTensors.cpp - ops that have no answer for nothing -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "EmptyTensors.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

LogicalResult segue::refuseEmptyTensors(Operation *root) {
  WalkResult result = root->walk([](Operation *op) -> WalkResult {
    if (!isa_and_nonnull<SegueDialect>(op->getDialect()) || isa<segue::ConstantOp>(op))
      return WalkResult::advance();
    SmallVector<Type> types(op->getOperandTypes());
    llvm::append_range(types, op->getResultTypes());
    auto empty = llvm::find_if(types, isEmptyTensor);
    if (empty == types.end())
      return WalkResult::advance();
    op->emitOpError() << "computes with a value of type " << *empty << ", which has no elements, and that has no result";
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}
