//===- BlockTagger.h - new ops get the block of their origin ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_BLOCKTAGGER_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_BLOCKTAGGER_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "mlir/IR/Builders.h"

namespace segue {

/// Listens to a builder and gives every new op the block that it belongs to.
struct BlockTagger : mlir::OpBuilder::Listener {
  void notifyOperationInserted(mlir::Operation *op, mlir::OpBuilder::InsertPoint) override {
    if (block)
      op->setAttr(SegueDialect::kBlockAttr, block);
  }
  /// Null: none.
  mlir::Attribute block;
};

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_BLOCKTAGGER_H
