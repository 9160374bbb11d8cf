//===- ReductionForms.cpp - reductions that kernels can do ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ReductionForms.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

/// A whole sum of at most that many elements stays in one task.
constexpr int64_t kWholeElements = 8192;
/// Chunks that the rows of a column sum are split in, at most, and the least
/// rows of a chunk.
constexpr int64_t kMostChunks = 64, kChunkRows = 8;

/// The largest number of equal chunks of `rows`, or 1.
static int64_t chunksOf(int64_t rows, int64_t most) {
  for (int64_t chunks = std::min(most, rows / kChunkRows); chunks > 1; --chunks)
    if (rows % chunks == 0)
      return chunks;
  return 1;
}

namespace {
/// Gives new ops the block of the op that they replace, and what that updates.
struct BlockKeeper : OpBuilder::Listener {
  explicit BlockKeeper(Operation *op)
      : block(op->getAttr(SegueDialect::kBlockAttr)), update(op->getAttr(SegueDialect::kUpdateAttr)) {}
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override {
    if (block)
      op->setAttr(SegueDialect::kBlockAttr, block);
    if (update)
      op->setAttr(SegueDialect::kUpdateAttr, update);
  }
  Attribute block, update;
};
} // namespace

static Value reshape(OpBuilder &b, Location loc, Value value, ArrayRef<int64_t> shape) {
  while (auto before = value.getDefiningOp<ReshapeOp>())
    value = before.getInput();
  if (cast<RankedTensorType>(value.getType()).getShape() == shape)
    return value;
  return ReshapeOp::create(b, loc, value, shape);
}

/// Reduces [outer, reduced, inner] to [outer, inner].
static Value reduceMiddle(OpBuilder &b, Location loc, ReduceKind kind, Value input, ReduceExtents e) {
  auto step = [&](Value value, ArrayRef<int64_t> shape, int64_t dim) -> Value {
    return ReduceOp::create(b, loc, kind, reshape(b, loc, value, shape), dim);
  };
  if (e.inner == 1 && e.outer == 1 && e.reduced > kWholeElements) {
    if (int64_t chunks = chunksOf(e.reduced, kMostChunks); chunks > 1)
      return step(step(input, {chunks, e.reduced / chunks}, 1), {1, chunks}, 1);
  } else if (e.inner > 1 && e.outer < 16) {
    if (int64_t chunks = chunksOf(e.reduced, kMostChunks / e.outer); chunks > 1) {
      Value partial = step(input, {e.outer, chunks, e.reduced / chunks, e.inner}, 2);
      return step(partial, {e.outer, chunks, e.inner}, 1);
    }
  }
  return step(input, {e.outer, e.reduced, e.inner}, 1);
}

/// How a reduction over the trailing run of reduced dimensions looks.
static ReduceExtents trailingRun(ArrayRef<int64_t> shape, llvm::SmallBitVector reduced,
                                 SmallVectorImpl<int64_t> &dims) {
  ReduceExtents e;
  for (int64_t dim = shape.size() - 1; dim >= 0; --dim) {
    if (reduced.test(dim) && e.outer == 1) {
      e.reduced *= shape[dim];
      dims.push_back(dim);
    } else if (shape[dim] == 1) {
      continue;
    } else if (dims.empty() || e.reduced == 1) {
      e.inner *= shape[dim];
    } else {
      e.outer *= shape[dim];
    }
  }
  return e;
}

