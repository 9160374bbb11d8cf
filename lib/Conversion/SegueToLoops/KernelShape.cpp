//===- KernelShape.cpp - how the loops of a kernel lie --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Conversion/SegueToLoops/SegueToLoops.h"

using namespace mlir;
using namespace segue;

FailureOr<ReduceExtents> ReduceExtents::of(ReduceOp op) {
  ArrayRef<int64_t> dims = op.getDims(), shape = op.getInput().getType().getShape();
  ReduceExtents extents;
  for (auto [dim, extent] : llvm::enumerate(shape)) {
    if (extent == 1)
      continue;
    if (llvm::is_contained(dims, static_cast<int64_t>(dim))) {
      if (extents.inner != 1)
        return failure();
      extents.reduced *= extent;
    } else if (extents.reduced != 1) {
      extents.inner *= extent;
    } else {
      extents.outer *= extent;
    }
  }
  return extents;
}

/// Joins what two ops of one region ask for.
static LogicalResult join(Operation *op, std::optional<KernelShape> &shape, KernelShape wanted) {
  if (!shape) {
    shape = wanted;
    return success();
  }
  bool fits = shape->kind == wanted.kind && shape->rows == wanted.rows && shape->cols == wanted.cols &&
              shape->inner == wanted.inner &&
              (!shape->chunks || !wanted.chunks || shape->chunks == wanted.chunks);
  if (!fits)
    return op->emitOpError("needs other loops than the ops before it in one kernel");
  shape->chunks = std::max(shape->chunks, wanted.chunks);
  return success();
}

FailureOr<KernelShape> segue::inferKernelShape(Block &body) {
  std::optional<KernelShape> shape;
  for (Operation &op : body) {
    if (!hasLoops(&op))
      continue;
    FailureOr<KernelShape> wanted = cast<KernelOpInterface>(op).getKernelShape();
    if (failed(wanted) || failed(join(&op, shape, *wanted)))
      return failure();
  }
  if (shape)
    return *shape;
  KernelShape map;
  for (Value value : body.getTerminator()->getOperands()) {
    int64_t elements = cast<RankedTensorType>(value.getType()).getNumElements();
    if (map.cols != 1 && map.cols != elements)
      return body.getTerminator()->emitOpError("results have ") << map.cols << " and " << elements
                                                                << " elements; one kernel makes values of one size";
    map.cols = elements;
  }
  return map;
}
