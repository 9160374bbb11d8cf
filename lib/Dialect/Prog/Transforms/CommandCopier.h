//===- CommandCopier.h - commands of another program ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Commands of one program that another one runs, too: the same commands on the same
// buffers give the same bits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_PROG_TRANSFORMS_COMMANDCOPIER_H
#define SEGUE_LIB_DIALECT_PROG_TRANSFORMS_COMMANDCOPIER_H

#include "mlir/IR/IRMapping.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"

namespace segue::prog {

/// Returns what a buffer looks into: an argument of the program, an alloc or a constant.
mlir::Value rootOf(mlir::Value buffer);

/// Returns true for what a program does, false for buffers and what groups commands.
bool isCommand(mlir::Operation *op);

/// Copies commands of a program into another.
class CommandCopier {
public:
  /// Gives `to` copies of the temporaries and constants of `from`.
  CommandCopier(ProgramOp from, ProgramOp to);

  /// Has copies touch `buffer` where commands touch `original`, an argument of their program.
  void put(mlir::Value buffer, mlir::Value original) { map.map(original, buffer); }

  /// Copies a command, with the views that it touches, to where `builder` stands.
  void copy(mlir::OpBuilder &builder, mlir::Operation *command);

private:
  void copyView(mlir::OpBuilder &builder, mlir::Value buffer, llvm::SmallVectorImpl<mlir::Value> &views);

  mlir::IRMapping map;
};

} // namespace segue::prog

#endif // SEGUE_LIB_DIALECT_PROG_TRANSFORMS_COMMANDCOPIER_H
