//===- ShapeFolds.cpp - folds ops that move elements ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Identities, chains and constants. Folds that rewrite an op in place keep its
// result type.
//
//===----------------------------------------------------------------------===//

#include "ConstantFolding.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace segue;
using namespace segue::folding;

static bool isZeros(ArrayRef<int64_t> values) {
  return llvm::all_of(values, [](int64_t value) { return value == 0; });
}

static bool isIdentity(ArrayRef<int64_t> permutation) {
  return llvm::all_of(llvm::enumerate(permutation),
                      [](auto entry) { return static_cast<int64_t>(entry.index()) == entry.value(); });
}

/// Returns `list[k]` for each k of `at`.
static SmallVector<int64_t> pick(ArrayRef<int64_t> list, ArrayRef<int64_t> at) {
  return llvm::map_to_vector(at, [&](int64_t k) { return list[k]; });
}

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }

OpFoldResult ReshapeOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  if (auto inner = getInput().getDefiningOp<ReshapeOp>()) {
    getInputMutable().assign(inner.getInput());
    return getResult();
  }
  if (splatElement(adaptor.getInput()))
    return resizeSplat(adaptor.getInput(), getType());
  auto elements = dyn_cast_or_null<DenseElementsAttr>(adaptor.getInput());
  return elements ? elements.reshape(getType()) : DenseElementsAttr();
}

OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) {
  if (isIdentity(getPermutation()) && getInput().getType() == getType())
    return getInput();
  if (auto inner = getInput().getDefiningOp<TransposeOp>()) {
    SmallVector<int64_t> composed = pick(inner.getPermutation(), getPermutation());
    getInputMutable().assign(inner.getInput());
    setPermutation(composed);
    return getResult();
  }
  return moved(adaptor.getInput(), getType(), [&](ArrayRef<int64_t> index) {
    SmallVector<int64_t> from(index.size());
    for (auto [k, dim] : llvm::enumerate(getPermutation()))
      from[dim] = index[k];
    return from;
  });
}

OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput(); // `dims` increases strictly, so it is the identity
  if (auto inner = getInput().getDefiningOp<BroadcastOp>()) {
    SmallVector<int64_t> composed = pick(getDims(), inner.getDims());
    getInputMutable().assign(inner.getInput());
    setDims(composed);
    return getResult();
  }
  // Only a splat is folded: another constant would grow.
  return resizeSplat(adaptor.getInput(), getType());
}

//===----------------------------------------------------------------------===//
// Slices
//===----------------------------------------------------------------------===//

namespace {
/// The indices that a slice takes from one dimension: `first`, `first + step`, ..., `last`. Of no index `last` is
/// before `first`, and with fewer than two the step is 1: a step may be as large as any number, and their product wrap.
struct Range {
  int64_t first, last, step;
};
} // namespace

static SmallVector<Range> rangesOf(SliceOp op) {
  SmallVector<Range> ranges;
  for (auto [start, step, extent] : llvm::zip_equal(op.getStarts(), op.getSteps(), op.getType().getShape()))
    ranges.push_back({start, start + (extent - 1) * (extent > 1 ? step : 1), extent > 1 ? step : 1});
  return ranges;
}

/// Makes `op` take `ranges` of `input`.
static OpFoldResult retarget(SliceOp op, Value input, ArrayRef<Range> ranges) {
  op.getInputMutable().assign(input);
  op.setStarts(llvm::map_to_vector(ranges, [](const Range &range) { return range.first; }));
  op.setLimits(llvm::map_to_vector(ranges, [](const Range &range) { return range.last + 1; }));
  op.setSteps(llvm::map_to_vector(ranges, [](const Range &range) { return range.step; }));
  return op.getResult();
}

/// A slice of a slice takes from the first operand.
static OpFoldResult foldSliceOfSlice(SliceOp op, SliceOp inner) {
  SmallVector<Range> ranges = rangesOf(op);
  for (auto [range, start, step] : llvm::zip_equal(ranges, inner.getStarts(), inner.getSteps())) {
    bool isEmpty = range.last < range.first, isOne = range.last == range.first;
    range = isEmpty ? Range{start, start - 1, 1}
                    : Range{start + range.first * step, start + range.last * step, isOne ? 1 : range.step * step};
  }
  return retarget(op, inner.getInput(), ranges);
}

/// A slice that takes from one operand of a concatenation alone.
static OpFoldResult foldSliceOfConcat(SliceOp op, ConcatOp concat) {
  SmallVector<Range> ranges = rangesOf(op);
  Range &range = ranges[concat.getDim()];
  int64_t offset = 0;
  for (Value part : concat.getInputs()) {
    int64_t extent = cast<RankedTensorType>(part.getType()).getDimSize(concat.getDim());
    if (range.first >= offset && range.last < offset + extent) {
      range.first -= offset;
      range.last -= offset;
      return retarget(op, part, ranges);
    }
    offset += extent;
  }
  return {};
}

