//===- ElementBuilder.cpp - one element of a value ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace mlir;
using namespace segue;

Type segue::memoryType(Type element) {
  return element.isInteger(1) ? Type(IntegerType::get(element.getContext(), 8)) : element;
}

//===----------------------------------------------------------------------===//
// Indices
//===----------------------------------------------------------------------===//

Value KernelBuilder::constantIndex(int64_t value) {
  Value &known = scopes.front()->constants[value];
  if (!known)
    known = arith::ConstantIndexOp::create(scopes.front()->builder, loc, value);
  return known;
}

size_t KernelBuilder::scopeOf(const IndexExpr &index) {
  size_t scope = 0;
  for (const IndexExpr::Term &term : index.terms) {
    const auto &variable = plan.space[term.variable];
    scope = std::max(scope, variable.divisor ? scopeOf(variable.source) : variableScope.lookup(term.variable));
  }
  return scope;
}

size_t KernelBuilder::scopeOf(Value value, const IndexExpr &index) {
  size_t scope = scopeOf(index);
  if (plan.dependsOnReduce.contains(value))
    scope = std::max(scope, rowScope);
  for (size_t at = scopes.size(); at-- > scope;)
    if (scopes[at]->guarded)
      return at;
  return scope;
}

Value KernelBuilder::variableIn(unsigned variable, size_t scope) {
  const IndexSpace::Variable &fallback = plan.space[variable];
  if (!fallback.divisor)
    return variableValue.lookup(variable);
  for (size_t at = 0; at <= scope; ++at)
    if (auto known = scopes[at]->fallbacks.find(variable); known != scopes[at]->fallbacks.end())
      return known->second;
  int64_t divisor = fallback.divisor;
  bool remainder = fallback.remainder;
  Value source = materialize(fallback.source, scope), by = constantIndex(divisor), value;
  if (remainder)
    value = arith::RemUIOp::create(scopes[scope]->builder, loc, source, by);
  else
    value = arith::DivUIOp::create(scopes[scope]->builder, loc, source, by);
  return scopes[scope]->fallbacks[variable] = value;
}

Value KernelBuilder::materialize(const IndexExpr &index, size_t scope) {
  Value sum;
  auto accumulate = [&](Value value) {
    sum = sum ? arith::AddIOp::create(scopes[scope]->builder, loc, sum, value).getResult() : value;
  };
  for (const IndexExpr::Term &term : index.terms) {
    Value value = variableIn(term.variable, scope);
    if (term.coefficient != 1) {
      Value factor = constantIndex(term.coefficient);
      value = arith::MulIOp::create(scopes[scope]->builder, loc, value, factor);
    }
    accumulate(value);
  }
  if (!sum || index.offset)
    accumulate(constantIndex(index.offset));
  return sum;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value KernelBuilder::load(unsigned argument, Value index, Type type, OpBuilder &b) {
  Value value = memref::LoadOp::create(b, loc, function.getArgument(argument), index);
  if (type.isInteger(1)) {
    Value zero = arith::ConstantOp::create(b, loc, b.getI8IntegerAttr(0));
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, value, zero);
  }
  if (computeType(type) != type)
    return arith::ExtFOp::create(b, loc, computeType(type), value);
  return value;
}

void KernelBuilder::store(Value value, unsigned argument, Value index, OpBuilder &b) {
  Value buffer = function.getArgument(argument);
  Type memory = cast<MemRefType>(buffer.getType()).getElementType();
  if (value.getType().isInteger(1))
    value = arith::ExtUIOp::create(b, loc, memory, value);
  else if (value.getType() != memory)
    value = arith::TruncFOp::create(b, loc, memory, value);
  memref::StoreOp::create(b, loc, value, buffer, index);
}

Value KernelBuilder::isSameBuffer(unsigned argument, unsigned other) {
  auto pointer = [&](unsigned at) -> Value {
    return memref::ExtractAlignedPointerAsIndexOp::create(front(), loc, function.getArgument(at));
  };
  return arith::CmpIOp::create(front(), loc, arith::CmpIPredicate::eq, pointer(argument), pointer(other));
}

