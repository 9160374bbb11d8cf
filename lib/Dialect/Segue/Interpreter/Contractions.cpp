//===- Contractions.cpp - evaluates sums, products, attention, convolutions -===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include <algorithm>
#include <cmath>
#include <numeric>

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns `index` without the dimensions in `dims`.
static SmallVector<int64_t> without(ArrayRef<int64_t> index, ArrayRef<int64_t> dims) {
  SmallVector<int64_t> rest;
  for (auto [k, i] : llvm::enumerate(index))
    if (!llvm::is_contained(dims, static_cast<int64_t>(k)))
      rest.push_back(i);
  return rest;
}

static LogicalResult evaluateReduce(ReduceOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  HostTensor &result = out[0];
  ReduceKind kind = op.getKind();
  if (input.size() == 0 && result.size() != 0 && (kind == ReduceKind::Max || kind == ReduceKind::Min))
    return op.emitError("has no element to take the maximum or minimum of");
  std::vector<bool> started(result.size(), false);
  forEachIndex(input.type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    int64_t to = positionOf(result.type.getShape(), without(index, op.getDims()));
    bool first = !started[to];
    started[to] = true;
    if (kind == ReduceKind::Max || kind == ReduceKind::Min) {
      bool larger = kind == ReduceKind::Max;
      if (!input.isFloat()) {
        int64_t x = input.ints[i], &best = result.ints[to];
        best = first || (larger ? x > best : x < best) ? x : best;
        return;
      }
      double x = input.floats[i], &best = result.floats[to];
      if (first || std::isnan(x) || (larger ? x > best : x < best)) // a NaN in `best` stays
        best = x;
      return;
    }
    if (input.isFloat())
      result.floats[to] += input.floats[i];
    else
      result.ints[to] = static_cast<int64_t>(static_cast<uint64_t>(result.ints[to]) + input.ints[i]);
  });
  if (kind == ReduceKind::Mean)
    for (double &value : result.floats)
      value *= static_cast<double>(result.size()) / static_cast<double>(input.size());
  return success();
}

/// Calls `visit(at, before)` for each element in the order of a dimension: its position,
/// and that of the element before it or -1.
template <typename Visit> static void forEachAlong(ArrayRef<int64_t> shape, int64_t dim, bool reverse, Visit visit) {
  int64_t step = reverse ? 1 : -1;
  // Row-major order meets each element after the one before it; the last is met first backwards.
  SmallVector<SmallVector<int64_t>> indices;
  forEachIndex(shape, [&](ArrayRef<int64_t> index, int64_t) { indices.emplace_back(index); });
  if (reverse)
    std::reverse(indices.begin(), indices.end());
  for (SmallVector<int64_t> &index : indices) {
    int64_t at = positionOf(shape, index);
    index[dim] += step;
    visit(at, index[dim] < 0 || index[dim] == shape[dim] ? -1 : positionOf(shape, index));
  }
}

static LogicalResult evaluateCumsum(CumsumOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  forEachAlong(input.type.getShape(), op.getDim(), op.getReverse(), [&](int64_t at, int64_t before) {
    copyElement(out[0], at, input, at);
    if (before >= 0 && input.isFloat())
      out[0].floats[at] += out[0].floats[before];
    else if (before >= 0)
      out[0].ints[at] = static_cast<int64_t>(static_cast<uint64_t>(out[0].ints[at]) + out[0].ints[before]);
  });
  return success();
}

static LogicalResult evaluateCummax(CummaxOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  forEachAlong(input.type.getShape(), op.getDim(), /*reverse=*/false, [&](int64_t at, int64_t before) {
    copyElement(out[0], at, input, at);
    if (before < 0)
      return;
    if (!input.isFloat())
      out[0].ints[at] = std::max(out[0].ints[at], out[0].ints[before]);
    else if (double best = out[0].floats[before]; std::isnan(best) || best > out[0].floats[at])
      out[0].floats[at] = best;
  });
  return success();
}

static LogicalResult evaluateRecurrence(RecurrenceOp op, const Frame &in, Results out) {
  const HostTensor &factors = in[op.getFactors()], &input = in[op.getInput()];
  forEachAlong(input.type.getShape(), op.getDim(), op.getReverse(), [&](int64_t at, int64_t before) {
    out[0].floats[at] = input.floats[at];
    if (before >= 0)
      out[0].floats[at] += factors.floats[at] * out[0].floats[before];
  });
  return success();
}

