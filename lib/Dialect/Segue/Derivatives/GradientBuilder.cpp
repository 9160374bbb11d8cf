//===- GradientBuilder.cpp - writes the ops of one derivative -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientBuilder.h"

using namespace mlir;
using namespace segue;

Value GradientBuilder::splat(Value like, double value) { return create<ConstantOp>(typeOf(like), value); }

Value GradientBuilder::cast(Value x, Type element) {
  if (typeOf(x).getElementType() == element)
    return x;
  return create<CastOp>(x, element);
}

Value GradientBuilder::reshape(Value x, ArrayRef<int64_t> shape) {
  if (shapeOf(x) == shape)
    return x;
  return create<ReshapeOp>(x, shape);
}

Value GradientBuilder::transpose(Value x, ArrayRef<int64_t> permutation) {
  if (llvm::equal(permutation, llvm::seq<int64_t>(0, permutation.size())))
    return x;
  return create<TransposeOp>(x, permutation);
}

Value GradientBuilder::broadcast(Value x, ArrayRef<int64_t> dims, ArrayRef<int64_t> shape) {
  if (shapeOf(x) == shape)
    return x;
  return create<BroadcastOp>(x, dims, shape);
}

Value GradientBuilder::reduce(ReduceKind kind, Value x, ArrayRef<int64_t> dims) {
  if (dims.empty())
    return x;
  return create<ReduceOp>(kind, x, dims);
}

Value GradientBuilder::spread(Value x, ArrayRef<int64_t> dims, ArrayRef<int64_t> shape) {
  SmallVector<int64_t> kept;
  for (int64_t dim = 0, rank = shape.size(); dim < rank; ++dim)
    if (!llvm::is_contained(dims, dim))
      kept.push_back(dim);
  return broadcast(x, kept, shape);
}

Value GradientBuilder::rows(Value perRow, Value like) {
  return spread(perRow, {typeOf(like).getRank() - 1}, shapeOf(like));
}

Value GradientBuilder::columns(Value perColumn, Value like) {
  return broadcast(perColumn, {typeOf(like).getRank() - 1}, shapeOf(like));
}

Value GradientBuilder::sumRows(Value x) {
  return sum(x, llvm::to_vector(llvm::seq<int64_t>(0, typeOf(x).getRank() - 1)));
}