//===----------------------------------------------------------------------===//
// Indices from memory, regions of several operands
//===----------------------------------------------------------------------===//

/// The argument that an index comes from, for the error status: the first
/// operand of integers that it is computed from.
static unsigned indexArgument(Value indices) {
  SmallVector<Value> work = {indices};
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      if (elementOf(argument).isInteger() && !elementOf(argument).isInteger(1))
        return argument.getArgNumber();
      continue;
    }
    for (Value operand : llvm::reverse(value.getDefiningOp()->getOperands()))
      work.push_back(operand);
  }
  return 0;
}

Value KernelBuilder::checkedIndex(Value indices, const IndexExpr &at, int64_t rows, size_t scope) {
  Value number = element(indices, at);
  if (!number)
    return {};
  if (!status) {
    OpBuilder &first = front();
    status = memref::AllocaOp::create(first, loc, MemRefType::get({1}, first.getI64Type()));
    Value zero = arith::ConstantOp::create(first, loc, first.getI64IntegerAttr(0));
    memref::StoreOp::create(first, loc, zero, status, constantIndex(0));
  }
  OpBuilder &b = scopes[scope]->builder;
  Value index = arith::IndexCastOp::create(b, loc, b.getIndexType(), number);
  // Unsigned: a negative index is too large.
  Value inside = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, index, constantIndex(rows));
  Value outside = arith::XOrIOp::create(b, loc, inside, arith::ConstantOp::create(b, loc, b.getBoolAttr(true)).getResult());
  unsigned argument = indexArgument(indices);
  auto report = scf::IfOp::create(b, loc, outside, /*withElseRegion=*/false);
  OpBuilder then = report.getThenBodyBuilder();
  Value code = arith::ConstantOp::create(then, loc, then.getI64IntegerAttr(1 + static_cast<int64_t>(argument)));
  Value zero = arith::ConstantIndexOp::create(then, loc, 0);
  memref::StoreOp::create(then, loc, code, status, zero);
  return arith::SelectOp::create(b, loc, inside, index, constantIndex(0));
}

unsigned KernelBuilder::addVariable(Value value, int64_t extent, size_t scope) {
  unsigned variable = plan.space.addVariable(extent, /*splittable=*/false);
  variableScope[variable] = scope;
  variableValue[variable] = value;
  return variable;
}

std::optional<std::pair<unsigned, Value>> KernelBuilder::clampedIndex(const IndexExpr &index, int64_t extent) {
  size_t scope = scopeOf(index);
  if (gpu || scope == innermost())
    return std::nullopt;
  for (size_t at = 0; at <= scope; ++at)
    if (auto known = scopes[at]->clamped.find({index, extent}); known != scopes[at]->clamped.end())
      return known->second;
  Value at = materialize(index, scope);
  OpBuilder &b = scopes[scope]->builder;
  // Unsigned: a negative index is too large.
  Value inside = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, at, constantIndex(extent));
  Value place = arith::SelectOp::create(b, loc, inside, at, constantIndex(0));
  return scopes[scope]->clamped[{index, extent}] = {addVariable(place, extent, scope), inside};
}

Value KernelBuilder::choose(ArrayRef<KernelRead> operands, Type type,
                            function_ref<Value(OpBuilder &)> otherwise) {
  while (!operands.empty() && decide(plan.space, operands.front().guards) == Truth::No)
    operands = operands.drop_front();
  if (operands.empty())
    return otherwise(top().builder);
  const KernelRead &first = operands.front();
  if (decide(plan.space, first.guards) == Truth::Yes)
    return element(first.value, first.index);

  // Tested at run time, in the innermost scope.
  OpBuilder &b = top().builder;
  size_t here = scopes.size() - 1;
  Value condition;
  auto also = [&](Value test) {
    condition = condition ? arith::AndIOp::create(b, loc, condition, test).getResult() : test;
  };
  for (const Guard &guard : first.guards) {
    if (decide(plan.space, guard) == Truth::Yes)
      continue;
    IndexExpr shifted = guard.index;
    shifted.offset -= guard.low;
    Value at = materialize(shifted, here);
    also(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, at, constantIndex(guard.high - guard.low)));
    if (guard.step != 1) {
      Value rest = arith::RemUIOp::create(b, loc, at, constantIndex(guard.step));
      also(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, rest, constantIndex(0)));
    }
  }
  auto branch = scf::IfOp::create(b, loc, TypeRange(type), condition, /*withElseRegion=*/true);
  b.setInsertionPoint(branch);
  auto write = [&](Block *block, function_ref<Value()> value) {
    Scope scope(OpBuilder::atBlockEnd(block));
    scope.guarded = true;
    scopes.push_back(&scope);
    Value result = value();
    if (result)
      scf::YieldOp::create(scope.builder, loc, result);
    scopes.pop_back();
  };
  write(branch.thenBlock(), [&] { return element(first.value, first.index); });
  write(branch.elseBlock(), [&] { return choose(operands.drop_front(), type, otherwise); });
  b.setInsertionPointAfter(branch);
  return branch.getResult(0);
}

