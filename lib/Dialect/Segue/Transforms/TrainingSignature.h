//===- TrainingSignature.h - names and roles of functions -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads and writes the attributes on arguments and results that tell a
// training step what they are. An argument without a role is an input, a
// result without one an output.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_TRAININGSIGNATURE_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_TRAININGSIGNATURE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

inline constexpr llvm::StringLiteral kInference = "inference";
inline constexpr llvm::StringLiteral kGradientPrefix = "grad.";
inline constexpr llvm::StringLiteral kGradSquares = "grad_norm_squares";
inline constexpr llvm::StringLiteral kRequiresGradAttr = "segue.requires_grad";
inline constexpr llvm::StringLiteral kRecomputeFlopsAttr = "segue.recompute_flops";
inline constexpr llvm::StringLiteral kRecomputeBytesAttr = "segue.recompute_bytes";
inline constexpr llvm::StringLiteral kWeightDecayAttr = "segue.weight_decay";
inline constexpr llvm::StringLiteral kRateGroupAttr = "segue.rate_group";
inline constexpr llvm::StringLiteral kOptimizerAttr = "segue.optimizer";
inline constexpr llvm::StringLiteral kAliasAttr = "segue.alias";

Role argumentRole(mlir::func::FuncOp function, unsigned index);
Role resultRole(mlir::func::FuncOp function, unsigned index);
/// Returns the name of an argument, which is empty if it has none.
llvm::StringRef argumentName(mlir::func::FuncOp function, unsigned index);
llvm::StringRef resultName(mlir::func::FuncOp function, unsigned index);

/// The attributes `segue.name`, `segue.role` and, unless empty, `segue.of`.
mlir::DictionaryAttr signatureAttrs(mlir::MLIRContext *context, llvm::StringRef name, Role role,
                                    llvm::StringRef of = "");

/// The function `name` of `module` if it has one block; otherwise an error that
/// says what `pass` wanted of it.
mlir::FailureOr<mlir::func::FuncOp> requireFunction(mlir::ModuleOp module, llvm::StringRef name, llvm::StringRef pass);

/// The block of the first op that reads `argument`; null if there is none.
mlir::Attribute blockOfFirstUser(mlir::BlockArgument argument);

/// Fails if an argument or result has no name, or the name of another.
mlir::LogicalResult requireNames(mlir::func::FuncOp function);

/// Fails if two arguments or two results of `made`, which `pass` has written, have one name: a name that the pass
/// gives, such as "saved.0", is that of a value of @forward, too.
mlir::LogicalResult requireDistinctNames(mlir::func::FuncOp made, llvm::StringRef pass);

/// Returns the bytes of a dense tensor; an i1 takes one.
int64_t tensorBytes(mlir::Type type);
bool isFloatTensor(mlir::Type type);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_TRAININGSIGNATURE_H