static bool rewriteReduce(ReduceOp op) {
  RankedTensorType type = op.getInput().getType(), resultType = op.getType();
  BlockKeeper keeper(op);
  OpBuilder b(op, &keeper);
  Location loc = op.getLoc();
  int64_t count = resultType.getNumElements() ? type.getNumElements() / resultType.getNumElements() : 1;
  if (count == 1) {
    op.replaceAllUsesWith(reshape(b, loc, op.getInput(), resultType.getShape()));
    op.erase();
    return false;
  }
  FailureOr<ReduceExtents> extents = ReduceExtents::of(op);
  bool isLarge =
      succeeded(extents) &&
      ((extents->inner == 1 && extents->outer == 1 && extents->reduced > kWholeElements) ||
       (extents->inner > 1 && extents->outer < 16 && chunksOf(extents->reduced, kMostChunks / extents->outer) > 1));
  // Sums of chunks are stored: they must not be rounded to a narrow float.
  bool storesSums = succeeded(extents) && extents->inner > 1 && extents->outer > 1;
  if (succeeded(extents) && !isLarge && !storesSums)
    return false;
  if (storesSums && !isLarge && !isa<FloatType>(type.getElementType()))
    return false;
  if (storesSums && !isLarge && type.getElementType().isF32() && op.getKind() != ReduceKind::Mean)
    return false;

  bool isFloat = isa<FloatType>(type.getElementType());
  Value value = op.getInput();
  if (isFloat && !type.getElementType().isF32())
    value = CastOp::create(b, loc, value, b.getF32Type());
  ReduceKind kind = op.getKind() == ReduceKind::Mean ? ReduceKind::Sum : op.getKind();
  llvm::SmallBitVector reduced(type.getRank());
  for (int64_t dim : op.getDims())
    reduced.set(dim);
  SmallVector<int64_t> shape(type.getShape());

  // A whole sum of a matrix goes along its rows first: it fuses with what works
  // on rows.
  if (isLarge && extents->inner == 1 && extents->outer == 1) {
    int64_t last = shape.back(), rest = extents->reduced / last;
    if (last >= 64 && last <= 65536 && rest > 1) {
      value = ReduceOp::create(b, loc, kind, reshape(b, loc, value, {rest, last}), 1);
      shape = {rest};
      reduced.resize(1);
      reduced.set(0);
    }
  }
  while (reduced.any()) {
    SmallVector<int64_t> dims;
    ReduceExtents run = trailingRun(shape, reduced, dims);
    for (int64_t dim : dims) {
      reduced.reset(dim);
      shape[dim] = 1;
    }
    if (run.reduced != 1)
      value = reshape(b, loc, reduceMiddle(b, loc, kind, value, run), shape);
  }
  value = reshape(b, loc, value, resultType.getShape());
  if (op.getKind() == ReduceKind::Mean) {
    auto f32 = cast<RankedTensorType>(value.getType());
    value = MulOp::create(b, loc, value, ConstantOp::create(b, loc, f32, 1.0 / static_cast<double>(count)).getResult());
  }
  if (value.getType() != resultType)
    value = CastOp::create(b, loc, value, resultType.getElementType());
  op.replaceAllUsesWith(value);
  op.erase();
  return true;
}

static void rewriteScatter(ScatterAddOp op) {
  Type element = op.getType().getElementType();
  if (element.isF32())
    return;
  BlockKeeper keeper(op);
  OpBuilder b(op, &keeper);
  Value updates = CastOp::create(b, op.getLoc(), op.getUpdates(), b.getF32Type());
  auto type = RankedTensorType::get(op.getType().getShape(), b.getF32Type());
  Value sum = ScatterAddOp::create(b, op.getLoc(), type, updates, op.getIndices());
  op.replaceAllUsesWith(CastOp::create(b, op.getLoc(), sum, element).getResult());
  op.erase();
}

int64_t segue::normalizeReductions(Operation *root) {
  SmallVector<ReduceOp> reduces;
  SmallVector<ScatterAddOp> scatters;
  root->walk([&](Operation *op) {
    // What is fused already was put in form before.
    if (op->getParentOfType<FusedOp>())
      return;
    if (auto reduce = dyn_cast<ReduceOp>(op))
      reduces.push_back(reduce);
    else if (auto scatter = dyn_cast<ScatterAddOp>(op))
      scatters.push_back(scatter);
  });
  int64_t split = 0;
  for (ReduceOp op : reduces)
    split += rewriteReduce(op);
  for (ScatterAddOp op : scatters)
    rewriteScatter(op);
  return split;
}
