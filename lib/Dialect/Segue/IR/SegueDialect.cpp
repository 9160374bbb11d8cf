//===- SegueDialect.cpp - the segue dialect -------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

#include "segue/Dialect/Segue/IR/SegueDialect.cpp.inc"
#include "segue/Dialect/Segue/IR/SegueEnums.cpp.inc"
#include "segue/Dialect/Segue/IR/SegueInterfaces.cpp.inc"

void SegueDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "segue/Dialect/Segue/IR/SegueOps.cpp.inc"
      >();
  registerAttributes();
}

Operation *SegueDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type, Location loc) {
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, type, elements);
}
