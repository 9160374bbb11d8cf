//===- CheckDialect.h - the check dialect -----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Statements about values, for tests. CheckDialect.td is the manual.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_H
#define SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpImplementation.h"

#include "segue/Dialect/Check/IR/CheckDialect.h.inc"

#define GET_OP_CLASSES
#include "segue/Dialect/Check/IR/CheckOps.h.inc"

#endif // SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_H
