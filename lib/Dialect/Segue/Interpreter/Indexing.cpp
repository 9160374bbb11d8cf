//===- Indexing.cpp - evaluates gathers and scatters ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

/// Fails unless `index`, found at `position` of the indices, is a row of a
/// table of `rows`.
static LogicalResult checkRow(Operation *op, int64_t index, int64_t position, int64_t rows) {
  if (index >= 0 && index < rows)
    return success();
  return op->emitError() << "index " << index << " at position " << position << " lies outside of a table of " << rows
                         << " rows";
}

/// Elements of one row of a table.
static int64_t rowSize(const HostTensor &table) {
  int64_t size = 1;
  for (int64_t extent : table.type.getShape().drop_front())
    size *= extent;
  return size;
}

static LogicalResult evaluateGather(GatherOp op, const Frame &in, Results out) {
  const HostTensor &table = in[op.getTable()], &indices = in[op.getIndices()];
  int64_t width = rowSize(table);
  for (int64_t i = 0; i < indices.size(); ++i) {
    if (failed(checkRow(op, indices.ints[i], i, table.type.getDimSize(0))))
      return failure();
    for (int64_t j = 0; j < width; ++j)
      copyElement(out[0], i * width + j, table, indices.ints[i] * width + j);
  }
  return success();
}

static LogicalResult evaluateScatterAdd(ScatterAddOp op, const Frame &in, Results out) {
  const HostTensor &updates = in[op.getUpdates()], &indices = in[op.getIndices()];
  int64_t width = rowSize(out[0]);
  if (op.getBase())
    out[0].floats = in[op.getBase()].floats, out[0].ints = in[op.getBase()].ints;
  for (int64_t i = 0; i < indices.size(); ++i) {
    if (failed(checkRow(op, indices.ints[i], i, out[0].type.getDimSize(0))))
      return failure();
    for (int64_t j = 0; j < width; ++j) {
      int64_t to = indices.ints[i] * width + j, from = i * width + j;
      if (updates.isFloat())
        out[0].floats[to] += updates.floats[from];
      else // modulo 2^64
        out[0].ints[to] = static_cast<int64_t>(static_cast<uint64_t>(out[0].ints[to]) + updates.ints[from]);
    }
  }
  return success();
}

void interpreter::addIndexing(EvaluatorTable &table) {
  table.add(evaluateGather);
  table.add(evaluateScatterAdd);
}