static LogicalResult evaluateDotGeneral(DotGeneralOp op, const Frame &in, Results out) {
  const HostTensor &lhs = in[op.getLhs()], &rhs = in[op.getRhs()];
  SmallVector<int64_t> lhsFree = op.getLhsFree(), rhsFree = op.getRhsFree(), contracted;
  for (int64_t dim : op.getLhsContract())
    contracted.push_back(lhs.type.getDimSize(dim));
  SmallVector<int64_t> l(lhs.type.getRank()), r(rhs.type.getRank());
  forEachIndex(out[0].type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    auto take = [&](SmallVector<int64_t> &target, ArrayRef<int64_t> dims) {
      for (auto [k, dim] : llvm::enumerate(dims))
        target[dim] = index[k];
    };
    take(l, op.getLhsBatch());
    take(r, op.getRhsBatch());
    index = index.drop_front(op.getLhsBatch().size());
    take(l, lhsFree);
    index = index.drop_front(lhsFree.size());
    take(r, rhsFree);
    double sum = op.getBias() ? in[op.getBias()].floats[i % out[0].type.getShape().back()] : 0;
    forEachIndex(contracted, [&](ArrayRef<int64_t> at, int64_t) {
      for (auto [k, dim] : llvm::enumerate(op.getLhsContract()))
        l[dim] = at[k];
      for (auto [k, dim] : llvm::enumerate(op.getRhsContract()))
        r[dim] = at[k];
      sum += lhs.floats[positionOf(lhs.type.getShape(), l)] * rhs.floats[positionOf(rhs.type.getShape(), r)];
    });
    out[0].floats[i] = sum;
  });
  return success();
}

namespace {
/// Dropout of the weights of attention. What is dropped is 0 then, also an infinity.
struct Dropout {
  uint64_t seed = 0, step = 0;
  int64_t id = 0;
  float dropout = 0;

  /// Returns `x`, which is weight number `weight` or its gradient, as it is behind the dropout.
  double operator()(int64_t weight, double x) const {
    if (dropout == 0)
      return x;
    return drawUniform(seed, step, id, weight) < dropout ? 0 : x / (1 - double(dropout));
  }
};

/// The scaled, masked scores of attention; minus infinity where a row does not
/// see a key.
struct Scores {
  const HostTensor &q, &k;
  const HostTensor *mask;
  bool causal;
  double scale;

  int64_t batches() const { return q.type.getDimSize(0) * q.type.getDimSize(1); }
  int64_t rows() const { return q.type.getDimSize(2); }
  int64_t keys() const { return k.type.getDimSize(2); }
  int64_t dim() const { return q.type.getDimSize(3); }

  /// The position of row `row` of batch and head `b`, whose last extent is `width`.
  static int64_t at(int64_t b, int64_t row, int64_t rows, int64_t width) { return (b * rows + row) * width; }

  double operator()(int64_t b, int64_t row, int64_t key) const {
    if (causal && key > row)
      return -kInfinity;
    double score = 0;
    for (int64_t d = 0; d < dim(); ++d)
      score += q.floats[at(b, row, rows(), dim()) + d] * k.floats[at(b, key, keys(), dim()) + d];
    score *= scale;
    if (!mask)
      return score;
    int64_t heads = q.type.getDimSize(1);
    SmallVector<int64_t> index = {b / heads, b % heads, row, key};
    for (auto [i, extent] : llvm::zip_equal(index, mask->type.getShape()))
      if (extent == 1)
        i = 0;
    int64_t position = positionOf(mask->type.getShape(), index);
    if (mask->isFloat())
      return score + mask->floats[position];
    return mask->ints[position] ? score : -kInfinity;
  }
};
} // namespace

template <typename OpTy> static Dropout dropoutOf(OpTy op, const Frame &in) {
  if (!op.getDropout())
    return {};
  return {uint64_t(in[op.getSeed()].ints[0]), uint64_t(in[op.getStep()].ints[0]), int64_t(*op.getId()),
          float(op.getDropout()->convertToDouble())};
}

template <typename OpTy> static Scores scoresOf(OpTy op, const Frame &in) {
  return {in[op.getQ()], in[op.getK()], op.getMask() ? &in[op.getMask()] : nullptr, op.getCausal(),
          op.getScale().convertToDouble()};
}

static LogicalResult evaluateAttention(AttentionOp op, const Frame &in, Results out) {
  Scores scores = scoresOf(op, in);
  Dropout dropped = dropoutOf(op, in);
  const HostTensor &v = in[op.getV()];
  int64_t rows = scores.rows(), keys = scores.keys(), dim = scores.dim();
  for (int64_t b = 0; b < scores.batches(); ++b)
    for (int64_t row = 0; row < rows; ++row) {
      double largest = -kInfinity, sum = 0;
      for (int64_t key = 0; key < keys; ++key)
        largest = std::fmax(largest, scores(b, row, key));
      double &lse = out[1].floats[b * rows + row];
      if (largest == -kInfinity) { // sees no key: zeros
        lse = -kInfinity;
        continue;
      }
      for (int64_t key = 0; key < keys; ++key)
        sum += std::exp(scores(b, row, key) - largest);
      lse = largest + std::log(sum);
      for (int64_t key = 0; key < keys; ++key) {
        double weight = dropped(Scores::at(b, row, rows, keys) + key, std::exp(scores(b, row, key) - lse));
        for (int64_t d = 0; d < dim; ++d)
          out[0].floats[Scores::at(b, row, rows, dim) + d] +=
              weight * v.floats[Scores::at(b, key, keys, dim) + d];
      }
    }
  return success();
}

/// Evaluates by Dao et al., arXiv:2205.14135, algorithm 4, without its tiles.
static LogicalResult evaluateAttentionGrad(AttentionGradOp op, const Frame &in, Results out) {
  Scores scores = scoresOf(op, in);
  Dropout dropped = dropoutOf(op, in);
  const HostTensor &v = in[op.getV()], &result = in[op.getOut()], &lse = in[op.getLse()], &grad = in[op.getGrad()];
  int64_t rows = scores.rows(), keys = scores.keys(), dim = scores.dim();
  for (int64_t b = 0; b < scores.batches(); ++b)
    for (int64_t row = 0; row < rows; ++row) {
      double rowLse = lse.floats[b * rows + row];
      if (rowLse == -kInfinity)
        continue;
      int64_t atRow = Scores::at(b, row, rows, dim);
      double weighted = 0;
      for (int64_t d = 0; d < dim; ++d)
        weighted += grad.floats[atRow + d] * result.floats[atRow + d];
      for (int64_t key = 0; key < keys; ++key) {
        int64_t atKey = Scores::at(b, key, keys, dim), number = Scores::at(b, row, rows, keys) + key;
        double p = std::exp(scores(b, row, key) - rowLse), weight = dropped(number, p), gradWeight = 0;
        for (int64_t d = 0; d < dim; ++d)
          gradWeight += grad.floats[atRow + d] * v.floats[atKey + d];
        double gradScore = p * (dropped(number, gradWeight) - weighted) * scores.scale;
        for (int64_t d = 0; d < dim; ++d) {
          out[0].floats[atRow + d] += gradScore * scores.k.floats[atKey + d];
          out[1].floats[atKey + d] += gradScore * scores.q.floats[atRow + d];
          out[2].floats[atKey + d] += weight * grad.floats[atRow + d];
        }
      }
    }
  return success();
}

/// Calls `visit` with the positions of each product that a convolution sums: in the
/// image, in the weight and in the output.
template <typename OpTy, typename Visit>
static void forEachProduct(OpTy op, Value image, Value weight, Value output, Visit visit) {
  auto shapeOf = [](Value value) { return cast<RankedTensorType>(value.getType()).getShape(); };
  ArrayRef<int64_t> x = shapeOf(image), w = shapeOf(weight);
  ArrayRef<int64_t> strides = op.getStrides(), dilations = op.getDilations(), low = op.getLow();
  int64_t outputsPerGroup = w[0] / op.getGroups();
  forEachIndex(shapeOf(output), [&](ArrayRef<int64_t> at, int64_t outputAt) {
    int64_t firstChannel = at[1] / outputsPerGroup * w[1];
    forEachIndex(w.drop_front(), [&](ArrayRef<int64_t> tap, int64_t tapAt) {
      int64_t place = at[0] * x[1] + firstChannel + tap[0];
      for (int64_t dim = 0; dim < OpTy::kDims; ++dim) {
        int64_t i = at[2 + dim] * strides[dim] + tap[1 + dim] * dilations[dim] - low[dim];
        if (i < 0 || i >= x[2 + dim])
          return;
        place = place * x[2 + dim] + i;
      }
      visit(place, at[1] * ShapedType::getNumElements(w.drop_front()) + tapAt, outputAt);
    });
  });
}

template <typename OpTy> static LogicalResult evaluateConvolution(OpTy op, const Frame &in, Results out) {
  const HostTensor &x = in[op.getInput()], &w = in[op.getWeight()];
  if (op.getBias()) {
    const HostTensor &bias = in[op.getBias()];
    forEachIndex(op.getResult().getType().getShape(),
                 [&](ArrayRef<int64_t> at, int64_t i) { out[0].floats[i] = bias.floats[at[1]]; });
  }
  forEachProduct(op, op.getInput(), op.getWeight(), op.getResult(), [&](int64_t i, int64_t k, int64_t o) {
    out[0].floats[o] += x.floats[i] * w.floats[k];
  });
  return success();
}

template <typename OpTy> static LogicalResult evaluateInputGrad(OpTy op, const Frame &in, Results out) {
  const HostTensor &g = in[op.getGradient()], &w = in[op.getWeight()];
  forEachProduct(op, op.getResult(), op.getWeight(), op.getGradient(), [&](int64_t i, int64_t k, int64_t o) {
    out[0].floats[i] += g.floats[o] * w.floats[k];
  });
  return success();
}

