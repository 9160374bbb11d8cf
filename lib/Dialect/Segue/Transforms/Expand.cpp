//===- Expand.cpp - composite ops to primitives ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"

using namespace mlir;
using namespace segue;

namespace segue {
#define GEN_PASS_DEF_SEGUEEXPAND
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

namespace {
struct ExpandPass : segue::impl::SegueExpandBase<ExpandPass> {
  void runOnOperation() override {
    SmallVector<ExpandableOpInterface> composites;
    getOperation()->walk([&](ExpandableOpInterface op) { composites.push_back(op); });
    for (ExpandableOpInterface op : composites) {
      OpBuilder builder(op);
      Operation *before = op->getPrevNode();
      SmallVector<Value> results = op.expand(builder);
      // The block of the model, and what is updated, are facts about the primitives too.
      for (StringRef name : {StringRef(SegueDialect::kBlockAttr), StringRef(SegueDialect::kUpdateAttr)})
        if (Attribute value = op->getAttr(name))
          for (Operation *made = before ? before->getNextNode() : &op->getBlock()->front(); made != op;
               made = made->getNextNode())
            made->setAttr(name, value);
      op->replaceAllUsesWith(results);
      op->erase();
      ++expanded;
    }
  }
};
} // namespace
