//===- ElementwiseFolds.cpp - folds elementwise ops -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A fold gives the value that the op would have given, but for the sign of a
// zero. What holds for numbers but not for NaN and infinities (x * 0, x - x) is
// folded for integers alone.
//
//===----------------------------------------------------------------------===//

#include "ConstantFolding.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/APSInt.h"
#include <cmath>

using namespace mlir;
using namespace segue;
using namespace segue::folding;

static bool isInteger(Value value) { return isa<IntegerType>(getElementTypeOrSelf(value.getType())); }

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

OpFoldResult NegOp::fold(FoldAdaptor adaptor) {
  if (auto inner = getInput().getDefiningOp<NegOp>())
    return inner.getInput();
  return arithmetic(
      adaptor.getInput(), getType(), [](double x, double) { return -x; },
      [](const APInt &x, const APInt &) { return -x; });
}

OpFoldResult NotOp::fold(FoldAdaptor adaptor) {
  if (auto inner = getInput().getDefiningOp<NotOp>())
    return inner.getInput();
  return arithmetic(adaptor.getInput(), getType(), nullptr, [](const APInt &x, const APInt &) { return ~x; });
}

// Constants of commutative ops stand on the right.

OpFoldResult AddOp::fold(FoldAdaptor adaptor) {
  if (isSplatOf(adaptor.getRhs(), 0))
    return getLhs();
  return arithmetic(
      {adaptor.getLhs(), adaptor.getRhs()}, getType(), [](double a, double b) { return a + b; },
      [](const APInt &a, const APInt &b) { return a + b; });
}

OpFoldResult SubOp::fold(FoldAdaptor adaptor) {
  if (isSplatOf(adaptor.getRhs(), 0))
    return getLhs();
  if (getLhs() == getRhs() && isInteger(getLhs()))
    return Builder(getContext()).getZeroAttr(getType());
  return arithmetic(
      {adaptor.getLhs(), adaptor.getRhs()}, getType(), [](double a, double b) { return a - b; },
      [](const APInt &a, const APInt &b) { return a - b; });
}

OpFoldResult MulOp::fold(FoldAdaptor adaptor) {
  if (isSplatOf(adaptor.getRhs(), 1))
    return getLhs();
  if (isSplatOf(adaptor.getRhs(), 0) && isInteger(getLhs()))
    return adaptor.getRhs();
  return arithmetic(
      {adaptor.getLhs(), adaptor.getRhs()}, getType(), [](double a, double b) { return a * b; },
      [](const APInt &a, const APInt &b) { return a * b; });
}

OpFoldResult DivOp::fold(FoldAdaptor adaptor) {
  if (isSplatOf(adaptor.getRhs(), 1))
    return getLhs();
  return arithmetic({adaptor.getLhs(), adaptor.getRhs()}, getType(), [](double a, double b) { return a / b; }, nullptr);
}

OpFoldResult PowOp::fold(FoldAdaptor adaptor) {
  if (isSplatOf(adaptor.getRhs(), 1))
    return getLhs();
  return arithmetic(
      {adaptor.getLhs(), adaptor.getRhs()}, getType(), [](double a, double b) { return std::pow(a, b); }, nullptr);
}

/// Returns the greater one, NaN if either is.
static double maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmax(a, b); }
static double minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmin(a, b); }

OpFoldResult MaxOp::fold(FoldAdaptor adaptor) {
  if (getLhs() == getRhs())
    return getLhs();
  return arithmetic({adaptor.getLhs(), adaptor.getRhs()}, getType(), maximum,
                    [](const APInt &a, const APInt &b) { return a.sgt(b) ? a : b; });
}

OpFoldResult MinOp::fold(FoldAdaptor adaptor) {
  if (getLhs() == getRhs())
    return getLhs();
  return arithmetic({adaptor.getLhs(), adaptor.getRhs()}, getType(), minimum,
                    [](const APInt &a, const APInt &b) { return a.slt(b) ? a : b; });
}

/// Returns whether `constant` has all bits set everywhere, as a truth value that is true has its one.
static bool hasAllBits(Attribute constant) {
  auto number = dyn_cast_or_null<IntegerAttr>(splatElement(constant));
  return number && number.getValue().isAllOnes();
}

OpFoldResult AndOp::fold(FoldAdaptor adaptor) {
  if (getLhs() == getRhs() || hasAllBits(adaptor.getRhs()))
    return getLhs();
  if (isSplatOf(adaptor.getRhs(), 0))
    return adaptor.getRhs();
  return arithmetic({adaptor.getLhs(), adaptor.getRhs()}, getType(), nullptr,
                    [](const APInt &a, const APInt &b) { return a & b; });
}

OpFoldResult OrOp::fold(FoldAdaptor adaptor) {
  if (getLhs() == getRhs() || isSplatOf(adaptor.getRhs(), 0))
    return getLhs();
  if (hasAllBits(adaptor.getRhs()))
    return adaptor.getRhs();
  return arithmetic({adaptor.getLhs(), adaptor.getRhs()}, getType(), nullptr,
                    [](const APInt &a, const APInt &b) { return a | b; });
}

//===----------------------------------------------------------------------===//
// Comparison and choice
//===----------------------------------------------------------------------===//

template <typename T> static bool holds(Predicate predicate, T a, T b) {
  switch (predicate) {
  case Predicate::Eq:
    return a == b;
  case Predicate::Ne:
    return a != b;
  case Predicate::Lt:
    return a < b;
  case Predicate::Le:
    return a <= b;
  case Predicate::Gt:
    return a > b;
  case Predicate::Ge:
    return a >= b;
  }
  llvm_unreachable("all predicates are above");
}

OpFoldResult CompareOp::fold(FoldAdaptor adaptor) {
  auto truth = [&](bool value) { return IntegerAttr::get(IntegerType::get(getContext(), 1), value); };
  // A float may be NaN, which does not equal itself.
  if (getLhs() == getRhs() && isInteger(getLhs()))
    return DenseElementsAttr::get(getType(), truth(holds(getPredicate(), 0, 0)));
  return elementwise({adaptor.getLhs(), adaptor.getRhs()}, getType(), [&](ArrayRef<Attribute> pair) -> Attribute {
    if (auto lhs = dyn_cast<FloatAttr>(pair[0]))
      return truth(holds(getPredicate(), lhs.getValueAsDouble(), cast<FloatAttr>(pair[1]).getValueAsDouble()));
    auto number = [](Attribute attr) {
      const APInt &value = cast<IntegerAttr>(attr).getValue();
      return value.getBitWidth() == 1 ? static_cast<int64_t>(value.getZExtValue()) : value.getSExtValue();
    };
    return truth(holds(getPredicate(), number(pair[0]), number(pair[1])));
  });
}

OpFoldResult SelectOp::fold(FoldAdaptor adaptor) {
  if (getOnTrue() == getOnFalse() || isSplatOf(adaptor.getCondition(), 1))
    return getOnTrue();
  if (isSplatOf(adaptor.getCondition(), 0))
    return getOnFalse();
  if (auto inverted = getCondition().getDefiningOp<NotOp>()) {
    Value onTrue = getOnTrue(), onFalse = getOnFalse();
    getConditionMutable().assign(inverted.getInput());
    getOnTrueMutable().assign(onFalse);
    getOnFalseMutable().assign(onTrue);
    return getResult();
  }
  return elementwise(
      {adaptor.getCondition(), adaptor.getOnTrue(), adaptor.getOnFalse()}, getType(),
      [](ArrayRef<Attribute> parts) { return cast<BoolAttr>(parts[0]).getValue() ? parts[1] : parts[2]; });
}

//===----------------------------------------------------------------------===//
// Casts
//===----------------------------------------------------------------------===//

/// Returns true if every value of `from` is one of `to`.
static bool isLossless(Type from, Type to) {
  auto fromFloat = dyn_cast<FloatType>(from), toFloat = dyn_cast<FloatType>(to);
  if (fromFloat && toFloat)
    // bf16 and f16 do not contain each other.
    return from == to || to.isF64() || (to.isF32() && !from.isF64());
  if (fromFloat)
    return false;
  unsigned width = from.getIntOrFloatBitWidth();
  if (!toFloat)
    return width <= to.getIntOrFloatBitWidth();
  // The magnitude, up to 2^(width - 1), must fit into the significand.
  return width == 1 || (width <= 16 && width - 1 <= toFloat.getFPMantissaWidth());
}

/// The value of `element` in type `to`; see the description of the op.
static Attribute convert(Attribute element, Type to) {
  auto toFloat = dyn_cast<FloatType>(to);
  if (auto number = dyn_cast<FloatAttr>(element)) {
    APFloat value = number.getValue();
    bool unused;
    if (toFloat) {
      value.convert(toFloat.getFloatSemantics(), APFloat::rmNearestTiesToEven, &unused);
      return FloatAttr::get(to, value);
    }
    if (to.isInteger(1))
      return IntegerAttr::get(to, !value.isZero());
    llvm::APSInt rounded(to.getIntOrFloatBitWidth(), /*isUnsigned=*/false);
    value.convertToInteger(rounded, APFloat::rmTowardZero, &unused); // saturates, NaN gives 0
    return IntegerAttr::get(to, rounded);
  }
  APInt value = cast<IntegerAttr>(element).getValue();
  bool isTruth = value.getBitWidth() == 1;
  if (toFloat) {
    APFloat converted(toFloat.getFloatSemantics());
    converted.convertFromAPInt(value, /*IsSigned=*/!isTruth, APFloat::rmNearestTiesToEven);
    return FloatAttr::get(to, converted);
  }
  if (to.isInteger(1))
    return IntegerAttr::get(to, !value.isZero());
  unsigned width = to.getIntOrFloatBitWidth();
  return IntegerAttr::get(to, isTruth ? value.zextOrTrunc(width) : value.sextOrTrunc(width));
}

OpFoldResult CastOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  // A detour over a type that holds every value is none.
  if (auto inner = getInput().getDefiningOp<CastOp>()) {
    auto start = inner.getInput();
    if (isLossless(start.getType().getElementType(), inner.getType().getElementType())) {
      if (start.getType() == getType())
        return start;
      getInputMutable().assign(start);
      return getResult();
    }
  }
  Type to = getType().getElementType();
  return elementwise(adaptor.getInput(), getType(),
                     [&](ArrayRef<Attribute> element) { return convert(element[0], to); });
}

//===----------------------------------------------------------------------===//
// Sums of pads
//===----------------------------------------------------------------------===//

/// The one dimension along which `pad` puts zeros before and after its operand,
/// none between.
static std::optional<int64_t> zeroPaddedDim(PadOp pad) {
  auto number = dyn_cast<FloatAttr>(pad.getValue());
  auto integer = dyn_cast<IntegerAttr>(pad.getValue());
  if (!(number && number.getValue().isZero()) && !(integer && integer.getValue().isZero()))
    return std::nullopt;
  std::optional<int64_t> dim;
  for (auto [k, low, high, interior] : llvm::enumerate(pad.getLow(), pad.getHigh(), pad.getInterior())) {
    if (interior != 0)
      return std::nullopt;
    if (low == 0 && high == 0)
      continue;
    if (dim)
      return std::nullopt;
    dim = k;
  }
  return dim;
}

/// Collects the pads that `value` is the sum of; false if there is another.
static bool collectPads(Value value, SmallVectorImpl<PadOp> &pads) {
  if (auto pad = value.getDefiningOp<PadOp>()) {
    pads.push_back(pad);
    return true;
  }
  auto add = value.getDefiningOp<AddOp>();
  return add && value.hasOneUse() && collectPads(add.getLhs(), pads) && collectPads(add.getRhs(), pads);
}

namespace {
/// A sum of zero-padded tensors that lie one after another is their
/// concatenation: the gradient of a value that was split. Every element of the
/// sum has at most one part that is not zero, so nothing is rounded otherwise.
struct JoinPads : OpRewritePattern<AddOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(AddOp op, PatternRewriter &rewriter) const override {
    SmallVector<PadOp> pads;
    if (!collectPads(op.getLhs(), pads) || !collectPads(op.getRhs(), pads))
      return failure();
    auto hasLayout = [](Value value) {
      return static_cast<bool>(cast<RankedTensorType>(value.getType()).getEncoding());
    };
    if (hasLayout(op) || llvm::any_of(pads, [&](PadOp pad) { return hasLayout(pad.getInput()); }))
      return failure();
    std::optional<int64_t> dim = zeroPaddedDim(pads.front());
    if (!dim || !llvm::all_of(pads, [&](PadOp pad) { return zeroPaddedDim(pad) == dim; }))
      return failure();
    llvm::stable_sort(pads, [&](PadOp a, PadOp b) { return a.getLow()[*dim] < b.getLow()[*dim]; });
    auto extent = [&](PadOp pad) { return pad.getInput().getType().getDimSize(*dim); };
    for (size_t i = 1; i < pads.size(); ++i)
      if (pads[i - 1].getLow()[*dim] + extent(pads[i - 1]) != pads[i].getLow()[*dim])
        return failure();

    SmallVector<Value> parts;
    for (PadOp pad : pads)
      parts.push_back(pad.getInput());
    Value joined = ConcatOp::create(rewriter, op.getLoc(), parts, *dim);
    SmallVector<int64_t> low(pads.front().getLow()), high(pads.back().getHigh()), interior(low.size(), 0);
    if (low[*dim] != 0 || high[*dim] != 0)
      joined = PadOp::create(rewriter, op.getLoc(), joined, low, high, interior);
    rewriter.replaceOp(op, joined);
    return success();
  }
};
} // namespace

void AddOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<JoinPads>(context);
}
