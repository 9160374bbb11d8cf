//===- StorableTypes.h - tensors that memory can hold -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A trait of all ops of the dialect: their tensors have fewer than 2^62 bytes, so
// that whoever multiplies extents of one need not look at overflow. MLIR itself
// has types such as tensor<4611686018427387904x4xf32>, with as many elements as
// an empty tensor, modulo 2^64.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_STORABLETYPES_H
#define SEGUE_DIALECT_SEGUE_IR_STORABLETYPES_H

#include "mlir/IR/OpDefinition.h"

namespace segue {

/// True for a tensor of a static shape and an element type of the dialect with fewer than 2^62 bytes.
bool isStorable(mlir::Type type);

/// Verifies that the tensors among the operands and results of `op` are storable.
llvm::LogicalResult verifyStorableTypes(mlir::Operation *op);

template <typename ConcreteType> class StorableTypes : public mlir::OpTrait::TraitBase<ConcreteType, StorableTypes> {
public:
  static llvm::LogicalResult verifyTrait(mlir::Operation *op) { return verifyStorableTypes(op); }
};

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_IR_STORABLETYPES_H
