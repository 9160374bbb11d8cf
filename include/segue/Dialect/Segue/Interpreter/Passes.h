//===- Passes.h - passes that interpret -------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_H
#define SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_H

#include "mlir/Pass/Pass.h"

namespace segue {

#define GEN_PASS_DECL
#include "segue/Dialect/Segue/Interpreter/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "segue/Dialect/Segue/Interpreter/Passes.h.inc"

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_H
