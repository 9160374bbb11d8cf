//===- SegueBuilders.cpp - builders that infer result types ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each builder computes the result type from well-formed operands; the
// verifier, not the builder, reports what is wrong.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

/// `shape` with the element type of `value`; no encoding.
static RankedTensorType like(Value value, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, typeOf(value).getElementType());
}

/// The type of per-row statistics of `value`.
static RankedTensorType rowStatistics(Value value) {
  return RankedTensorType::get(typeOf(value).getShape().drop_back(), computeType(typeOf(value).getElementType()));
}

Value segue::concatInGroups(OpBuilder &b, Location loc, ArrayRef<Value> parts, int64_t dim) {
  SmallVector<Value> groups(parts);
  while (groups.size() > kMostConcatParts) {
    SmallVector<Value> larger;
    for (ArrayRef<Value> left = groups; !left.empty(); left = left.drop_front(std::min(kMostConcatParts, left.size())))
      larger.push_back(ConcatOp::create(b, loc, left.take_front(kMostConcatParts), dim));
    groups = std::move(larger);
  }
  return ConcatOp::create(b, loc, groups, dim);
}

void CompareOp::build(OpBuilder &b, OperationState &state, Predicate predicate, Value lhs, Value rhs) {
  build(b, state, RankedTensorType::get(typeOf(lhs).getShape(), b.getI1Type()), predicate, lhs, rhs);
}

void CastOp::build(OpBuilder &b, OperationState &state, Value input, Type elementType) {
  build(b, state, RankedTensorType::get(typeOf(input).getShape(), elementType), input);
}

void ConstantOp::build(OpBuilder &b, OperationState &state, RankedTensorType type, double value) {
  Type element = type.getElementType();
  Attribute splat = isa<FloatType>(element) ? Attribute(b.getFloatAttr(element, value))
                                            : Attribute(b.getIntegerAttr(element, static_cast<int64_t>(value)));
  build(b, state, type, DenseElementsAttr::get(type, splat));
}

void ReshapeOp::build(OpBuilder &b, OperationState &state, Value input, ArrayRef<int64_t> shape) {
  build(b, state, like(input, shape), input);
}

void TransposeOp::build(OpBuilder &b, OperationState &state, Value input, ArrayRef<int64_t> permutation) {
  SmallVector<int64_t> shape;
  for (int64_t dim : permutation)
    shape.push_back(typeOf(input).getDimSize(dim));
  build(b, state, like(input, shape), input, permutation);
}

void BroadcastOp::build(OpBuilder &b, OperationState &state, Value input, ArrayRef<int64_t> dims,
                        ArrayRef<int64_t> shape) {
  build(b, state, like(input, shape), input, dims);
}

void SliceOp::build(OpBuilder &b, OperationState &state, Value input, ArrayRef<int64_t> starts,
                    ArrayRef<int64_t> limits, ArrayRef<int64_t> steps) {
  SmallVector<int64_t> shape;
  for (auto [start, limit, step] : llvm::zip_equal(starts, limits, steps))
    shape.push_back((limit - start) / step + ((limit - start) % step != 0)); // a step may be as large as any number
  build(b, state, like(input, shape), input, starts, limits, steps);
}

void PadOp::build(OpBuilder &b, OperationState &state, Value input, ArrayRef<int64_t> low, ArrayRef<int64_t> high,
                  ArrayRef<int64_t> interior) {
  SmallVector<int64_t> shape;
  for (auto [extent, before, after, between] : llvm::zip_equal(typeOf(input).getShape(), low, high, interior))
    shape.push_back(before + extent + std::max<int64_t>(extent - 1, 0) * between + after);
  build(b, state, like(input, shape), input, low, high, interior,
        cast<TypedAttr>(b.getZeroAttr(typeOf(input).getElementType())));
}

void ConcatOp::build(OpBuilder &b, OperationState &state, ValueRange inputs, int64_t dim) {
  SmallVector<int64_t> shape(typeOf(inputs.front()).getShape());
  shape[dim] = 0;
  for (Value input : inputs)
    shape[dim] += typeOf(input).getDimSize(dim);
  build(b, state, like(inputs.front(), shape), inputs, dim);
}

