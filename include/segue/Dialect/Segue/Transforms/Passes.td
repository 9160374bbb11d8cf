//===- Passes.td - passes on the segue dialect -------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD
#define SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD
