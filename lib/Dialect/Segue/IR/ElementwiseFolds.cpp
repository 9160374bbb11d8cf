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

#include "AttributeKeeper.h"
#include "ConstantFolding.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/APSInt.h"
#include "llvm/ADT/DenseSet.h"
#include <cmath>
#include <map>

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

namespace {
/// The zero-padded boxes that a value is the sum of, all along one dimension, as what they cover of it: disjoint ranges
/// [begin, end) by their begin, neighbours as one.
struct PadSum {
  int64_t dim = 0;
  std::map<int64_t, int64_t> covered;

  /// Adds what `other` covers; false if they overlap or pad other dimensions. The ranges go to the larger of the two.
  bool add(PadSum other) {
    if (other.dim != dim)
      return false;
    if (other.covered.size() > covered.size())
      std::swap(covered, other.covered);
    return llvm::all_of(other.covered, [&](const auto &range) { return cover(range.first, range.second); });
  }

private:
  bool cover(int64_t begin, int64_t end) {
    auto after = covered.lower_bound(begin);
    if (after != covered.end() && after->first < end)
      return false;
    if (after != covered.end() && after->first == end) {
      end = after->second;
      after = covered.erase(after);
    }
    if (after == covered.begin() || std::prev(after)->second < begin) {
      covered.emplace_hint(after, begin, end);
      return true;
    }
    auto before = std::prev(after);
    if (before->second > begin)
      return false;
    before->second = end;
    return true;
  }
};

/// A sum of zero-padded tensors that lie one after another is their
/// concatenation: the gradient of a value that was split. Every element of the
/// sum has at most one part that is not zero, so nothing is rounded otherwise.
///
/// Matches the last addition of a sum, and looks at each of its additions once: where every addition looked at all
/// before it, sums that have no end of pads to join took quadratic time.
struct JoinPads : OpRewritePattern<AddOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(AddOp op, PatternRewriter &rewriter) const override {
    if (isWithinSum(op))
      return failure();
    SmallVector<AddOp> joined = joinable(op);
    for (AddOp add : joined)
      join(add, rewriter);
    return success(!joined.empty());
  }

private:
  static bool isWithinSum(AddOp op) { return op->hasOneUse() && isa<AddOp>(*op->user_begin()); }

  static bool hasLayout(Value value) {
    return static_cast<bool>(cast<RankedTensorType>(value.getType()).getEncoding());
  }

  /// Returns the additions of a sum, each behind its operands.
  static SmallVector<AddOp> additionsOf(AddOp last) {
    SmallVector<AddOp> additions = {last};
    for (size_t i = 0; i < additions.size(); ++i) // grows
      for (Value operand : additions[i]->getOperands())
        if (auto add = operand.getDefiningOp<AddOp>(); add && operand.hasOneUse())
          additions.push_back(add);
    std::reverse(additions.begin(), additions.end());
    return additions;
  }

  /// Returns the additions of a sum that are of pads without a gap and not within another such.
  static SmallVector<AddOp> joinable(AddOp last) {
    llvm::DenseMap<Operation *, PadSum> sums; // of what is read by an addition to come
    auto take = [&](Value operand) -> std::optional<PadSum> {
      if (auto pad = operand.getDefiningOp<PadOp>()) {
        std::optional<int64_t> dim = zeroPaddedDim(pad);
        if (!dim || hasLayout(pad.getInput()) || isEmptyTensor(pad.getInput().getType()))
          return std::nullopt;
        int64_t begin = pad.getLow()[*dim];
        return PadSum{*dim, {{begin, begin + pad.getInput().getType().getDimSize(*dim)}}};
      }
      auto known = sums.find(operand.getDefiningOp());
      if (known == sums.end())
        return std::nullopt;
      PadSum sum = std::move(known->second);
      sums.erase(known);
      return sum;
    };
    SmallVector<AddOp> found;
    llvm::DenseSet<Operation *> within;
    for (AddOp add : additionsOf(last)) {
      std::optional<PadSum> lhs = take(add.getLhs()), rhs = take(add.getRhs());
      if (!lhs || !rhs || hasLayout(add) || !lhs->add(std::move(*rhs)))
        continue;
      if (lhs->covered.size() == 1)
        found.push_back(add);
      sums.try_emplace(add, std::move(*lhs));
    }
    // From the last on: what is within an addition that is joined goes with it.
    SmallVector<AddOp> outermost;
    for (AddOp add : llvm::reverse(found)) {
      if (within.contains(add))
        continue;
      outermost.push_back(add);
      for (AddOp inner : additionsOf(add))
        within.insert(inner);
    }
    return outermost;
  }

  static void join(AddOp op, PatternRewriter &rewriter) {
    SmallVector<PadOp> pads;
    for (AddOp add : additionsOf(op))
      for (Value operand : add->getOperands())
        if (auto pad = operand.getDefiningOp<PadOp>())
          pads.push_back(pad);
    int64_t dim = *zeroPaddedDim(pads.front());
    llvm::stable_sort(pads, [&](PadOp a, PadOp b) { return a.getLow()[dim] < b.getLow()[dim]; });
    SmallVector<Value> parts = llvm::map_to_vector(pads, [](PadOp pad) -> Value { return pad.getInput(); });
    AttributeKeeper keeper(op, rewriter);
    rewriter.setInsertionPoint(op);
    Value joined = concatInGroups(rewriter, op.getLoc(), parts, dim);
    SmallVector<int64_t> low(pads.front().getLow()), high(pads.back().getHigh()), interior(low.size(), 0);
    if (low[dim] != 0 || high[dim] != 0)
      joined = PadOp::create(rewriter, op.getLoc(), joined, low, high, interior);
    rewriter.replaceOp(op, joined);
  }
};
} // namespace

void AddOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<JoinPads>(context);
}