void ReduceOp::build(OpBuilder &b, OperationState &state, ReduceKind kind, Value input, ArrayRef<int64_t> dims) {
  SmallVector<int64_t> shape;
  for (auto [dim, extent] : llvm::enumerate(typeOf(input).getShape()))
    if (!llvm::is_contained(dims, static_cast<int64_t>(dim)))
      shape.push_back(extent);
  build(b, state, like(input, shape), kind, input, dims);
}

/// Returns the dimensions of a tensor of `rank` that are in neither list, in order.
static SmallVector<int64_t> freeDims(int64_t rank, ArrayRef<int64_t> batch, ArrayRef<int64_t> contract) {
  SmallVector<int64_t> dims;
  for (int64_t dim = 0; dim < rank; ++dim)
    if (!llvm::is_contained(batch, dim) && !llvm::is_contained(contract, dim))
      dims.push_back(dim);
  return dims;
}

SmallVector<int64_t> DotGeneralOp::getLhsFree() {
  return freeDims(typeOf(getLhs()).getRank(), getLhsBatch(), getLhsContract());
}

SmallVector<int64_t> DotGeneralOp::getRhsFree() {
  return freeDims(typeOf(getRhs()).getRank(), getRhsBatch(), getRhsContract());
}

void DotGeneralOp::build(OpBuilder &b, OperationState &state, Value lhs, Value rhs, ArrayRef<int64_t> lhsBatch,
                         ArrayRef<int64_t> rhsBatch, ArrayRef<int64_t> lhsContract, ArrayRef<int64_t> rhsContract) {
  SmallVector<int64_t> shape;
  for (int64_t dim : lhsBatch)
    shape.push_back(typeOf(lhs).getDimSize(dim));
  for (int64_t dim : freeDims(typeOf(lhs).getRank(), lhsBatch, lhsContract))
    shape.push_back(typeOf(lhs).getDimSize(dim));
  for (int64_t dim : freeDims(typeOf(rhs).getRank(), rhsBatch, rhsContract))
    shape.push_back(typeOf(rhs).getDimSize(dim));
  build(b, state, like(lhs, shape), lhs, rhs, /*bias=*/Value(), lhsBatch, rhsBatch, lhsContract, rhsContract);
}

void AttentionOp::build(OpBuilder &b, OperationState &state, Value q, Value k, Value v, Value mask, bool causal,
                        double scale) {
  build(b, state, q.getType(), rowStatistics(q), q, k, v, mask, /*seed=*/Value(), /*step=*/Value(),
        /*dropout=*/FloatAttr(), /*id=*/IntegerAttr(), causal ? b.getUnitAttr() : UnitAttr(), b.getF64FloatAttr(scale));
}

void AttentionGradOp::build(OpBuilder &b, OperationState &state, AttentionOp forward, Value grad) {
  build(b, state, forward.getQ().getType(), forward.getK().getType(), forward.getV().getType(), forward.getQ(),
        forward.getK(), forward.getV(), forward.getMask(), forward.getSeed(), forward.getStep(), forward.getResult(),
        forward.getLse(), grad, forward.getDropoutAttr(), forward.getIdAttr(), forward.getCausalAttr(),
        forward.getScaleAttr());
}

void LayerNormOp::build(OpBuilder &b, OperationState &state, Value input, Value gamma, Value beta, double eps) {
  build(b, state, input.getType(), rowStatistics(input), rowStatistics(input), input, gamma, beta,
        b.getF64FloatAttr(eps));
}

void RmsNormOp::build(OpBuilder &b, OperationState &state, Value input, Value gamma, double eps) {
  build(b, state, input.getType(), rowStatistics(input), input, gamma, b.getF64FloatAttr(eps));
}

void CrossEntropyOp::build(OpBuilder &b, OperationState &state, Value logits, Value targets, int64_t ignoreIndex) {
  build(b, state, rowStatistics(logits), rowStatistics(logits), logits, targets, b.getI64IntegerAttr(ignoreIndex));
}

void ScatterAddOp::build(OpBuilder &b, OperationState &state, Type result, Value updates, Value indices) {
  build(b, state, result, updates, indices, /*base=*/Value());
}

void GatherOp::build(OpBuilder &b, OperationState &state, Value table, Value indices) {
  SmallVector<int64_t> shape(typeOf(indices).getShape());
  llvm::append_range(shape, typeOf(table).getShape().drop_front());
  build(b, state, like(table, shape), table, indices);
}
