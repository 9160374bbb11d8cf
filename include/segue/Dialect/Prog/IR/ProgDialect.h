//===- ProgDialect.h - the prog dialect -------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Programs of buffers and commands: its attributes and ops. ProgOps.td is the
// manual.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGDIALECT_H
#define SEGUE_DIALECT_PROG_IR_PROGDIALECT_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/RegionKindInterface.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

#include "segue/Dialect/Prog/IR/ProgDialect.h.inc"
#include "segue/Dialect/Prog/IR/ProgEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "segue/Dialect/Prog/IR/ProgAttrs.h.inc"

#include "segue/Dialect/Prog/IR/ProgInterfaces.h.inc"

#define GET_OP_CLASSES
#include "segue/Dialect/Prog/IR/ProgOps.h.inc"

#endif // SEGUE_DIALECT_PROG_IR_PROGDIALECT_H
