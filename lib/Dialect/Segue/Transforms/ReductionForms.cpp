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
/// The most chunks that the rows of a column sum are split in, and the least rows of a
/// chunk. Where a chunk would have more rows than `kRowsInOne`, which one sum takes without
/// losing digits, there are more chunks.
constexpr int64_t kMostChunks = 64, kChunkRows = 8, kRowsInOne = 8192;
/// Indices are compared with each other where that is at most so many comparisons per element of the table, which
/// walking it takes as long as.
constexpr int64_t kComparisonsPerElement = 8;

/// The largest number of equal chunks of `rows`, or 1; at most `most` where these are short enough.
static int64_t chunksOf(int64_t rows, int64_t most) {
  for (int64_t chunks = std::min(std::max(most, rows / kRowsInOne), rows / kChunkRows); chunks > 1; --chunks)
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

/// Returns the extents of a reduction over the trailing run of reduced dimensions.
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
  Type wide = computeType(type.getElementType());
  if (storesSums && !isLarge && type.getElementType() == wide && op.getKind() != ReduceKind::Mean)
    return false;

  Value value = op.getInput();
  if (type.getElementType() != wide)
    value = CastOp::create(b, loc, value, wide);
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
    auto sums = cast<RankedTensorType>(value.getType());
    value = MulOp::create(b, loc, value, ConstantOp::create(b, loc, sums, 1.0 / static_cast<double>(count)).getResult());
  }
  if (value.getType() != resultType)
    value = CastOp::create(b, loc, value, resultType.getElementType());
  op.replaceAllUsesWith(value);
  op.erase();
  return true;
}

static void rewriteScatter(ScatterAddOp op) {
  Type element = op.getType().getElementType(), wide = computeType(element);
  if (element == wide)
    return;
  BlockKeeper keeper(op);
  OpBuilder b(op, &keeper);
  Value updates = CastOp::create(b, op.getLoc(), op.getUpdates(), wide);
  auto type = RankedTensorType::get(op.getType().getShape(), wide);
  Value sum = ScatterAddOp::create(b, op.getLoc(), type, updates, op.getIndices());
  if (Value base = op.getBase())
    sum = AddOp::create(b, op.getLoc(), CastOp::create(b, op.getLoc(), base, wide).getResult(), sum);
  op.replaceAllUsesWith(CastOp::create(b, op.getLoc(), sum, element).getResult());
  op.erase();
}

/// base + scatter_add(updates) -> a scatter_add into that base, as where the table of an embedding is the
/// head as well. The table of zeros, and walking it twice, are as large as a vocabulary. The sum keeps its
/// bits: rows of one index are added up from zero first, in a table of as many rows as there are updates, at
/// the first of them; the others add zeros.
static void absorbBase(AddOp add) {
  auto isWritten = [](Value value) {
    Operation *op = value.getDefiningOp();
    return !op || kernelRoleOf(op) == KernelRole::Member || kernelRoleOf(op) == KernelRole::Outside;
  };
  for (bool swapped : {false, true}) {
    auto scatter = add->getOperand(swapped).getDefiningOp<ScatterAddOp>();
    Value base = add->getOperand(!swapped);
    if (!scatter || scatter.getBase() || !scatter->hasOneUse() || scatter->getBlock() != add->getBlock() || !isWritten(base))
      continue;
    RankedTensorType table = scatter.getType(), indices = scatter.getIndices().getType();
    int64_t rows = indices.getNumElements();
    if (!table.getElementType().isF32() || 2 * rows > table.getDimSize(0) ||
        rows * rows > kComparisonsPerElement * table.getNumElements())
      continue;
    BlockKeeper keeper(add);
    OpBuilder b(add, &keeper);
    Location loc = scatter.getLoc();
    Type number = b.getI64Type();
    auto pairs = RankedTensorType::get({rows, rows}, number);
    Value flat = reshape(b, loc, scatter.getIndices(), {rows});
    auto pairsOf = [&](int64_t dim) -> Value {
      return BroadcastOp::create(b, loc, flat, ArrayRef<int64_t>{dim}, ArrayRef<int64_t>{rows, rows});
    };
    Value isSame = CompareOp::create(b, loc, Predicate::Eq, pairsOf(0), pairsOf(1));
    Value place = SelectOp::create(b, loc, pairs, isSame, IotaOp::create(b, loc, pairs, 1).getResult(),
                                   ConstantOp::create(b, loc, pairs, static_cast<double>(rows)).getResult());
    Value first = ReduceOp::create(b, loc, ReduceKind::Min, place, ArrayRef<int64_t>{1});
    SmallVector<int64_t> shape(table.getShape());
    shape.front() = rows;
    Value updates = reshape(b, loc, scatter.getUpdates(), shape);
    Value sums = ScatterAddOp::create(b, loc, RankedTensorType::get(shape, table.getElementType()), updates, first);
    add.replaceAllUsesWith(ScatterAddOp::create(b, loc, table, sums, flat, base).getResult());
    add.erase();
    scatter.erase();
    return;
  }
}

int64_t segue::normalizeReductions(Operation *root) {
  // An op that is fused already was put in form before.
  auto isFused = [](Operation *op) { return op->getParentOfType<FusedOp>() != nullptr; };
  SmallVector<AddOp> adds;
  root->walk([&](AddOp op) {
    if (!isFused(op))
      adds.push_back(op);
  });
  for (AddOp op : adds)
    absorbBase(op);
  SmallVector<ReduceOp> reduces;
  SmallVector<ScatterAddOp> scatters;
  root->walk([&](Operation *op) {
    if (isFused(op))
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
