//===- ScalarModels.h - attaches scalar models and costs --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_LOWERINGS_SCALARMODELS_H
#define SEGUE_LIB_DIALECT_SEGUE_LOWERINGS_SCALARMODELS_H

namespace mlir {
class MLIRContext;
}

namespace segue {
void attachScalarModels(mlir::MLIRContext *context);
void attachCosts(mlir::MLIRContext *context);
} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_LOWERINGS_SCALARMODELS_H
