//===- Passes.h - passes on the prog dialect --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_H
#define SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_H

#include "mlir/Pass/Pass.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"

namespace segue::prog {

#define GEN_PASS_DECL
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"

} // namespace segue::prog

#endif // SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_H
