//===- ContractionFolds.cpp - folds reductions and products ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConstantFolding.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace segue;
using namespace segue::folding;

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

OpFoldResult ReduceOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType()) // no dimension is reduced
    return getInput();
  if (getInput().getType().getNumElements() == 0)
    return {};
  if (getKind() != ReduceKind::Sum)
    return resizeSplat(adaptor.getInput(), getType());
  auto element = dyn_cast_or_null<FloatAttr>(splatElement(adaptor.getInput()));
  if (!element)
    return {};
  auto count = static_cast<double>(getInput().getType().getNumElements() / getType().getNumElements());
  return DenseElementsAttr::get(getType(),
                                Attribute(FloatAttr::get(element.getType(), element.getValueAsDouble() * count)));
}

namespace {
/// Reducing dimensions of one element each only drops them.
struct ReduceOfUnits : OpRewritePattern<ReduceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReduceOp op, PatternRewriter &rewriter) const override {
    auto type = op.getInput().getType();
    if (!llvm::all_of(op.getDims(), [&](int64_t dim) { return type.getDimSize(dim) == 1; }))
      return failure();
    DictionaryAttr attrs = op->getDiscardableAttrDictionary(); // the block of the model, and what it is part of
    rewriter.replaceOpWithNewOp<ReshapeOp>(op, op.getType(), op.getInput())->setDiscardableAttrs(attrs);
    return success();
  }
};

/// A sum of sums (or a maximum of maxima, a mean of means) is one reduction. Of
/// bf16 and f16 the value between was rounded: there the sum stays in two.
struct ReduceOfReduce : OpRewritePattern<ReduceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReduceOp op, PatternRewriter &rewriter) const override {
    auto inner = op.getInput().getDefiningOp<ReduceOp>();
    if (!inner || inner.getKind() != op.getKind() || !op.getInput().hasOneUse())
      return failure();
    Type element = op.getType().getElementType();
    bool rounds = element.isBF16() || element.isF16();
    if (rounds && (op.getKind() == ReduceKind::Sum || op.getKind() == ReduceKind::Mean))
      return failure();
    // The dimensions that the inner op left, by their place in its operand.
    SmallVector<int64_t> left, dims(inner.getDims());
    for (int64_t dim = 0; dim < inner.getInput().getType().getRank(); ++dim)
      if (!llvm::is_contained(inner.getDims(), dim))
        left.push_back(dim);
    for (int64_t dim : op.getDims())
      dims.push_back(left[dim]);
    llvm::sort(dims);
    DictionaryAttr attrs = op->getDiscardableAttrDictionary(); // the block of the model, and what it is part of
    rewriter.replaceOpWithNewOp<ReduceOp>(op, op.getType(), op.getKind(), inner.getInput(), dims)
        ->setDiscardableAttrs(attrs);
    return success();
  }
};
} // namespace

void ReduceOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<ReduceOfReduce, ReduceOfUnits>(context);
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

namespace {
/// The dimensions of one operand of a product.
struct Operand {
  Value value;
  SmallVector<int64_t> batch, contract;
};
} // namespace

/// Looks through a transpose of the operand: its dimensions get other numbers.
/// Not where the free dimensions would change their order, which the result has.
static bool absorbTranspose(Operand &operand, ArrayRef<int64_t> free) {
  auto transpose = operand.value.getDefiningOp<TransposeOp>();
  if (!transpose)
    return false;
  auto renumbered = [&](ArrayRef<int64_t> dims) {
    return llvm::map_to_vector(dims, [&](int64_t dim) { return transpose.getPermutation()[dim]; });
  };
  if (!llvm::is_sorted(renumbered(free)))
    return false;
  operand = {transpose.getInput(), renumbered(operand.batch), renumbered(operand.contract)};
  return true;
}

namespace {
struct DotOfTranspose : OpRewritePattern<DotGeneralOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(DotGeneralOp op, PatternRewriter &rewriter) const override {
    Operand lhs = {op.getLhs(), llvm::to_vector(op.getLhsBatch()), llvm::to_vector(op.getLhsContract())};
    Operand rhs = {op.getRhs(), llvm::to_vector(op.getRhsBatch()), llvm::to_vector(op.getRhsContract())};
    bool changed = absorbTranspose(lhs, op.getLhsFree());
    changed |= absorbTranspose(rhs, op.getRhsFree());
    if (!changed)
      return failure();
    rewriter.modifyOpInPlace(op, [&] {
      op.getLhsMutable().assign(lhs.value);
      op.getRhsMutable().assign(rhs.value);
      op.setLhsBatch(lhs.batch);
      op.setRhsBatch(rhs.batch);
      op.setLhsContract(lhs.contract);
      op.setRhsContract(rhs.contract);
    });
    return success();
  }
};

/// A transpose that swaps the rows and columns of a product: the operands
/// change places, (a b)^T = b^T a^T.
struct TransposeOfDot : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(TransposeOp op, PatternRewriter &rewriter) const override {
    auto dot = op.getInput().getDefiningOp<DotGeneralOp>();
    if (!dot || dot.getBias() || !op.getInput().hasOneUse())
      return failure();
    // The permutation that the swap makes: batch, then free of rhs, then of lhs.
    SmallVector<int64_t> swapped;
    int64_t batch = dot.getLhsBatch().size(), left = dot.getLhsFree().size(), right = dot.getRhsFree().size();
    llvm::append_range(swapped, llvm::seq<int64_t>(0, batch));
    llvm::append_range(swapped, llvm::seq<int64_t>(batch + left, batch + left + right));
    llvm::append_range(swapped, llvm::seq<int64_t>(batch, batch + left));
    if (op.getPermutation() != ArrayRef<int64_t>(swapped))
      return failure();
    auto result =
        DotGeneralOp::create(rewriter, op.getLoc(), op.getType(), dot.getRhs(), dot.getLhs(), Value(),
                             dot.getRhsBatch(), dot.getLhsBatch(), dot.getRhsContract(), dot.getLhsContract());
    result->setDiscardableAttrs(dot->getDiscardableAttrDictionary());
    rewriter.replaceOp(op, result);
    return success();
  }
};
} // namespace

void DotGeneralOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<DotOfTranspose>(context);
}

void TransposeOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<TransposeOfDot>(context);
}

//===----------------------------------------------------------------------===//
// Products of groups
//===----------------------------------------------------------------------===//

namespace {
/// The library reads matrices either way: a transpose before it would be a copy.
struct GroupedDotOfTranspose : OpRewritePattern<GroupedDotOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(GroupedDotOp op, PatternRewriter &rewriter) const override {
    auto transpose = op.getMatrices().getDefiningOp<TransposeOp>();
    if (!transpose || transpose.getPermutation() != ArrayRef<int64_t>{0, 2, 1})
      return failure();
    rewriter.modifyOpInPlace(op, [&] {
      op.getMatricesMutable().assign(transpose.getInput());
      op.setTransposed(!op.getTransposed());
    });
    return success();
  }
};
} // namespace

void GroupedDotOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<GroupedDotOfTranspose>(context);
}
