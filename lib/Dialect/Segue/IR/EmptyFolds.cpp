//===- EmptyFolds.cpp - folds what has no elements ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An extent may be 0 in every value. A value without elements is a constant, whatever
// gives it; an op that makes something of nothing (a sum, a product over no terms, a pad)
// is what nothing counts for it. Behind these folds, which run in front of all other
// passes, an empty tensor is an argument, a constant or a result of a function, and no
// op reads one, but those that have no answer: a maximum of none, a row of a table without
// rows. Who makes kernels refuses them by name.
//
//===----------------------------------------------------------------------===//

#include "AttributeKeeper.h"
#include "mlir/IR/PatternMatch.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/ADT/TypeSwitch.h"
#include <limits>

using namespace mlir;
using namespace segue;

bool segue::isEmptyTensor(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() && tensor.getNumElements() == 0;
}

static bool isEmpty(Value value) { return isEmptyTensor(value.getType()); }

namespace {
struct FoldEmpty : RewritePattern {
  explicit FoldEmpty(MLIRContext *context) : RewritePattern(MatchAnyOpTypeTag(), /*benefit=*/1, context) {}

  LogicalResult matchAndRewrite(Operation *op, PatternRewriter &rewriter) const override {
    if (!isa_and_nonnull<SegueDialect>(op->getDialect()) || isa<segue::ConstantOp, FusedOp, LaunchOp, YieldOp>(op))
      return failure();
    bool changed = false;
    for (Value result : op->getResults()) {
      if (!isEmpty(result) || result.use_empty())
        continue;
      auto type = cast<RankedTensorType>(result.getType());
      auto none = DenseElementsAttr::get(type, ArrayRef<Attribute>());
      rewriter.replaceAllUsesWith(result, ConstantOp::create(rewriter, op->getLoc(), type, none).getResult());
      changed = true;
    }
    if (changed || llvm::none_of(op->getOperands(), isEmpty) || llvm::all_of(op->getResults(), isEmpty))
      return success(changed);
    AttributeKeeper keeper(op, rewriter);
    SmallVector<Value> results = ofNothing(op, rewriter);
    if (results.empty())
      return failure();
    rewriter.replaceOp(op, results);
    return success();
  }

private:
  static Value splat(OpBuilder &b, Operation *op, unsigned result, double value) {
    return ConstantOp::create(b, op->getLoc(), cast<RankedTensorType>(op->getResult(result).getType()), value);
  }

  static SmallVector<Value> zeros(OpBuilder &b, Operation *op) {
    return llvm::map_to_vector(llvm::seq<unsigned>(0, op->getNumResults()),
                               [&](unsigned at) { return splat(b, op, at, 0); });
  }

  /// Zeros, or `bias` along dimension `dim` of the one result.
  static SmallVector<Value> biasAlone(OpBuilder &b, Operation *op, Value bias, int64_t dim) {
    if (!bias)
      return zeros(b, op);
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    if (cast<RankedTensorType>(bias.getType()).getElementType() != type.getElementType())
      bias = CastOp::create(b, op->getLoc(), bias, type.getElementType());
    return {BroadcastOp::create(b, op->getLoc(), type, bias, ArrayRef<int64_t>{dim})};
  }

  /// The results of an op that reads an empty operand and gives elements; none where it has no answer.
  static SmallVector<Value> ofNothing(Operation *op, OpBuilder &b) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    auto rank = [&] { return cast<RankedTensorType>(op->getResult(0).getType()).getRank(); };
    return TypeSwitch<Operation *, SmallVector<Value>>(op)
        .Case([&](ReduceOp reduce) -> SmallVector<Value> {
          if (reduce.getKind() == ReduceKind::Sum)
            return zeros(b, op);
          if (reduce.getKind() == ReduceKind::Mean)
            return {splat(b, op, 0, std::numeric_limits<double>::quiet_NaN())};
          return {};
        })
        .Case([&](DotGeneralOp dot) { return biasAlone(b, op, dot.getBias(), rank() - 1); })
        .Case([&](Conv2dOp convolution) { return biasAlone(b, op, convolution.getBias(), 1); })
        .Case<ScatterAddOp, Conv2dInputGradOp, Conv2dWeightGradOp, AttentionGradOp>([&](Operation *) { return zeros(b, op); })
        .Case([&](AttentionOp attention) -> SmallVector<Value> {
          if (attention.getK().getType().getDimSize(2) != 0) // heads of no dimensions
            return {};
          return {splat(b, op, 0, 0), splat(b, op, 1, -infinity)};
        })
        .Case([&](PadOp pad) -> SmallVector<Value> {
          auto value = DenseElementsAttr::get(pad.getType(), Attribute(pad.getValue()));
          return {ConstantOp::create(b, op->getLoc(), pad.getType(), value)};
        })
        .Case([&](ConcatOp concat) -> SmallVector<Value> {
          SmallVector<Value> some;
          llvm::copy_if(concat.getInputs(), std::back_inserter(some), [](Value input) { return !isEmpty(input); });
          return {ConcatOp::create(b, op->getLoc(), concat.getType(), some, concat.getDim())};
        })
        .Default([](Operation *) { return SmallVector<Value>(); });
  }
};
} // namespace

void SegueDialect::getCanonicalizationPatterns(RewritePatternSet &patterns) const {
  patterns.add<FoldEmpty>(getContext());
}
