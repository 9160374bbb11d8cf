//===- CheckDialect.cpp - the check dialect -------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Check/IR/CheckDialect.h"

using namespace mlir;
using namespace segue::check;

#include "segue/Dialect/Check/IR/CheckDialect.cpp.inc"

#define GET_OP_CLASSES
#include "segue/Dialect/Check/IR/CheckOps.cpp.inc"

void CheckDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "segue/Dialect/Check/IR/CheckOps.cpp.inc"
      >();
}
