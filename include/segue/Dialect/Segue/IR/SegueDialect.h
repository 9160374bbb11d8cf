//===- SegueDialect.h - the segue dialect -----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The graph dialect: its attributes, interfaces and ops. SegueOps.td is the
// manual.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_H
#define SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "segue/Dialect/Segue/IR/OpAnswers.h"
#include "segue/Dialect/Segue/IR/StorableTypes.h"

#include <optional>

namespace segue {

// Defined in lib/Conversion/SegueToLoops, which answers KernelOpInterface.
class IndexSpace;
class KernelBuilder;
struct IndexExpr;
struct KernelRead;

/// The alignment of tensors, temporaries and constants unless they say otherwise, in bytes.
inline constexpr uint32_t kDefaultAlignment = 64;

/// Bytes of one stored element; i1 takes one. Nothing for a type that no file
/// can hold.
std::optional<uint64_t> elementBytes(mlir::Type type);

/// True for a tensor without elements.
bool isEmptyTensor(mlir::Type type);

/// The type in which an element is computed: f64 for f64, f32 for other floats, and
/// that of integers itself.
mlir::Type computeType(mlir::Type element);

/// The most operands that Segue gives a concatenation: each is a parameter of its kernel, and those of a GPU's kernel
/// have room for some hundred.
inline constexpr size_t kMostConcatParts = 128;

/// Joins values end to end along `dim`, in groups where they are more than one concatenation takes.
mlir::Value concatInGroups(mlir::OpBuilder &b, mlir::Location loc, llvm::ArrayRef<mlir::Value> parts, int64_t dim);

/// The number of a type in the enum ElementType of schemas/types.fbs; nothing
/// for a type that no file can hold.
std::optional<int> elementNumber(mlir::Type type);

} // namespace segue

#include "segue/Dialect/Segue/IR/SegueDialect.h.inc"
#include "segue/Dialect/Segue/IR/SegueEnums.h.inc"
#include "segue/Dialect/Segue/IR/SegueInterfaces.h.inc"

#define GET_ATTRDEF_CLASSES
#include "segue/Dialect/Segue/IR/SegueAttrs.h.inc"

#define GET_OP_CLASSES
#include "segue/Dialect/Segue/IR/SegueOps.h.inc"

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_H
