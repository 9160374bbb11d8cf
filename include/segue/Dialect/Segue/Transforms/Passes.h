//===- Passes.h - passes on the segue dialect -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_H
#define SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"

namespace segue {

/// The values that `segue-plan-saved` may recompute.
enum class Recompute { None, Cheap, All };

/// Returns the fault of "kind:key=value,..." as the option `optimizer` of `segue-optimizer`; empty where there is none.
std::string findOptimizerError(llvm::StringRef spec);

#define GEN_PASS_DECL
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_H
