//===- WholeReduction.cpp - a tensor to one number ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "WholeReduction.h"

using namespace mlir;
using namespace segue;

Value segue::toF32(OpBuilder &b, Location loc, Value x) {
  if (cast<RankedTensorType>(x.getType()).getElementType().isF32())
    return x;
  return CastOp::create(b, loc, x, b.getF32Type());
}

Value segue::reduceWhole(OpBuilder &b, Location loc, ReduceKind kind, Value x) {
  int64_t rank = cast<RankedTensorType>(x.getType()).getRank();
  if (rank > 1)
    x = ReduceOp::create(b, loc, kind, x, ArrayRef<int64_t>{rank - 1});
  int64_t left = std::min<int64_t>(rank, std::max<int64_t>(rank - 1, 1));
  if (left > 0)
    x = ReduceOp::create(b, loc, kind, x, llvm::to_vector(llvm::seq<int64_t>(0, left)));
  return x;
}

Value segue::sumOfSquares(OpBuilder &b, Location loc, Value x) {
  x = toF32(b, loc, x);
  return reduceWhole(b, loc, ReduceKind::Sum, MulOp::create(b, loc, x, x));
}
