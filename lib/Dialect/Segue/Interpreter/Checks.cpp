//===- Checks.cpp - evaluates the check dialect ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include "segue/Dialect/Check/IR/CheckDialect.h"

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

static LogicalResult expectClose(Operation *op, const HostTensor &actual, const HostTensor &expected, double atol,
                                 double rtol) {
  std::string difference = findDifference(actual, expected, atol, rtol);
  if (difference.empty())
    return success();
  return op->emitOpError() << "does not hold " << difference;
}

static LogicalResult evaluateExpectEq(check::ExpectEqOp op, const Frame &in, Results) {
  return expectClose(op, in[op.getActual()], in[op.getExpected()], 0, 0);
}

static LogicalResult evaluateExpectClose(check::ExpectCloseOp op, const Frame &in, Results) {
  return expectClose(op, in[op.getActual()], in[op.getExpected()], op.getAtol().convertToDouble(),
                     op.getRtol().convertToDouble());
}

static LogicalResult evaluateExpectCloseConst(check::ExpectCloseConstOp op, const Frame &in, Results) {
  FailureOr<HostTensor> expected = constantOf(op, op.getExpected());
  if (failed(expected))
    return failure();
  return expectClose(op, in[op.getActual()], *expected, op.getAtol().convertToDouble(), op.getRtol().convertToDouble());
}

void interpreter::addChecks(EvaluatorTable &table) {
  table.add(evaluateExpectEq);
  table.add(evaluateExpectClose);
  table.add(evaluateExpectCloseConst);
}
