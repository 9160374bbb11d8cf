//===- Contraction.cpp - derivatives of products, attention, convolutions -===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The gradient of an operand of a contraction is the contraction of the
// gradient with the other operand over that operand's free dimensions.
// Attention has its own gradient op; gradients of a float mask and of `lse`,
// which that op does not give, are written out.
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"

using namespace mlir;
using namespace segue;

namespace {
/// One operand of a contraction as its gradient sees it. Dimension k of `batch`
/// and `contract` pairs with dimension k of the other operand's.
struct Side {
  Value value;
  ArrayRef<int64_t> batch, contract;
  SmallVector<int64_t> free;
  /// The position of the free dimensions in the result of the forward op.
  int64_t offset;
};
} // namespace

/// The dimensions of the result that hold the free dimensions of `side`.
static SmallVector<int64_t> freeInResult(const Side &side) {
  return llvm::to_vector(llvm::seq<int64_t>(side.offset, side.offset + side.free.size()));
}

/// Contracts `gradient` with `other` over the free dimensions of `other` and
/// brings the result to the dimension order of `mine`. Of the two operand
/// orders, the one that needs no transpose is taken, if there is one.
static Value contractWith(GradientBuilder &b, Value gradient, const Side &mine, const Side &other) {
  int64_t batchRank = mine.batch.size();
  auto resultBatch = llvm::to_vector(llvm::seq<int64_t>(0, batchRank));
  SmallVector<int64_t> otherContract(other.contract);
  llvm::sort(otherContract);

  // The position of each dimension of `mine` in the contraction.
  auto permutationFor = [&](bool gradientFirst) {
    int64_t freeAt = batchRank + (gradientFirst ? 0 : mine.contract.size());
    int64_t contractAt = batchRank + (gradientFirst ? mine.free.size() : 0);
    SmallVector<int64_t> permutation(typeOf(mine.value).getRank());
    for (auto [k, dim] : llvm::enumerate(mine.batch))
      permutation[dim] = k;
    for (auto [k, dim] : llvm::enumerate(mine.free))
      permutation[dim] = freeAt + k;
    for (auto [dim, partner] : llvm::zip_equal(mine.contract, other.contract))
      permutation[dim] = contractAt + (llvm::find(otherContract, partner) - otherContract.begin());
    return permutation;
  };

  SmallVector<int64_t> permutation = permutationFor(true);
  bool gradientFirst = true;
  if (!llvm::is_sorted(permutation) && llvm::is_sorted(permutationFor(false))) {
    gradientFirst = false;
    permutation = permutationFor(false);
  }
  SmallVector<int64_t> summed = freeInResult(other);
  Value product = gradientFirst
                      ? b.create<DotGeneralOp>(gradient, other.value, resultBatch, other.batch, summed, other.free)
                      : b.create<DotGeneralOp>(other.value, gradient, other.batch, resultBatch, other.free, summed);
  return b.transpose(product, permutation);
}

