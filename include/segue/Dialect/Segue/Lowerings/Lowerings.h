//===- Lowerings.h - how ops become kernels ---------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attaches ExpandableOpInterface to the composite ops and ScalarOpInterface to
// the elementwise primitives of the segue dialect.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_LOWERINGS_LOWERINGS_H
#define SEGUE_DIALECT_SEGUE_LOWERINGS_LOWERINGS_H

namespace mlir {
class DialectRegistry;
}

namespace segue {

void registerLowerings(mlir::DialectRegistry &registry);

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_LOWERINGS_LOWERINGS_H
