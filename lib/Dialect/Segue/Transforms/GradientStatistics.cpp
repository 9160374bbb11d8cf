//===- GradientStatistics.cpp - segue-gradient-statistics -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"
#include "WholeReduction.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEGRADIENTSTATISTICS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

/// The gradients of each block's parameters, blocks in the order of `forward`.
static llvm::MapVector<StringAttr, SmallVector<Value>> gradientsByBlock(func::FuncOp forward, func::FuncOp backward) {
  llvm::StringMap<StringAttr> blockOfParameter;
  llvm::MapVector<StringAttr, SmallVector<Value>> blocks;
  for (Operation &op : forward.getBody().front())
    if (auto block = op.getAttrOfType<StringAttr>(SegueDialect::kBlockAttr))
      blocks[block];
  for (BlockArgument argument : forward.getArguments())
    if (argumentRole(forward, argument.getArgNumber()) == Role::Parameter)
      if (auto block = dyn_cast_if_present<StringAttr>(blockOfFirstUser(argument)))
        blockOfParameter[argumentName(forward, argument.getArgNumber())] = block;

  Operation *terminator = backward.getBody().front().getTerminator();
  for (unsigned index = 0; index < backward.getNumResults(); ++index) {
    auto of = backward.getResultAttrOfType<StringAttr>(index, SegueDialect::kOfAttr);
    StringAttr block = of ? blockOfParameter.lookup(of.getValue()) : StringAttr();
    if (block && resultRole(backward, index) == Role::Gradient)
      blocks[block].push_back(terminator->getOperand(index));
  }
  blocks.remove_if([](auto &entry) { return entry.second.empty(); });
  return blocks;
}

/// f32 [4]: sum of squares, greatest magnitude, sum, count.
static Value writeStatistics(OpBuilder &b, ArrayRef<Value> gradients) {
  Location loc = b.getFusedLoc(llvm::map_to_vector(gradients, [](Value g) { return g.getLoc(); }));
  Value squares, greatest, sum;
  double count = 0;
  auto join = [&](Value &all, auto combine, Value one) { all = all ? combine(all, one) : one; };
  auto add = [&](Value a, Value c) -> Value { return AddOp::create(b, loc, a, c); };
  auto max = [&](Value a, Value c) -> Value { return MaxOp::create(b, loc, a, c); };
  for (Value gradient : gradients) {
    Value x = toF32(b, gradient.getLoc(), gradient);
    count += cast<RankedTensorType>(x.getType()).getNumElements();
    join(squares, add, reduceWhole(b, loc, ReduceKind::Sum, MulOp::create(b, loc, x, x)));
    join(greatest, max, reduceWhole(b, loc, ReduceKind::Max, AbsOp::create(b, loc, x)));
    join(sum, add, reduceWhole(b, loc, ReduceKind::Sum, x));
  }
  SmallVector<Value> parts;
  for (Value part : {squares, greatest, sum})
    parts.push_back(ReshapeOp::create(b, loc, part, ArrayRef<int64_t>{1}));
  parts.push_back(ConstantOp::create(b, loc, RankedTensorType::get({1}, b.getF32Type()), count));
  return ConcatOp::create(b, loc, parts, 0);
}

namespace {
/// Gives new ops the block that they belong to.
struct BlockTagger : OpBuilder::Listener {
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override {
    op->setAttr(SegueDialect::kBlockAttr, block);
  }
  StringAttr block;
};

struct GradientStatistics : segue::impl::SegueGradientStatisticsBase<GradientStatistics> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    FailureOr<func::FuncOp> backward = requireFunction(module, SegueDialect::kBackward, getArgument());
    if (failed(forward) || failed(backward))
      return signalPassFailure();
    Operation *terminator = backward->getBody().front().getTerminator();
    BlockTagger tagger;
    OpBuilder builder(&getContext(), &tagger);
    builder.setInsertionPoint(terminator);
    for (auto &[block, gradients] : gradientsByBlock(*forward, *backward)) {
      tagger.block = block;
      Value result = writeStatistics(builder, gradients);
      terminator->insertOperands(terminator->getNumOperands(), result);
      (void)backward->insertResult(
          backward->getNumResults(), result.getType(),
          signatureAttrs(&getContext(), ("statistics." + block.getValue()).str(), Role::Statistics, block.getValue()));
      ++blocks;
    }
  }
};
} // namespace
