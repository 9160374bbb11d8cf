//===- SegueOps.cpp - ops of the segue dialect ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What TableGen generates. Verifiers and folds stand by subject in the
// neighbouring files.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

#define GET_OP_CLASSES
#include "segue/Dialect/Segue/IR/SegueOps.cpp.inc"
