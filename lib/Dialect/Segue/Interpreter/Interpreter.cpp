//===- Interpreter.cpp - the reference interpreter ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Walks through bodies, finds the evaluator of each op and rounds what it
// gives. The evaluators are in the other files, by family.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "Evaluators.h"

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

/// Calls nested deeper are taken for endless recursion.
static constexpr unsigned kMaxCallDepth = 64;

namespace {
class Machine {
public:
  explicit Machine(const InterpreterOptions &options) : options(options) {
    addElementwise(table);
    addSources(table);
    addShapeOps(table);
    addContractions(table);
    addNormalisations(table);
    addIndexing(table);
    addOptimizers(table);
    addChecks(table);
  }

  FailureOr<SmallVector<HostTensor>> call(func::FuncOp function, ArrayRef<HostTensor> arguments);

private:
  /// Runs a body of one block; gives what its terminator hands over.
  FailureOr<SmallVector<HostTensor>> run(Block &block, ArrayRef<HostTensor> arguments);
  FailureOr<SmallVector<HostTensor>> evaluate(Operation &op, const Frame &frame);
  void round(HostTensor &tensor) const;

  const InterpreterOptions &options;
  EvaluatorTable table;
  unsigned depth = 0;
};
} // namespace

void Machine::round(HostTensor &tensor) const {
  Type element = tensor.type.getElementType();
  if (options.roundFloats)
    for (double &value : tensor.floats)
      value = roundTo(element, value);
  for (int64_t &value : tensor.ints)
    if (unsigned width = element.getIntOrFloatBitWidth(); width > 1)
      value = llvm::SignExtend64(static_cast<uint64_t>(value), width);
}

FailureOr<SmallVector<HostTensor>> Machine::evaluate(Operation &op, const Frame &frame) {
  auto operands = [&] { return llvm::map_to_vector(op.getOperands(), [&](Value value) { return frame[value]; }); };
  if (auto fused = dyn_cast<FusedOp>(op))
    return run(fused.getBody().front(), operands());
  if (auto callOp = dyn_cast<func::CallOp>(op)) {
    auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(&op, callOp.getCalleeAttr());
    if (!callee)
      return op.emitError() << "calls `" << callOp.getCallee() << "`, which is no `func.func` in reach";
    return call(callee, operands());
  }
  const Evaluator *evaluator = table.find(&op);
  if (!evaluator)
    return op.emitError("cannot be interpreted: the reference interpreter knows the value ops of `segue`, `check`, "
                        "`func.call` and `func.return`");
  SmallVector<HostTensor> results;
  for (Type type : op.getResultTypes())
    results.push_back(HostTensor::filled(cast<RankedTensorType>(type)));
  if (failed((*evaluator)(&op, frame, results)))
    return failure();
  for (HostTensor &result : results)
    round(result);
  return results;
}

FailureOr<SmallVector<HostTensor>> Machine::run(Block &block, ArrayRef<HostTensor> arguments) {
  Frame frame;
  for (auto [parameter, argument] : llvm::zip_equal(block.getArguments(), arguments))
    frame.define(parameter, argument);
  for (Operation &op : block.without_terminator()) {
    FailureOr<SmallVector<HostTensor>> results = evaluate(op, frame);
    if (failed(results))
      return failure();
    for (auto [value, result] : llvm::zip_equal(op.getResults(), *results))
      frame.define(value, std::move(result));
  }
  return llvm::map_to_vector(block.getTerminator()->getOperands(), [&](Value value) { return frame[value]; });
}

FailureOr<SmallVector<HostTensor>> Machine::call(func::FuncOp function, ArrayRef<HostTensor> arguments) {
  if (!function.getBody().hasOneBlock())
    return function.emitError() << "`" << function.getName() << "` must have a body of one block to be interpreted";
  if (function.getNumArguments() != arguments.size())
    return function.emitError() << "`" << function.getName() << "` takes " << function.getNumArguments()
                                << " arguments, given are " << arguments.size();
  for (auto [i, argument] : llvm::enumerate(arguments))
    if (function.getArgumentTypes()[i] != argument.type)
      return function.emitError() << "argument " << i << " of `" << function.getName() << "` is "
                                  << function.getArgumentTypes()[i] << ", given is " << argument.type;
  for (Type type : function.getResultTypes())
    if (!isa<RankedTensorType>(type))
      return function.emitError() << "gives a " << type << "; only tensors can be interpreted";
  if (depth == kMaxCallDepth)
    return function.emitError() << "calls are nested deeper than " << kMaxCallDepth;
  ++depth;
  FailureOr<SmallVector<HostTensor>> results = run(function.getBody().front(), arguments);
  --depth;
  return results;
}

FailureOr<SmallVector<HostTensor>> segue::interpret(func::FuncOp function, ArrayRef<HostTensor> arguments,
                                                    const InterpreterOptions &options) {
  return Machine(options).call(function, arguments);
}
