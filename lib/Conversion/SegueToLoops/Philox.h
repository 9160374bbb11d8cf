//===- Philox.h - counter-based random numbers ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOLOOPS_PHILOX_H
#define SEGUE_LIB_CONVERSION_SEGUETOLOOPS_PHILOX_H

#include "mlir/IR/Builders.h"

namespace segue {

/// The uniform f32 of element `index` of `segue.random`; `seed` and `step` are
/// i64, `index` is of type index.
mlir::Value buildPhilox(mlir::OpBuilder &b, mlir::Location loc, mlir::Value seed, mlir::Value step, int64_t id,
                        mlir::Value index);

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOLOOPS_PHILOX_H
