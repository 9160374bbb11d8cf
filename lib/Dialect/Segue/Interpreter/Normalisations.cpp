//===- Normalisations.cpp - evaluates normalisations and losses -----------===//
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

static LogicalResult evaluateLayerNorm(LayerNormOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  int64_t width = input.type.getShape().back();
  for (int64_t row = 0; row < out[1].size(); ++row) {
    const double *x = &input.floats[row * width];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i)
      mean += x[i] / width;
    for (int64_t i = 0; i < width; ++i)
      variance += (x[i] - mean) * (x[i] - mean) / width;
    double rstd = 1 / std::sqrt(variance + op.getEps().convertToDouble());
    out[1].floats[row] = mean;
    out[2].floats[row] = rstd;
    for (int64_t i = 0; i < width; ++i)
      out[0].floats[row * width + i] = (x[i] - mean) * rstd * (op.getGamma() ? in[op.getGamma()].floats[i] : 1) +
                                       (op.getBeta() ? in[op.getBeta()].floats[i] : 0);
  }
  return success();
}

static LogicalResult evaluateRmsNorm(RmsNormOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  int64_t width = input.type.getShape().back();
  for (int64_t row = 0; row < out[1].size(); ++row) {
    const double *x = &input.floats[row * width];
    double square = 0;
    for (int64_t i = 0; i < width; ++i)
      square += x[i] * x[i] / width;
    double rstd = 1 / std::sqrt(square + op.getEps().convertToDouble());
    out[1].floats[row] = rstd;
    for (int64_t i = 0; i < width; ++i)
      out[0].floats[row * width + i] = x[i] * rstd * (op.getGamma() ? in[op.getGamma()].floats[i] : 1);
  }
  return success();
}

/// log(sum(exp(x[i * stride]))) over `count` elements.
static double logSumExp(const double *x, int64_t count, int64_t stride) {
  double largest = x[0], sum = 0;
  for (int64_t i = 1; i < count; ++i)
    largest = std::fmax(largest, x[i * stride]);
  for (int64_t i = 0; i < count; ++i)
    sum += std::exp(x[i * stride] - largest);
  return largest + std::log(sum);
}

/// Calls `write` with each x and the logarithm of the sum along `dim`.
static void alongDim(const HostTensor &input, int64_t dim, HostTensor &result, double (*write)(double x, double lse)) {
  int64_t count = input.type.getDimSize(dim), stride = 1;
  for (int64_t extent : input.type.getShape().drop_front(dim + 1))
    stride *= extent;
  forEachIndex(input.type.getShape(), [&](ArrayRef<int64_t> index, int64_t first) {
    if (index[dim] != 0)
      return;
    double lse = logSumExp(&input.floats[first], count, stride);
    for (int64_t i = first, end = first + count * stride; i < end; i += stride)
      result.floats[i] = write(input.floats[i], lse);
  });
}

static LogicalResult evaluateSoftmax(SoftmaxOp op, const Frame &in, Results out) {
  alongDim(in[op.getInput()], op.getDim(), out[0], [](double x, double lse) { return std::exp(x - lse); });
  return success();
}

static LogicalResult evaluateLogSoftmax(LogSoftmaxOp op, const Frame &in, Results out) {
  alongDim(in[op.getInput()], op.getDim(), out[0], [](double x, double lse) { return x - lse; });
  return success();
}

static LogicalResult evaluateCrossEntropy(CrossEntropyOp op, const Frame &in, Results out) {
  const HostTensor &logits = in[op.getLogits()], &targets = in[op.getTargets()];
  int64_t rows = logits.type.getDimSize(0), classes = logits.type.getDimSize(1);
  for (int64_t row = 0; row < rows; ++row) {
    double lse = logSumExp(&logits.floats[row * classes], classes, 1);
    out[1].floats[row] = lse;
    int64_t target = targets.ints[row];
    if (target == static_cast<int64_t>(op.getIgnoreIndex()))
      continue;
    if (target < 0 || target >= classes)
      return op.emitError() << "target of row " << row << " is " << target << ", but there are " << classes
                            << " classes";
    out[0].floats[row] = lse - logits.floats[row * classes + target];
  }
  return success();
}

void interpreter::addNormalisations(EvaluatorTable &table) {
  table.add(evaluateLayerNorm);
  table.add(evaluateRmsNorm);
  table.add(evaluateSoftmax);
  table.add(evaluateLogSoftmax);
  table.add(evaluateCrossEntropy);
}
