//===- Derivatives.h - derivatives of the segue dialect ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attaches DifferentiableOpInterface to the ops of the dialect that have a
// derivative. Whoever runs `segue-autodiff` registers them; the ops that have
// none are listed, with the reason, in test/unit/DerivativeTest.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_DERIVATIVES_DERIVATIVES_H
#define SEGUE_DIALECT_SEGUE_DERIVATIVES_DERIVATIVES_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace segue {

void registerDerivatives(mlir::DialectRegistry &registry);

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_DERIVATIVES_DERIVATIVES_H