template <typename OpTy> static LogicalResult evaluateWeightGrad(OpTy op, const Frame &in, Results out) {
  const HostTensor &g = in[op.getGradient()], &x = in[op.getInput()];
  forEachProduct(op, op.getInput(), op.getResult(), op.getGradient(), [&](int64_t i, int64_t k, int64_t o) {
    out[0].floats[k] += g.floats[o] * x.floats[i];
  });
  return success();
}

/// Calls `visit(row, group)` for the rows that have a group.
template <typename Visit> static void forEachGrouped(const HostTensor &ends, int64_t rows, Visit visit) {
  int64_t row = 0;
  for (int64_t group = 0; group < ends.size(); ++group)
    for (int64_t end = std::min(ends.ints[group], rows); row < end; ++row)
      visit(row, group);
}

static LogicalResult evaluateGroupedDot(GroupedDotOp op, const Frame &in, Results out) {
  const HostTensor &rows = in[op.getRows()], &matrices = in[op.getMatrices()];
  int64_t depth = rows.type.getDimSize(1), columns = out[0].type.getDimSize(1);
  forEachGrouped(in[op.getEnds()], rows.type.getDimSize(0), [&](int64_t row, int64_t group) {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t n = 0; n < columns; ++n) {
        int64_t place = op.getTransposed() ? n * depth + k : k * columns + n;
        out[0].floats[row * columns + n] +=
            rows.floats[row * depth + k] * matrices.floats[group * depth * columns + place];
      }
  });
  return success();
}

static LogicalResult evaluateGroupedOuter(GroupedOuterOp op, const Frame &in, Results out) {
  const HostTensor &lhs = in[op.getLhs()], &rhs = in[op.getRhs()];
  int64_t height = lhs.type.getDimSize(1), width = rhs.type.getDimSize(1);
  forEachGrouped(in[op.getEnds()], lhs.type.getDimSize(0), [&](int64_t row, int64_t group) {
    for (int64_t m = 0; m < height; ++m)
      for (int64_t n = 0; n < width; ++n)
        out[0].floats[(group * height + m) * width + n] += lhs.floats[row * height + m] * rhs.floats[row * width + n];
  });
  return success();
}

static LogicalResult evaluateArgsort(ArgsortOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  int64_t length = input.type.getShape().back(), count = out[0].type.getShape().back();
  std::vector<int64_t> places(length);
  for (int64_t row = 0; row * count < out[0].size(); ++row) {
    auto goesBefore = [&](int64_t a, int64_t b) {
      if (op.getDescending())
        std::swap(a, b);
      a += row * length, b += row * length;
      if (!input.isFloat())
        return input.ints[a] < input.ints[b];
      return input.floats[a] < input.floats[b] || (std::isnan(input.floats[b]) && !std::isnan(input.floats[a]));
    };
    std::iota(places.begin(), places.end(), 0);
    std::stable_sort(places.begin(), places.end(), goesBefore);
    std::copy_n(places.begin() + op.getFirst(), count, out[0].ints.begin() + row * count);
  }
  return success();
}

static LogicalResult evaluateDotGelu(DotGeluOp op, const Frame &in, Results out) {
  const HostTensor &lhs = in[op.getLhs()], &rhs = in[op.getRhs()];
  int64_t depth = lhs.type.getShape().back(), columns = out[0].type.getShape().back();
  for (int64_t i = 0; i < out[0].size(); ++i) {
    double sum = op.getBias() ? in[op.getBias()].floats[i % columns] : 0;
    for (int64_t k = 0; k < depth; ++k)
      sum += lhs.floats[i / columns * depth + k] *
             rhs.floats[op.getTransposed() ? i % columns * depth + k : k * columns + i % columns];
    out[0].floats[i] = interpreter::geluTanh(sum);
    if (op.getSums())
      out[1].floats[i] = sum;
  }
  return success();
}

void interpreter::addContractions(EvaluatorTable &table) {
  table.add(evaluateReduce);
  table.add(evaluateCummax);
  table.add(evaluateCumsum);
  table.add(evaluateRecurrence);
  table.add(evaluateDotGeneral);
  table.add(evaluateAttention);
  table.add(evaluateAttentionGrad);
  table.add(evaluateConvolution<Conv2dOp>);
  table.add(evaluateConvolution<Conv3dOp>);
  table.add(evaluateInputGrad<Conv2dInputGradOp>);
  table.add(evaluateInputGrad<Conv3dInputGradOp>);
  table.add(evaluateWeightGrad<Conv2dWeightGradOp>);
  table.add(evaluateWeightGrad<Conv3dWeightGradOp>);
  table.add(evaluateGroupedDot);
  table.add(evaluateGroupedOuter);
  table.add(evaluateDotGelu);
  table.add(evaluateArgsort);
}
