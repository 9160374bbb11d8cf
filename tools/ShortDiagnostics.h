//===- ShortDiagnostics.h - errors without the IR around them ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR adds to each error a note with the whole operation in its generic form: for
// one of a function or a module, all of the program. The error and its place in the
// source say enough; `--mlir-print-op-on-diagnostic` brings the note back.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SHORTDIAGNOSTICS_H
#define SEGUE_TOOLS_SHORTDIAGNOSTICS_H

#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/CommandLine.h"

namespace segue::tool {

/// Makes the option of MLIR's false unless the command line says otherwise. Called before that is parsed.
inline void shortenDiagnostics() {
  mlir::registerMLIRContextCLOptions();
  llvm::cl::Option *option = llvm::cl::getRegisteredOptions().lookup("mlir-print-op-on-diagnostic");
  assert(option && "MLIR has renamed its option");
  static_cast<llvm::cl::opt<bool> *>(option)->setInitialValue(false);
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_SHORTDIAGNOSTICS_H
