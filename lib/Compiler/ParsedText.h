//===- ParsedText.h - a module of MLIR text, with what it needs -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_COMPILER_PARSEDTEXT_H
#define SEGUE_LIB_COMPILER_PARSEDTEXT_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "segue/Compiler/Registration.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/raw_ostream.h"

namespace segue {

/// A module in a context of its own. As long as this lives, the context's
/// diagnostics go to a string of the caller's, with source lines.
class ParsedText {
public:
  /// Parses a text, which is copied. `source` is how diagnostics call it.
  ParsedText(llvm::StringRef text, llvm::StringRef source, std::string &diagnostics)
      : context(registry()), os(diagnostics), handler(add(text, source), &context, os),
        module(mlir::parseSourceFile<mlir::ModuleOp>(sources, &context)) {}

  /// Null if the text is no module; the diagnostics say why.
  mlir::ModuleOp get() { return module.get(); }

private:
  static mlir::DialectRegistry registry() {
    mlir::DialectRegistry registry;
    registerAllSegue(registry);
    return registry;
  }
  llvm::SourceMgr &add(llvm::StringRef text, llvm::StringRef source) {
    context.printOpOnDiagnostic(false); // which would be all of the module for an error in it
    sources.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBufferCopy(text, source), llvm::SMLoc());
    return sources;
  }

  mlir::MLIRContext context;
  llvm::SourceMgr sources;
  llvm::raw_string_ostream os;
  mlir::SourceMgrDiagnosticHandler handler;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

} // namespace segue

#endif // SEGUE_LIB_COMPILER_PARSEDTEXT_H
