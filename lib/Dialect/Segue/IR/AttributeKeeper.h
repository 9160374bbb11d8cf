//===- AttributeKeeper.h - what a pattern makes is of its op's block -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_IR_ATTRIBUTEKEEPER_H
#define SEGUE_LIB_DIALECT_SEGUE_IR_ATTRIBUTEKEEPER_H

#include "mlir/IR/PatternMatch.h"

namespace segue {

/// While it lives, ops that a rewriter makes get the discardable attributes of `replaced`: the block of the model, and
/// what is updated. Later passes group, move and recompute by them.
class AttributeKeeper : public mlir::RewriterBase::ForwardingListener {
public:
  AttributeKeeper(mlir::Operation *replaced, mlir::RewriterBase &rewriter)
      : ForwardingListener(rewriter.getListener()), rewriter_(rewriter), before_(rewriter.getListener()),
        attributes_(replaced->getDiscardableAttrDictionary()) {
    rewriter.setListener(this);
  }
  AttributeKeeper(const AttributeKeeper &) = delete;
  ~AttributeKeeper() override { rewriter_.setListener(before_); }

  void notifyOperationInserted(mlir::Operation *op, mlir::OpBuilder::InsertPoint previous) override {
    op->setDiscardableAttrs(attributes_);
    ForwardingListener::notifyOperationInserted(op, previous);
  }

private:
  mlir::RewriterBase &rewriter_;
  mlir::OpBuilder::Listener *before_;
  mlir::DictionaryAttr attributes_;
};

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_IR_ATTRIBUTEKEEPER_H