static Gradients dotGeneralGradients(DotGeneralOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value gradient = b.down(gradients[0], op.getLhs());
  int64_t batchRank = op.getLhsBatch().size();
  Side lhs{op.getLhs(), op.getLhsBatch(), op.getLhsContract(), op.getLhsFree(), batchRank};
  Side rhs{op.getRhs(), op.getRhsBatch(), op.getRhsContract(), op.getRhsFree(),
           batchRank + static_cast<int64_t>(lhs.free.size())};
  SmallVector<Value> answer{wanted[0] ? contractWith(b, gradient, lhs, rhs) : Value(),
                            wanted[1] ? contractWith(b, gradient, rhs, lhs) : Value()};
  if (Value bias = op.getBias())
    answer.push_back(wanted[2] ? b.down(b.sumRows(b.up(gradients[0])), bias) : Value());
  return answer;
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Contracts [batch, heads, i, d] x [batch, heads, j, d] -> [batch, heads, i, j].
static Value timesTransposed(GradientBuilder &b, Value lhs, Value rhs) {
  return b.create<DotGeneralOp>(lhs, rhs, ArrayRef<int64_t>{0, 1}, ArrayRef<int64_t>{0, 1}, ArrayRef<int64_t>{3},
                                ArrayRef<int64_t>{3});
}

/// Contracts dimension `dim` of [batch, heads, i, j] with the rows of `rhs`.
static Value timesRows(GradientBuilder &b, Value lhs, int64_t dim, Value rhs) {
  return b.create<DotGeneralOp>(lhs, rhs, ArrayRef<int64_t>{0, 1}, ArrayRef<int64_t>{0, 1}, ArrayRef<int64_t>{dim},
                                ArrayRef<int64_t>{2});
}

/// The weights exp(scale q k^T + mask - lse) in f32; zero where masked.
static Value attentionWeights(AttentionOp op, GradientBuilder &b) {
  Value scores = b.mul(timesTransposed(b, b.up(op.getQ()), b.up(op.getK())), op.getScale().convertToDouble());
  ArrayRef<int64_t> shape = shapeOf(scores);
  Value mask = op.getMask(), visible;
  if (mask) {
    bool isBool = typeOf(mask).getElementType().isInteger(1);
    Value whole = b.broadcast(isBool ? mask : b.up(mask), {0, 1, 2, 3}, shape);
    if (isBool)
      visible = whole;
    else
      scores = b.add(scores, whole);
  }
  if (op.getCausal()) {
    auto counts = RankedTensorType::get(shape, b.builder.getI32Type());
    Value seen = b.compare(Predicate::Ge, b.create<IotaOp>(counts, 2), b.create<IotaOp>(counts, 3));
    visible = visible ? Value(b.create<AndOp>(visible, seen)) : seen;
  }
  Value weights = b.exp(b.sub(scores, b.rows(op.getLse(), scores)));
  // A row that sees nothing has lse = -inf, and is masked everywhere.
  return visible ? b.select(visible, weights, b.splat(weights, 0.0)) : weights;
}

/// The gradients of the weights, times what dropout multiplied these by.
static Value throughDropout(AttentionOp op, GradientBuilder &b, Value grads) {
  if (!op.getDropout())
    return grads;
  double dropout = op.getDropout()->convertToDouble();
  auto drawn = b.create<RandomOp>(RankedTensorType::get(shapeOf(grads), b.builder.getF32Type()), op.getSeed(),
                                  op.getStep(), *op.getId());
  Value kept = b.compare(Predicate::Ge, drawn, dropout);
  return b.select(kept, b.mul(grads, 1 / (1 - dropout)), b.splat(grads, 0.0));
}

/// Sums a gradient of the scores to the shape and type of the mask.
static Value maskGradient(GradientBuilder &b, Value scores, Value mask) {
  SmallVector<int64_t> repeated;
  for (auto [dim, extents] : llvm::enumerate(llvm::zip_equal(shapeOf(mask), shapeOf(scores))))
    if (std::get<0>(extents) != std::get<1>(extents))
      repeated.push_back(dim);
  return b.down(b.reshape(b.sum(scores, repeated), shapeOf(mask)), mask);
}

/// Returns the gradients of `attention_grad` for q, k and v. With the weights p, the
/// gradient of the scores is p (f g v^T - sum(g out) + glse), where g and glse are the
/// gradients of the result and of lse, and f the factors of dropout: the mask takes all of
/// it, q and k the last term.
static Gradients attentionGradients(AttentionOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = gradients[0], glse = gradients[1], mask = op.getMask();
  bool maskWanted = mask && wanted[3];
  SmallVector<Value> answer(op->getNumOperands());
  if (g && (wanted[0] || wanted[1] || wanted[2])) {
    auto grad = b.create<AttentionGradOp>(op, g);
    answer[0] = grad.getGradQ();
    answer[1] = grad.getGradK();
    answer[2] = grad.getGradV();
  }
  if (!glse && !maskWanted)
    return answer;

  Value weights = attentionWeights(op, b);
  Value throughLse;
  if (glse) {
    throughLse = b.mul(weights, b.rows(glse, weights));
    Value scaled = b.mul(throughLse, op.getScale().convertToDouble());
    if (wanted[0])
      answer[0] = b.accumulate(answer[0], b.down(timesRows(b, scaled, 3, b.up(op.getK())), op.getQ()));
    if (wanted[1])
      answer[1] = b.accumulate(answer[1], b.down(timesRows(b, scaled, 2, b.up(op.getQ())), op.getK()));
  }
  if (maskWanted) {
    Value scores = throughLse;
    if (g) {
      Value wide = b.up(g);
      Value total = b.sum(b.mul(wide, b.up(op.getResult())), {3});
      Value slope = b.sub(throughDropout(op, b, timesTransposed(b, wide, b.up(op.getV()))), b.rows(total, weights));
      scores = b.accumulate(scores, b.mul(weights, slope));
    }
    answer[3] = maskGradient(b, scores, mask);
  }
  return answer;
}

/// `x` moved along `dim` by one place, up or down, with 0 at the place that comes free.
static Value shifted(GradientBuilder &b, Value x, int64_t dim, int64_t by) {
  SmallVector<int64_t> nothing(shapeOf(x).size(), 0), starts(nothing), limits(shapeOf(x)), steps(nothing.size(), 1);
  (by > 0 ? limits : starts)[dim] += by > 0 ? -1 : 1;
  if (limits[dim] == starts[dim])
    return b.splat(x, 0.0);
  Value kept = b.create<SliceOp>(x, starts, limits, steps);
  SmallVector<int64_t> low(nothing), high(nothing);
  (by > 0 ? low : high)[dim] = 1;
  return b.create<PadOp>(kept, low, high, nothing);
}

/// Element i goes into all sums from i on: the gradients of these are summed.
static Gradients cumsumGradients(CumsumOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  return SmallVector<Value>{b.create<CumsumOp>(gradients[0], op.getDim(), !op.getReverse())};
}

/// Each record, which no element before exceeds, gets the gradients of the results up to
/// the next record. Ties and every NaN are records.
static Gradients cummaxGradients(CummaxOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool>) {
  Value x = op.getInput(), g = b.up(gradients[0]);
  Value isRecord = b.create<OrOp>(b.compare(Predicate::Eq, x, op.getResult()), b.compare(Predicate::Ne, x, x));
  Value nothing = b.splat(g, 0.0), passesOn = b.select(isRecord, nothing, b.splat(g, 1.0));
  Value sums = b.create<RecurrenceOp>(shifted(b, passesOn, op.getDim(), -1), g, op.getDim(), /*reverse=*/true);
  return SmallVector<Value>{b.down(b.select(isRecord, sums, nothing), x)};
}

/// With G the gradient of all that an element goes into, dx = G, and d factors is G times the result before.
static Gradients recurrenceGradients(RecurrenceOp op, GradientBuilder &b, ValueRange gradients,
                                     ArrayRef<bool> wanted) {
  int64_t dim = op.getDim(), before = op.getReverse() ? -1 : 1;
  Value next = shifted(b, b.up(op.getFactors()), dim, -before);
  Value all = b.create<RecurrenceOp>(next, b.up(gradients[0]), dim, !op.getReverse());
  Value ofFactors;
  if (wanted[0])
    ofFactors = b.down(b.mul(all, shifted(b, b.up(op.getResult()), dim, before)), op.getFactors());
  return SmallVector<Value>{ofFactors, b.down(all, op.getInput())};
}

//===----------------------------------------------------------------------===//
// Convolutions. Each of the three is linear in both operands, and the derivatives
// of one are the other two.
//===----------------------------------------------------------------------===//

namespace {
template <typename Forward, typename InputGrad, typename WeightGrad> struct Convolutions {
  /// A convolution with the options of `like` that gives a value of the type of `wanted`.
  template <typename OpTy, typename Like>
  static Value convolve(GradientBuilder &b, Like like, Value wanted, Value x, Value y) {
    if constexpr (std::is_same_v<OpTy, Forward>)
      return b.create<OpTy>(wanted.getType(), x, y, Value(), like.getStrides(), like.getLow(), like.getHigh(),
                            like.getDilations(), like.getGroups());
    else
      return b.create<OpTy>(wanted.getType(), x, y, like.getStrides(), like.getLow(), like.getHigh(),
                            like.getDilations(), like.getGroups());
  }

  static Gradients ofForward(Forward op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
    Value g = gradients[0], x = op.getInput(), w = op.getWeight();
    SmallVector<Value> answer{wanted[0] ? convolve<InputGrad>(b, op, x, g, w) : Value(),
                              wanted[1] ? convolve<WeightGrad>(b, op, w, g, x) : Value()};
    if (Value bias = op.getBias()) {
      SmallVector<int64_t> summed{0};
      llvm::append_range(summed, llvm::seq<int64_t>(2, 2 + Forward::kDims));
      answer.push_back(wanted[2] ? b.down(b.sum(b.up(g), summed), bias) : Value());
    }
    return answer;
  }

  static Gradients ofInputGrad(InputGrad op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
    Value u = gradients[0], g = op.getGradient(), w = op.getWeight();
    return SmallVector<Value>{wanted[0] ? convolve<Forward>(b, op, g, u, w) : Value(),
                              wanted[1] ? convolve<WeightGrad>(b, op, w, g, u) : Value()};
  }

  static Gradients ofWeightGrad(WeightGrad op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
    Value u = gradients[0], g = op.getGradient(), x = op.getInput();
    return SmallVector<Value>{wanted[0] ? convolve<Forward>(b, op, g, x, u) : Value(),
                              wanted[1] ? convolve<InputGrad>(b, op, x, g, u) : Value()};
  }

  static void attach(MLIRContext *context) {
    attachDerivative<Forward, ofForward>(context);
    attachDerivative<InputGrad, ofInputGrad>(context);
    attachDerivative<WeightGrad, ofWeightGrad>(context);
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// Products of groups, which are linear in both operands too
//===----------------------------------------------------------------------===//

static Gradients groupedDotGradients(GroupedDotOp op, GradientBuilder &b, ValueRange gradients, ArrayRef<bool> wanted) {
  Value g = gradients[0], rows = op.getRows(), matrices = op.getMatrices(), ends = op.getEnds();
  SmallVector<Value> answer(3);
  if (wanted[0])
    answer[0] = b.create<GroupedDotOp>(rows.getType(), g, matrices, ends, !op.getTransposed());
  if (wanted[1])
    answer[1] = op.getTransposed() ? b.create<GroupedOuterOp>(matrices.getType(), g, rows, ends)
                                   : b.create<GroupedOuterOp>(matrices.getType(), rows, g, ends);
  return answer;
}

static Gradients groupedOuterGradients(GroupedOuterOp op, GradientBuilder &b, ValueRange gradients,
                                       ArrayRef<bool> wanted) {
  Value g = gradients[0], lhs = op.getLhs(), rhs = op.getRhs(), ends = op.getEnds();
  SmallVector<Value> answer(3);
  if (wanted[0])
    answer[0] = b.create<GroupedDotOp>(lhs.getType(), rhs, g, ends, /*transposed=*/true);
  if (wanted[1])
    answer[1] = b.create<GroupedDotOp>(rhs.getType(), lhs, g, ends, /*transposed=*/false);
  return answer;
}

void segue::attachContractionDerivatives(MLIRContext *context) {
  Convolutions<Conv2dOp, Conv2dInputGradOp, Conv2dWeightGradOp>::attach(context);
  Convolutions<Conv3dOp, Conv3dInputGradOp, Conv3dWeightGradOp>::attach(context);
  attachDerivative<CummaxOp, cummaxGradients>(context);
  attachDerivative<CumsumOp, cumsumGradients>(context);
  attachDerivative<GroupedDotOp, groupedDotGradients>(context);
  attachDerivative<GroupedOuterOp, groupedOuterGradients>(context);
  attachDerivative<RecurrenceOp, recurrenceGradients>(context);
  attachDerivative<DotGeneralOp, dotGeneralGradients>(context);
  attachDerivative<AttentionOp, attentionGradients>(context);
}