/// A slice of a pad that takes no padding, or nothing but padding.
static OpFoldResult foldSliceOfPad(SliceOp op, PadOp pad) {
  if (!isZeros(pad.getInterior()))
    return {};
  SmallVector<Range> ranges = rangesOf(op);
  bool inside = true;
  for (auto [range, low, extent] : llvm::zip_equal(ranges, pad.getLow(), pad.getInput().getType().getShape())) {
    if (range.last < low || range.first >= low + extent)
      return DenseElementsAttr::get(op.getType(), Attribute(pad.getValue()));
    inside &= range.first >= low && range.last < low + extent;
    range.first -= low;
    range.last -= low;
  }
  return inside ? retarget(op, pad.getInput(), ranges) : OpFoldResult();
}

OpFoldResult SliceOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType()) // nothing is left out, so the steps are 1
    return getInput();
  OpFoldResult folded;
  if (auto slice = getInput().getDefiningOp<SliceOp>())
    folded = foldSliceOfSlice(*this, slice);
  else if (auto concat = getInput().getDefiningOp<ConcatOp>())
    folded = foldSliceOfConcat(*this, concat);
  else if (auto pad = getInput().getDefiningOp<PadOp>())
    folded = foldSliceOfPad(*this, pad);
  if (folded)
    return folded;
  return moved(adaptor.getInput(), getType(), [&](ArrayRef<int64_t> index) {
    SmallVector<int64_t> from;
    for (auto [i, start, step] : llvm::zip_equal(index, getStarts(), getSteps()))
      from.push_back(start + i * step);
    return from;
  });
}

//===----------------------------------------------------------------------===//
// Pads and concatenations
//===----------------------------------------------------------------------===//

OpFoldResult PadOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType()) // nothing is added
    return getInput();
  auto inner = getInput().getDefiningOp<PadOp>();
  if (inner && inner.getValue() == getValue() && isZeros(inner.getInterior()) && isZeros(getInterior())) {
    SmallVector<int64_t> low, high;
    for (auto [a, b] : llvm::zip_equal(getLow(), inner.getLow()))
      low.push_back(a + b);
    for (auto [a, b] : llvm::zip_equal(getHigh(), inner.getHigh()))
      high.push_back(a + b);
    getInputMutable().assign(inner.getInput());
    setLow(low);
    setHigh(high);
    return getResult();
  }
  if (splatElement(adaptor.getInput()) == Attribute(getValue()))
    return resizeSplat(adaptor.getInput(), getType());
  return {};
}

OpFoldResult ConcatOp::fold(FoldAdaptor adaptor) {
  if (getInputs().size() == 1 && getInputs().front().getType() == getType())
    return getInputs().front();
  Attribute element = splatElement(adaptor.getInputs().front());
  if (element && llvm::all_of(adaptor.getInputs(), [&](Attribute input) { return splatElement(input) == element; }))
    return DenseElementsAttr::get(getType(), element);
  return {};
}

namespace {
/// A concatenation inside of another along the same dimension: one takes all, unless these are so many that somebody has
/// joined them in groups.
struct FlattenConcat : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ConcatOp op, PatternRewriter &rewriter) const override {
    SmallVector<Value> parts;
    for (Value input : op.getInputs()) {
      auto inner = input.getDefiningOp<ConcatOp>();
      if (inner && inner.getDim() == op.getDim() && input.hasOneUse())
        llvm::append_range(parts, inner.getInputs());
      else
        parts.push_back(input);
    }
    if (parts.size() == op.getInputs().size() || parts.size() > kMostConcatParts)
      return failure();
    rewriter.modifyOpInPlace(op, [&] { op.getInputsMutable().assign(parts); });
    return success();
  }
};

/// Makes one slice of neighbouring slices of one value that are put together again.
struct JoinSlices : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;

  /// Returns true if `second` begins where `first` ends along `dim` and is like it elsewhere.
  static bool adjoin(SliceOp first, SliceOp second, int64_t dim) {
    if (!first || !second || first.getInput() != second.getInput() || first.getSteps() != second.getSteps() ||
        first.getSteps()[dim] != 1 || first.getLimits()[dim] != second.getStarts()[dim])
      return false;
    for (size_t k = 0; k < first.getStarts().size(); ++k)
      if (static_cast<int64_t>(k) != dim &&
          (first.getStarts()[k] != second.getStarts()[k] || first.getLimits()[k] != second.getLimits()[k]))
        return false;
    return true;
  }

  LogicalResult matchAndRewrite(ConcatOp op, PatternRewriter &rewriter) const override {
    int64_t dim = op.getDim();
    SmallVector<Value> parts;
    for (Value input : op.getInputs()) {
      auto before = parts.empty() ? SliceOp() : parts.back().getDefiningOp<SliceOp>();
      auto slice = input.getDefiningOp<SliceOp>();
      if (!adjoin(before, slice, dim)) {
        parts.push_back(input);
        continue;
      }
      SmallVector<int64_t> limits(before.getLimits());
      limits[dim] = slice.getLimits()[dim];
      auto whole =
          SliceOp::create(rewriter, op.getLoc(), before.getInput(), before.getStarts(), limits, before.getSteps());
      whole->setDiscardableAttrs(before->getDiscardableAttrDictionary()); // the block of the model
      parts.back() = whole;
    }
    if (parts.size() == op.getInputs().size())
      return failure();
    rewriter.modifyOpInPlace(op, [&] { op.getInputsMutable().assign(parts); });
    return success();
  }
};
} // namespace

void ConcatOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<FlattenConcat, JoinSlices>(context);
}
