//===- TrainingOps.cpp - verifies normalisations, losses, indexing --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checks.h"

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// Normalisations and losses
//===----------------------------------------------------------------------===//

/// (C2) `value` is computed in the type that `input` is.
static LogicalResult computedAs(Operation *op, checks::Named value, checks::Named input) {
  if (computeType(value.element()) == computeType(input.element()))
    return success();
  return op->emitOpError() << "`" << value.name << "` holds " << value.element() << ", but `" << input.name << "` "
                           << input.element() << ": only f64 goes with f64";
}

/// (C1) `value`, if there is one, has the extent of the last dimension of
/// `input`.
static LogicalResult perColumn(Operation *op, StringRef name, Value value, checks::Named input) {
  if (!value)
    return success();
  if (failed(computedAs(op, {name, value}, input)))
    return failure();
  return checks::shape(op, {name, value}, input.type().getShape().back(), "the last dimension of `input`");
}

/// (C2) `value` has the shape of `input` without the last dimension.
static LogicalResult perRow(Operation *op, StringRef name, Value value, checks::Named input) {
  if (failed(computedAs(op, {name, value}, input)))
    return failure();
  return checks::shape(op, {name, value}, input.type().getShape().drop_back(),
                       "the shape of `input` without its last dimension");
}

/// Rows are taken from the last dimension, so there must be one.
static LogicalResult hasRows(Operation *op, checks::Named input) {
  if (input.type().getRank() > 0)
    return success();
  return op->emitOpError() << "`" << input.name << "` is a scalar; it must have a last dimension";
}

LogicalResult LayerNormOp::verify() {
  checks::Named input = {"input", getInput()};
  return failure(failed(hasRows(*this, input)) || failed(perColumn(*this, "gamma", getGamma(), input)) ||
                 failed(perColumn(*this, "beta", getBeta(), input)) ||
                 failed(perRow(*this, "mean", getMean(), input)) || failed(perRow(*this, "rstd", getRstd(), input)));
}

LogicalResult RmsNormOp::verify() {
  checks::Named input = {"input", getInput()};
  return failure(failed(hasRows(*this, input)) || failed(perColumn(*this, "gamma", getGamma(), input)) ||
                 failed(perRow(*this, "rstd", getRstd(), input)));
}

LogicalResult SoftmaxOp::verify() { return checks::dimension(*this, getDim(), {"input", getInput()}); }    // C1
LogicalResult LogSoftmaxOp::verify() { return checks::dimension(*this, getDim(), {"input", getInput()}); } // C1

LogicalResult CrossEntropyOp::verify() {
  auto logits = getLogits().getType();
  if (logits.getRank() != 2) // C1
    return emitOpError() << "`logits` has shape " << checks::listed(logits.getShape())
                         << "; it must have 2 dimensions: rows and classes";
  for (auto value : {checks::Named{"targets", getTargets()}, checks::Named{"loss", getLoss()}}) // C1, C2
    if (failed(checks::shape(*this, value, logits.getShape().front(), "the rows of `logits`")))
      return failure();
  return computedAs(*this, {"loss", getLoss()}, {"logits", getLogits()});
}

//===----------------------------------------------------------------------===//
// Indexing
//===----------------------------------------------------------------------===//

/// (C2) `rows` has the shape of `indices`, then that of a row of `table`.
static LogicalResult indexed(Operation *op, checks::Named rows, checks::Named indices, checks::Named table) {
  if (table.type().getRank() == 0) // C1
    return op->emitOpError() << "`" << table.name << "` is a scalar; it must have a dimension to index";
  SmallVector<int64_t> shape(indices.type().getShape());
  llvm::append_range(shape, table.type().getShape().drop_front());
  std::string why = "the shape of `indices` followed by that of a row of `" + table.name.str() + "`";
  return failure(failed(checks::shape(op, rows, shape, why)) || failed(checks::sameElement(op, rows, table)));
}

LogicalResult GatherOp::verify() {
  return indexed(*this, {"result", getResult()}, {"indices", getIndices()}, {"table", getTable()});
}

LogicalResult ScatterAddOp::verify() {
  return indexed(*this, {"updates", getUpdates()}, {"indices", getIndices()}, {"result", getResult()});
}
