//===- Training.cpp - evaluates indexing and optimizers -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include <cmath>

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

//===----------------------------------------------------------------------===//
// Indexing
//===----------------------------------------------------------------------===//

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
  for (int64_t i = 0; i < indices.size(); ++i) {
    if (failed(checkRow(op, indices.ints[i], i, out[0].type.getDimSize(0))))
      return failure();
    for (int64_t j = 0; j < width; ++j)
      out[0].floats[indices.ints[i] * width + j] += updates.floats[i * width + j];
  }
  return success();
}

void interpreter::addIndexing(EvaluatorTable &table) {
  table.add(evaluateGather);
  table.add(evaluateScatterAdd);
}

//===----------------------------------------------------------------------===//
// Optimizers
//===----------------------------------------------------------------------===//

static LogicalResult evaluateAdamW(AdamWOp op, const Frame &in, Results out) {
  const HostTensor &p = in[op.getParameter()], &grad = in[op.getGrad()], &m = in[op.getM()], &v = in[op.getV()];
  double lr = in[op.getLr()].floats[0], clip = in[op.getClip()].floats[0];
  double step = static_cast<double>(in[op.getStep()].ints[0]);
  double b1 = op.getBetas()[0], b2 = op.getBetas()[1];
  double eps = op.getEps().convertToDouble(), decay = op.getDecay().convertToDouble();
  for (int64_t i = 0; i < p.size(); ++i) {
    double g = grad.floats[i] * clip;
    double newM = b1 * m.floats[i] + (1 - b1) * g;
    double newV = b2 * v.floats[i] + (1 - b2) * g * g;
    double denominator = std::sqrt(newV) / std::sqrt(1 - std::pow(b2, step)) + eps;
    out[0].floats[i] = p.floats[i] * (1 - lr * decay) - lr / (1 - std::pow(b1, step)) * newM / denominator;
    out[1].floats[i] = newM;
    out[2].floats[i] = newV;
  }
  return success();
}

static LogicalResult evaluateDescend(DescendOp op, const Frame &in, Results out) {
  const HostTensor &p = in[op.getParameter()], &grad = in[op.getGrad()];
  double lr = in[op.getLr()].floats[0], clip = in[op.getClip()].floats[0], decay = op.getDecay().convertToDouble();
  for (int64_t i = 0; i < p.size(); ++i)
    out[0].floats[i] = p.floats[i] - lr * (grad.floats[i] * clip + decay * p.floats[i]);
  return success();
}

static LogicalResult evaluateSgd(SgdOp op, const Frame &in, Results out) {
  const HostTensor &p = in[op.getParameter()], &grad = in[op.getGrad()], &u = in[op.getVelocity()];
  double lr = in[op.getLr()].floats[0], clip = in[op.getClip()].floats[0];
  int64_t step = in[op.getStep()].ints[0];
  double momentum = op.getMomentum().convertToDouble(), dampening = op.getDampening().convertToDouble();
  double decay = op.getDecay().convertToDouble();
  for (int64_t i = 0; i < p.size(); ++i) {
    double g = grad.floats[i] * clip + decay * p.floats[i];
    double newU = step == 1 ? g : momentum * u.floats[i] + (1 - dampening) * g;
    out[0].floats[i] = p.floats[i] - lr * (op.getNesterov() ? g + momentum * newU : newU);
    out[1].floats[i] = newU;
  }
  return success();
}

void interpreter::addOptimizers(EvaluatorTable &table) {
  table.add(evaluateAdamW);
  table.add(evaluateDescend);
  table.add(evaluateSgd);
}