Value KernelBuilder::chosenElement(ArrayRef<KernelRead> reads, Type type, size_t scope,
                                   function_ref<Value(OpBuilder &)> otherwise) {
  // Everything is written in `scope`, so that the value is known there.
  SmallVector<Scope *> inner(scopes);
  scopes.truncate(scope + 1);
  Value result = choose(reads, type, otherwise);
  scopes = inner;
  return result;
}

Value KernelBuilder::reducedElement(Operation *op, const IndexExpr &index, size_t scope) {
  auto sums = columnSums.find(op->getResult(0));
  if (!columnEpilogue || sums == columnSums.end() || index != plan.column) {
    op->emitOpError("is used in its own kernel at an index other than that of its result");
    return {};
  }
  OpBuilder &b = builderOf(scope);
  Value column = materialize(plan.column, scope);
  Value at = arith::SubIOp::create(b, loc, column, blockStart);
  return memref::LoadOp::create(b, loc, sums->second, at);
}

//===----------------------------------------------------------------------===//
// All ops
//===----------------------------------------------------------------------===//

Value KernelBuilder::element(Value value, const IndexExpr &index) {
  if (failedToBuild)
    return {};
  size_t scope = scopeOf(value, index);
  std::pair<const void *, IndexExpr> key(value.getAsOpaquePointer(), index);
  for (size_t at = 0; at <= scope; ++at)
    if (auto known = scopes[at]->elements.find(key); known != scopes[at]->elements.end())
      return known->second;
  Value result = computeElement(value, index, scope);
  if (!result) {
    failedToBuild = true;
    return {};
  }
  return scopes[scope]->elements[key] = result;
}

Value KernelBuilder::computeElement(Value value, const IndexExpr &index, size_t scope) {
  OpBuilder &b = scopes[scope]->builder;
  Operation *op = value.getDefiningOp();
  if (op && currentLevel > 0 && index == plan.element) {
    auto output = plan.stored.find(value);
    if (output != plan.stored.end() && plan.level.lookup(value) < currentLevel) {
      Value at = materialize(index, scope);
      return load(resultArgument(output->second), at, elementOf(value), b);
    }
    auto kept = plan.buffered.find(value);
    if (kept != plan.buffered.end() && kept->second < currentLevel) {
      Value at = materialize(plan.column, scope);
      Value stored = memref::LoadOp::create(b, loc, buffers.lookup(value), at);
      if (!elementOf(value).isInteger(1))
        return stored;
      return arith::TruncIOp::create(b, loc, b.getI1Type(), stored);
    }
  }
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    Value at = materialize(index, scope);
    return load(argument.getArgNumber(), at, elementOf(value), b);
  }
  if (auto kernel = dyn_cast<KernelOpInterface>(op))
    return kernel.buildElement(*this, index, scope);
  auto scalar = dyn_cast<ScalarOpInterface>(op);
  if (!scalar) {
    op->emitOpError("is not part of a kernel");
    return {};
  }
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) {
    operands.push_back(element(operand, index));
    if (!operands.back())
      return {};
  }
  Value result = scalar.buildScalar(b, operands);
  if (isa<MulOp>(op) && cast<RankedTensorType>(value.getType()).getNumElements() == 1)
    scalarProducts.insert(result.getDefiningOp());
  return result;
}
