//===- OutlineBlocks.cpp - segue-outline-blocks ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Cuts @forward where the block changes and copies each piece into a function.
// What one piece makes and another reads goes from result to argument by name.
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"
#include "mlir/IR/IRMapping.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/SetVector.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEOUTLINEBLOCKS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

namespace {
struct Segment {
  Attribute block;
  SmallVector<Operation *> ops;
  /// Values in the order in which they are read, and made.
  llvm::SmallSetVector<Value, 8> inputs;
  SmallVector<Value> outputs;
};

struct OutlineBlocks : segue::impl::SegueOutlineBlocksBase<OutlineBlocks> {
  void runOnOperation() override {
    FailureOr<func::FuncOp> forward = requireFunction(getOperation(), SegueDialect::kForward, getArgument());
    if (failed(forward) || failed(requireNames(*forward)))
      return signalPassFailure();
    SmallVector<Segment> pieces = cut(*forward);
    for (unsigned number = 0; number < pieces.size(); ++number)
      if (Operation *other = getOperation().lookupSymbol(nameOf(number))) {
        other->emitError() << "`" << getArgument() << "` makes `@" << nameOf(number) << "`, but the module has one";
        return signalPassFailure();
      }
    nameValues(*forward, pieces);
    Operation *last = *forward;
    for (auto [number, piece] : llvm::enumerate(pieces)) {
      func::FuncOp made = outline(*forward, piece, number, last);
      // Pieces hand values to each other by their names.
      if (failed(requireDistinctNames(made, getArgument())))
        return signalPassFailure();
      last = made;
    }
    segments += pieces.size();
  }

  static std::string nameOf(unsigned number) { return "segment." + std::to_string(number); }

  SmallVector<Segment> cut(func::FuncOp forward) {
    SmallVector<Segment> pieces;
    llvm::DenseMap<Operation *, unsigned> pieceOf;
    for (Operation &op : forward.getBody().front().without_terminator()) {
      if (op.hasTrait<OpTrait::ConstantLike>())
        continue;
      Attribute block = op.getAttr(SegueDialect::kBlockAttr);
      if (pieces.empty() || pieces.back().block != block)
        pieces.push_back({block, {}, {}, {}});
      pieces.back().ops.push_back(&op);
      pieceOf[&op] = pieces.size() - 1;
    }
    for (auto [number, piece] : llvm::enumerate(pieces))
      for (Operation *op : piece.ops) {
        for (Value operand : op->getOperands()) {
          Operation *def = operand.getDefiningOp();
          if (!def || (!def->hasTrait<OpTrait::ConstantLike>() && pieceOf.lookup(def) != number))
            piece.inputs.insert(operand);
        }
        for (Value result : op->getResults())
          if (llvm::any_of(result.getUsers(), [&, number = number](Operation *user) {
                auto found = pieceOf.find(user);
                return found == pieceOf.end() || found->second != number;
              }))
            piece.outputs.push_back(result);
      }
    return pieces;
  }

  void nameValues(func::FuncOp forward, ArrayRef<Segment> pieces) {
    names.clear();
    for (auto [index, value] : llvm::enumerate(forward.getBody().front().getTerminator()->getOperands()))
      names.try_emplace(value, resultName(forward, index).str());
    unsigned number = 0;
    for (const Segment &piece : pieces)
      for (Value value : piece.outputs)
        names.try_emplace(value, "value." + std::to_string(number++));
  }

  func::FuncOp outline(func::FuncOp forward, const Segment &piece, unsigned number, Operation *after) {
    OpBuilder builder(&getContext());
    builder.setInsertionPointAfter(after);
    SmallVector<Type> inputs, outputs;
    for (Value value : piece.inputs)
      inputs.push_back(value.getType());
    for (Value value : piece.outputs)
      outputs.push_back(value.getType());
    auto function = func::FuncOp::create(builder, forward.getLoc(), nameOf(number),
                                         builder.getFunctionType(inputs, outputs));
    Block *body = function.addEntryBlock();
    IRMapping mapping;
    for (auto [index, value] : llvm::enumerate(piece.inputs)) {
      auto argument = dyn_cast<BlockArgument>(value);
      function.setArgAttrs(index, argument ? forward.getArgAttrDict(argument.getArgNumber())
                                           : signatureAttrs(&getContext(), names[value], Role::Input));
      mapping.map(value, body->getArgument(index));
    }
    builder.setInsertionPointToStart(body);
    for (Operation *op : piece.ops) {
      for (Value operand : op->getOperands())
        if (Operation *def = operand.getDefiningOp(); def && def->hasTrait<OpTrait::ConstantLike>() && !mapping.contains(operand))
          builder.clone(*def, mapping);
      builder.clone(*op, mapping);
    }
    func::ReturnOp::create(builder, forward.getLoc(),
                           llvm::map_to_vector(piece.outputs, [&](Value value) { return mapping.lookup(value); }));
    for (auto [index, value] : llvm::enumerate(piece.outputs))
      function.setResultAttrs(index, signatureAttrs(&getContext(), names[value], Role::Output));
    return function;
  }

  llvm::DenseMap<Value, std::string> names;
};
} // namespace
