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
#include <cmath>

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
    addChecks(table);
  }

  FailureOr<SmallVector<HostTensor>> call(func::FuncOp function, ArrayRef<HostTensor> arguments);
  FailureOr<SmallVector<HostTensor>> evaluate(Operation &op, const Frame &frame);
  bool knows(StringRef op) const { return table.find(op) || op == FusedOp::getOperationName(); }

private:
  /// Runs a body of one block; gives what its terminator hands over.
  FailureOr<SmallVector<HostTensor>> run(Block &block, ArrayRef<HostTensor> arguments);
  void round(HostTensor &tensor) const;
  void disturb(Operation &op, const Frame &frame, const Evaluator &evaluator, HostTensor &tensor);

  const InterpreterOptions &options;
  EvaluatorTable table;
  unsigned depth = 0;
  uint64_t state = options.disturb * 0x9E3779B97F4A7C15u;
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

/// Terms of a sum, or 0 if `op` makes none.
static int64_t termsOf(Operation &op) {
  if (auto scatter = dyn_cast<ScatterAddOp>(op))
    return scatter.getIndices().getType().getNumElements();
  auto reduce = dyn_cast<ReduceOp>(op);
  if (!reduce || reduce.getKind() == ReduceKind::Max || reduce.getKind() == ReduceKind::Min)
    return 0;
  return reduce.getInput().getType().getNumElements() / std::max<int64_t>(1, reduce.getType().getNumElements());
}

void Machine::disturb(Operation &op, const Frame &frame, const Evaluator &evaluator, HostTensor &tensor) {
  auto type = dyn_cast<FloatType>(tensor.type.getElementType());
  int64_t terms = termsOf(op);
  auto scalar = dyn_cast<ScalarOpInterface>(op);
  Accuracy accuracy = scalar ? scalar.getAccuracy() : terms ? Accuracy::Rounded : Accuracy::Exact;
  if (!type || accuracy == Accuracy::Exact)
    return;
  double unit = std::ldexp(1.0, 1 - static_cast<int>(APFloat::semanticsPrecision(type.getFloatSemantics())));
  double relative = accuracy == Accuracy::Rounded ? unit / 2 : 4 * unit;
  double absolute = accuracy == Accuracy::Approximated ? unit : 0;
  HostTensor magnitude = tensor;
  if (terms) {
    relative *= std::max(std::sqrt(static_cast<double>(terms)), static_cast<double>(terms) / 16);
    Frame magnitudes;
    for (Value operand : op.getOperands()) {
      HostTensor terms = frame[operand];
      for (double &value : terms.floats)
        value = std::abs(value);
      magnitudes.define(operand, std::move(terms));
    }
    magnitude = HostTensor::filled(tensor.type);
    if (failed(evaluator(&op, magnitudes, magnitude)))
      return;
  }
  for (auto [value, size] : llvm::zip_equal(tensor.floats, magnitude.floats)) {
    // Marsaglia, "Xorshift RNGs".
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    value += (state >> 40 & 1 ? 1 : -1) * (relative * std::abs(size) + absolute);
  }
}

FailureOr<SmallVector<HostTensor>> Machine::evaluate(Operation &op, const Frame &frame) {
  auto operands = [&] { return llvm::map_to_vector(op.getOperands(), [&](Value value) { return frame[value]; }); };
  if (auto fused = dyn_cast<FusedOp>(op))
    return run(fused.getBody().front(), operands());
  if (auto callOp = dyn_cast<func::CallOp>(op)) {
    auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(&op, callOp.getCalleeAttr());
    if (!callee)
      return op.emitError() << "calls `" << callOp.getCallee() << "`, which is not a `func.func` in reach";
    return call(callee, operands());
  }
  const Evaluator *evaluator = table.find(op.getName().getStringRef());
  if (!evaluator)
    return op.emitError("cannot be interpreted: the reference interpreter knows the value ops of `segue`, `check`, "
                        "`func.call` and `func.return`");
  SmallVector<HostTensor> results;
  for (Type type : op.getResultTypes()) {
    if (failed(verifySize(&op, type)))
      return failure();
    results.push_back(HostTensor::filled(cast<RankedTensorType>(type)));
  }
  if (failed((*evaluator)(&op, frame, results)))
    return failure();
  for (HostTensor &result : results) {
    round(result);
    if (options.disturb)
      disturb(op, frame, *evaluator, result);
  }
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
    if (options.observe && isa<func::FuncOp>(block.getParentOp()) &&
        failed(options.observe(
            &op, llvm::map_to_vector(op.getOperands(), [&](Value value) { return frame[value]; }), *results)))
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

bool segue::isInterpreted(StringRef op) { return Machine(InterpreterOptions()).knows(op); }

FailureOr<SmallVector<HostTensor>> segue::interpretOp(Operation *op, ArrayRef<HostTensor> operands,
                                                      const InterpreterOptions &options) {
  if (op->getNumOperands() != operands.size())
    return op->emitError() << "takes " << op->getNumOperands() << " operands, given are " << operands.size();
  Frame frame;
  for (auto [value, operand] : llvm::zip_equal(op->getOperands(), operands))
    frame.define(value, operand);
  return Machine(options).evaluate(*op, frame);
}
