//===- LoopBuilder.cpp - the loops of a kernel ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A row is made in levels, one loop over the columns each: a level computes
// what depends on the reductions of the levels before it, stores results as
// soon as they are known, and accumulates its own reductions. In a loop body all
// elements are computed before the first one is stored, so that a result may
// take the place of an operand; which ones may is written on the function, and
// the loops over elements are marked as parallel, so that whoever compiles them
// keeps that order in an iteration and is free across iterations.
//
//===----------------------------------------------------------------------===//

#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include <limits>

using namespace mlir;
using namespace segue;

/// The number of elements that one task of a kernel should have at least.
constexpr int64_t kTaskElements = 4096;
/// The number of columns that a block of a column kernel holds, and the least of a task.
constexpr int64_t kBlockColumns = 256, kTaskColumns = 64;

/// The elements of a row that are added up one behind the other, in vectors. Sums of so many are added up in
/// turn: where one sum takes millions of elements, each of them is rounded to a digit of that sum, and the
/// variance of large values is the square of that error.
constexpr int64_t kSummedInOne = 4096;

static RankedTensorType tensorType(Value value) { return cast<RankedTensorType>(value.getType()); }

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

Value KernelBuilder::identity(ReduceKind kind, Type type, OpBuilder &b) {
  if (isa<FloatType>(type)) {
    double infinity = std::numeric_limits<double>::infinity();
    double value = kind == ReduceKind::Max ? -infinity : kind == ReduceKind::Min ? infinity : 0.0;
    return arith::ConstantOp::create(b, loc, b.getFloatAttr(type, value));
  }
  unsigned width = cast<IntegerType>(type).getWidth();
  APInt value = kind == ReduceKind::Max   ? APInt::getSignedMinValue(width)
                : kind == ReduceKind::Min ? APInt::getSignedMaxValue(width)
                                          : APInt::getZero(width);
  return arith::ConstantOp::create(b, loc, b.getIntegerAttr(type, value));
}

Value KernelBuilder::combine(ReduceKind kind, Value sum, Value value, OpBuilder &b) {
  bool isFloat = isa<FloatType>(value.getType());
  if (kind == ReduceKind::Max)
    return isFloat ? arith::MaximumFOp::create(b, loc, sum, value).getResult()
                   : arith::MaxSIOp::create(b, loc, sum, value).getResult();
  if (kind == ReduceKind::Min)
    return isFloat ? arith::MinimumFOp::create(b, loc, sum, value).getResult()
                   : arith::MinSIOp::create(b, loc, sum, value).getResult();
  if (!isFloat)
    return arith::AddIOp::create(b, loc, sum, value);
  // A sum has no order of its own: that of vectors is as good.
  auto anyOrder = arith::FastMathFlagsAttr::get(b.getContext(), arith::FastMathFlags::reassoc);
  return arith::AddFOp::create(b, loc, sum, value, anyOrder);
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

SmallVector<Value> KernelBuilder::loop(Value low, Value high, int64_t step, ValueRange initial,
                                       function_ref<SmallVector<Value>(Value, ValueRange)> write, bool parallel) {
  Value by = constantIndex(step);
  OpBuilder &outer = top().builder;
  auto loop = scf::ForOp::create(outer, loc, low, high, by, initial);
  if (parallel)
    loop->setAttr(kParallelAttr, outer.getUnitAttr());
  outer.setInsertionPoint(loop);
  Scope inner(initial.empty() ? OpBuilder(loop.getBody()->getTerminator()) : OpBuilder::atBlockEnd(loop.getBody()));
  scopes.push_back(&inner);
  SmallVector<Value> values = write(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!initial.empty() && values.size() == initial.size())
    scf::YieldOp::create(inner.builder, loc, values);
  scopes.pop_back();
  outer.setInsertionPointAfter(loop);
  return SmallVector<Value>(loop.getResults());
}

SmallVector<Value> KernelBuilder::columnLoop(size_t at, ValueRange initial,
                                             function_ref<SmallVector<Value>(ValueRange)> write, const Sums *sums) {
  if (at == plan.columnLoops.size())
    return write(initial);
  if (gpu)
    return threadLoop(initial, write);
  const LoopPlan::Loop columns = plan.columnLoops[at];
  // Elements of one iteration, and the iterations that go into one sum.
  int64_t within = 1;
  for (const LoopPlan::Loop &inner : ArrayRef(plan.columnLoops).drop_front(at + 1))
    within *= inner.extent;
  int64_t together = std::max<int64_t>(1, kSummedInOne / within);
  SmallVector<Value> values(initial);
  for (size_t segment = 0; segment + 1 < columns.bounds.size(); ++segment) {
    int64_t low = columns.bounds[segment], high = columns.bounds[segment + 1];
    plan.space.restrict(columns.variable, low, high);
    auto body = [&](Value column, ValueRange carried) {
      define(columns.variable, column);
      return columnLoop(at + 1, carried, write, sums);
    };
    bool isInnermost = at + 1 == plan.columnLoops.size();
    if (!sums || high - low <= together) {
      values = loop(constantIndex(low), constantIndex(high), 1, values, body, /*parallel=*/isInnermost);
      continue;
    }
    auto addTogether = [&](Value first, ValueRange before) {
      Value last = arith::AddIOp::create(top().builder, loc, first, constantIndex(together));
      if ((high - low) % together)
        last = arith::MinUIOp::create(top().builder, loc, last, constantIndex(high));
      SmallVector<Value> own = loop(first, last, 1, sums->identities, body, /*parallel=*/isInnermost);
      return failedToBuild ? SmallVector<Value>(before) : sums->join(before, own);
    };
    values = loop(constantIndex(low), constantIndex(high), together, values, addTogether, /*parallel=*/false);
  }
  plan.space.restrict(columns.variable, 0, columns.extent);
  return values;
}

void KernelBuilder::defineColumn(Value column) {
  for (const LoopPlan::Loop &columns : plan.columnLoops)
    define(columns.variable, column);
}

void KernelBuilder::eachLane(function_ref<void()> write) {
  if (!laneBase)
    return write();
  Scope &here = top();
  auto elements = here.elements;
  auto fallbacks = here.fallbacks;
  for (int64_t lane = 0; lane < gpu->lanes; ++lane) {
    here.elements = elements;
    here.fallbacks = fallbacks;
    Value column = lane ? arith::AddIOp::create(here.builder, loc, laneBase, constantIndex(lane)).getResult() : laneBase;
    defineColumn(column);
    write();
  }
  here.elements = elements;
  here.fallbacks = fallbacks;
}

void KernelBuilder::define(unsigned variable, Value value) {
  variableScope[variable] = scopes.size() - 1;
  variableValue[variable] = value;
}

/// Defines the variables that a row index is split in.
void KernelBuilder::defineRow(Value row) {
  rowScope = scopes.size() - 1;
  OpBuilder &b = top().builder;
  for (size_t at = plan.rowLoops.size(); at-- > 0;) {
    const LoopPlan::Loop &loop = plan.rowLoops[at];
    if (at == 0) {
      define(loop.variable, row);
      return;
    }
    Value extent = constantIndex(loop.extent);
    define(loop.variable, arith::RemUIOp::create(b, loc, row, extent));
    row = arith::DivUIOp::create(b, loc, row, extent);
  }
}

//===----------------------------------------------------------------------===//
// Elementwise kernels without structure
//===----------------------------------------------------------------------===//

void KernelBuilder::buildFlat() {
  auto writeElements = [&](Value at, ValueRange) -> SmallVector<Value> {
    if (gpu)
      laneBase = at;
    else
      defineColumn(at);
    SmallVector<std::pair<Value, SmallVector<Value>>> lanes;
    eachLane([&] {
      SmallVector<Value> values;
      for (Value value : body.getTerminator()->getOperands())
        values.push_back(element(value, plan.element));
      if (!failedToBuild)
        lanes.push_back({materialize(plan.element, innermost()), values});
    });
    for (auto &[place, values] : lanes)
      for (auto [result, value] : llvm::enumerate(values))
        store(value, resultArgument(result), place, top().builder);
    return {};
  };
  int64_t step = gpu ? gpu->threads * gpu->lanes : 1;
  loop(begin, end, step, {}, writeElements, /*parallel=*/!gpu);
  laneBase = {};
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

void KernelBuilder::buildLevel(int64_t level, Value chunk) {
  currentLevel = level;
  auto results = body.getTerminator()->getOperands();
  auto isRoot = [&](Value value) { return plan.level.lookup(value) == level; };

  SmallVector<ReduceOp> reduces, chunkReduces;
  llvm::copy_if(plan.rowReduces, std::back_inserter(reduces), [&](ReduceOp op) { return isRoot(op.getInput()); });
  llvm::copy_if(plan.columnReduces, std::back_inserter(chunkReduces), [&](ReduceOp op) { return isRoot(op.getInput()); });
  SmallVector<unsigned> stores;
  for (auto [at, value, kind] : llvm::enumerate(results, plan.results))
    if (kind == LoopPlan::ResultKind::Element && isRoot(value))
      stores.push_back(at);
  SmallVector<Value> kept;
  for (auto [value, from] : plan.buffered)
    if (from == level)
      kept.push_back(value);
  if (reduces.empty() && chunkReduces.empty() && stores.empty() && kept.empty())
    return;

  SmallVector<Value> initial;
  for (ReduceOp reduce : reduces)
    initial.push_back(identity(reduce.getKind(), computeType(elementOf(reduce.getInput())), top().builder));
  auto join = [&](ValueRange sums, ValueRange own) {
    SmallVector<Value> joined;
    for (auto [reduce, sum, value] : llvm::zip_equal(reduces, sums, own))
      joined.push_back(combine(reduce.getKind(), sum, value, top().builder));
    return joined;
  };
  auto addElements = [&](ValueRange carried) -> SmallVector<Value> {
    // All elements of an iteration are computed before the first one is stored.
    struct Lane {
      SmallVector<Value> next, stored, keeping, added;
      Value at, column;
    };
    SmallVector<Lane, 1> lanes;
    eachLane([&] {
      Lane &lane = lanes.emplace_back();
      for (ReduceOp reduce : reduces)
        lane.next.push_back(element(reduce.getInput(), plan.element));
      for (unsigned at : stores)
        lane.stored.push_back(element(results[at], plan.element));
      for (Value value : kept)
        lane.keeping.push_back(element(value, plan.element));
      for (ReduceOp reduce : chunkReduces)
        lane.added.push_back(element(reduce.getInput(), plan.element));
    });
    if (failedToBuild)
      return SmallVector<Value>(carried);

    size_t here = scopes.size() - 1;
    OpBuilder &b = top().builder;
    SmallVector<Value> next(carried);
    for (const Lane &lane : lanes)
      for (auto [sum, reduce, value] : llvm::zip_equal(next, reduces, lane.next))
        sum = combine(reduce.getKind(), sum, value, b);
    size_t number = 0;
    eachLane([&] {
      Lane &lane = lanes[number++];
      if (!stores.empty())
        lane.at = materialize(plan.element, here);
      if (!kept.empty() || !chunkReduces.empty())
        lane.column = materialize(plan.column, here);
    });
    for (Lane &lane : lanes) {
      for (auto [result, value] : llvm::zip_equal(stores, lane.stored))
        store(value, resultArgument(result), lane.at, b);
      for (auto [value, scalar] : llvm::zip_equal(kept, lane.keeping)) {
        if (scalar.getType().isInteger(1))
          scalar = arith::ExtUIOp::create(b, loc, b.getI8Type(), scalar);
        memref::StoreOp::create(b, loc, scalar, buffers.lookup(value), lane.column);
      }
      if (chunkReduces.empty())
        continue;
      Value start = arith::MulIOp::create(b, loc, chunk, constantIndex(plan.shape.cols));
      Value at = arith::AddIOp::create(b, loc, start, lane.column);
      for (auto [reduce, value] : llvm::zip_equal(chunkReduces, lane.added))
        for (auto [result, yielded] : llvm::enumerate(results))
          if (yielded == reduce.getResult()) {
            unsigned argument = resultArgument(result);
            Value sum = load(argument, at, elementOf(yielded), b);
            store(combine(reduce.getKind(), sum, value, b), argument, at, b);
          }
    }
    return next;
  };
  Sums carried{initial, join};
  SmallVector<Value> sums = columnLoop(0, initial, addElements, reduces.empty() ? nullptr : &carried);
  if (gpu)
    for (auto [reduce, sum] : llvm::zip_equal(reduces, sums))
      sum = teamReduce(reduce.getKind(), sum);

  for (auto [reduce, sum] : llvm::zip_equal(reduces, sums)) {
    OpBuilder &b = top().builder;
    if (reduce.getKind() == ReduceKind::Mean) {
      Value count = arith::ConstantOp::create(b, loc, b.getFloatAttr(sum.getType(), static_cast<double>(plan.shape.cols)));
      sum = arith::DivFOp::create(b, loc, sum, count);
    }
    scopes[rowScope]->elements[{reduce.getResult().getAsOpaquePointer(), plan.row}] = sum;
  }
}

void KernelBuilder::buildRow(Value row, Value chunk) {
  defineRow(row);
  for (int64_t level = 0; level < plan.levels && !failedToBuild; ++level)
    buildLevel(level, chunk);
  currentLevel = plan.levels;
  // All are computed before the first is stored, which may lie over an operand of another.
  SmallVector<std::pair<size_t, Value>> scalars;
  for (auto [at, value, kind] : llvm::enumerate(body.getTerminator()->getOperands(), plan.results))
    if (kind == LoopPlan::ResultKind::Row && !failedToBuild)
      scalars.push_back({at, element(value, plan.row)});
  if (failedToBuild || scalars.empty())
    return;
  auto storeAll = [&] {
    for (auto [at, scalar] : scalars)
      store(scalar, resultArgument(at), row, top().builder);
  };
  if (!gpu)
    return storeAll();
  // One thread stores, after all have read what a result may take the place of.
  teamBarrier();
  where(arith::CmpIOp::create(top().builder, loc, arith::CmpIPredicate::eq, member, constantIndex(0)), storeAll);
}

void KernelBuilder::buildRows() {
  for (auto [value, level] : plan.buffered) {
    Type type = memoryType(computeType(elementOf(value)));
    buffers[value] = memref::AllocaOp::create(top().builder, loc, MemRefType::get({plan.shape.cols}, type));
  }
  loop(begin, end, gpu ? gpu->teams() : 1, {}, [&](Value at, ValueRange) -> SmallVector<Value> {
    if (!plan.shape.chunks) {
      buildRow(at, {});
      return {};
    }
    // The sums of a chunk gather in the result itself, a row of it per chunk.
    Value columns = constantIndex(plan.shape.cols);
    Value first = arith::MulIOp::create(top().builder, loc, at, columns);
    auto begun = [&](Value column) {
      OpBuilder &b = top().builder;
      Value to = arith::AddIOp::create(b, loc, first, column);
      for (auto [result, value, kind] : llvm::enumerate(body.getTerminator()->getOperands(), plan.results))
        if (kind == LoopPlan::ResultKind::Chunk) {
          auto reduce = value.getDefiningOp<ReduceOp>();
          store(identity(reduce.getKind(), computeType(elementOf(value)), b), resultArgument(result), to, b);
        }
    };
    // Each thread begins the sums that it adds to.
    if (gpu)
      columnLoop(0, {}, [&](ValueRange) -> SmallVector<Value> {
        eachLane([&] { begun(materialize(plan.column, innermost())); });
        return {};
      });
    else
      loop(constantIndex(0), columns, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
        begun(column);
        return {};
      });
    int64_t rowsOfChunk = plan.shape.rows / plan.shape.chunks;
    Value firstRow = arith::MulIOp::create(top().builder, loc, at, constantIndex(rowsOfChunk));
    loop(constantIndex(0), constantIndex(rowsOfChunk), 1, {}, [&](Value inChunk, ValueRange) -> SmallVector<Value> {
      Value row = arith::AddIOp::create(top().builder, loc, firstRow, inChunk);
      buildRow(row, at);
      return {};
    });
    return {};
  });
}

//===----------------------------------------------------------------------===//
// Columns: blocks of them, so that the sums stay in registers or L1
//===----------------------------------------------------------------------===//

void KernelBuilder::storeColumn(Value column) {
  columnEpilogue = true;
  rowScope = innermost();
  SmallVector<Value> values;
  for (Value value : body.getTerminator()->getOperands())
    values.push_back(element(value, plan.column));
  if (!failedToBuild)
    for (auto [result, value] : llvm::enumerate(values))
      store(value, resultArgument(result), column, top().builder);
}

void KernelBuilder::buildColumns() {
  if (gpu)
    return buildColumnsOnGpu();
  for (ReduceOp reduce : plan.columnReduces) {
    auto type = MemRefType::get({kBlockColumns}, computeType(elementOf(reduce.getInput())));
    columnSums[reduce.getResult()] = memref::AllocaOp::create(top().builder, loc, type);
  }
  loop(begin, end, kBlockColumns, {}, [&](Value start, ValueRange) -> SmallVector<Value> {
    blockStart = start;
    rowScope = scopes.size() - 1;
    Value beyond = arith::AddIOp::create(top().builder, loc, start, constantIndex(kBlockColumns));
    Value stop = arith::MinUIOp::create(top().builder, loc, beyond, end);
    auto inBlock = [&](Value column) -> Value {
      return arith::SubIOp::create(top().builder, loc, column, start);
    };
    loop(start, stop, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
      Value at = inBlock(column);
      OpBuilder &b = top().builder;
      for (ReduceOp reduce : plan.columnReduces)
        memref::StoreOp::create(b, loc, identity(reduce.getKind(), computeType(elementOf(reduce.getInput())), b),
                                columnSums.lookup(reduce.getResult()), at);
      return {};
    });
    loop(constantIndex(0), constantIndex(plan.shape.rows), 1, {}, [&](Value row, ValueRange) -> SmallVector<Value> {
      for (const LoopPlan::Loop &rows : plan.rowLoops)
        define(rows.variable, row);
      loop(start, stop, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
        defineColumn(column);
        for (ReduceOp reduce : plan.columnReduces) {
          Value value = element(reduce.getInput(), plan.element);
          if (failedToBuild)
            return {};
          Value at = inBlock(column), sums = columnSums.lookup(reduce.getResult());
          OpBuilder &b = top().builder;
          Value sum = memref::LoadOp::create(b, loc, sums, at);
          memref::StoreOp::create(b, loc, combine(reduce.getKind(), sum, value, b), sums, at);
        }
        return {};
      });
      return {};
    });
    for (ReduceOp reduce : plan.columnReduces)
      if (reduce.getKind() == ReduceKind::Mean)
        loop(start, stop, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
          Value at = inBlock(column), sums = columnSums.lookup(reduce.getResult());
          OpBuilder &b = top().builder;
          Value sum = memref::LoadOp::create(b, loc, sums, at);
          Value count = arith::ConstantOp::create(b, loc, b.getFloatAttr(sum.getType(), static_cast<double>(plan.shape.rows)));
          memref::StoreOp::create(b, loc, arith::DivFOp::create(b, loc, sum, count).getResult(), sums, at);
          return {};
        });
    loop(start, stop, 1, {}, [&](Value column, ValueRange) -> SmallVector<Value> {
      defineColumn(column);
      storeColumn(column);
      return {};
    });
    return {};
  });
}

//===----------------------------------------------------------------------===//
// Loops that the ops of the region write
//===----------------------------------------------------------------------===//

SmallVector<unsigned> KernelBuilder::resultArgumentsOf(Value value) {
  SmallVector<unsigned> arguments;
  for (auto [result, yielded] : llvm::enumerate(body.getTerminator()->getOperands()))
    if (yielded == value)
      arguments.push_back(resultArgument(result));
  return arguments;
}

void KernelBuilder::buildOwn() {
  for (Operation &op : body)
    if (hasLoops(&op))
      cast<KernelOpInterface>(op).buildOwnLoops(*this);
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

static int64_t bytesOf(RankedTensorType type) {
  return type.getNumElements() * ((type.getElementTypeBitWidth() + 7) / 8);
}

/// Describes range, grain, how many bytes of each buffer a range touches, and which buffers
/// may be one.
void KernelBuilder::describe(LoopKernel &kernel) {
  const KernelShape &shape = plan.shape;
  int64_t rowsOfUnit = 1;
  switch (shape.kind) {
  case KernelShape::Kind::Map:
    kernel.range = shape.elements();
    kernel.grain = kTaskElements;
    break;
  case KernelShape::Kind::Rows:
    kernel.range = shape.chunks ? shape.chunks : shape.rows;
    kernel.grain = shape.chunks ? 1 : std::max<int64_t>(1, kTaskElements / shape.cols);
    rowsOfUnit = shape.chunks ? shape.rows / shape.chunks : 1;
    break;
  case KernelShape::Kind::OwnByRows:
    kernel.range = shape.rows;
    kernel.grain = std::max<int64_t>(1, kTaskElements / shape.cols);
    break;
  case KernelShape::Kind::Columns:
  case KernelShape::Kind::OwnByColumns:
    kernel.range = shape.cols;
    kernel.grain = kTaskColumns;
    break;
  }

  // An operand read at the index of the element alone grows with the range.
  bool grows = plan.flat || shape.kind == KernelShape::Kind::Rows;
  int64_t elementsOfUnit = plan.flat ? 1 : rowsOfUnit * shape.cols;
  SmallVector<int64_t> fixed, perUnit;
  auto add = [&](Value value, int64_t elements) {
    int64_t size = (elementOf(value).getIntOrFloatBitWidth() + 7) / 8;
    fixed.push_back(elements ? 0 : bytesOf(tensorType(value)));
    perUnit.push_back(elements * size);
  };
  for (BlockArgument argument : body.getArguments()) {
    auto access = plan.accesses.find(argument);
    int64_t elements = 0;
    if (grows && access != plan.accesses.end() && access->second.indices.size() == 1) {
      const IndexExpr &index = *access->second.indices.begin();
      if (index == plan.element && tensorType(argument).getNumElements() == shape.elements())
        elements = elementsOfUnit;
      else if (!plan.flat && index == plan.row && tensorType(argument).getNumElements() == shape.rows)
        elements = rowsOfUnit;
    }
    add(argument, elements);
  }
  for (auto [value, kind] : llvm::zip_equal(body.getTerminator()->getOperands(), plan.results))
    add(value, !grows                                  ? 0
               : kind == LoopPlan::ResultKind::Element ? elementsOfUnit
               : kind == LoopPlan::ResultKind::Row     ? rowsOfUnit
                                                       : shape.cols);
  OpBuilder b(function.getContext());
  function->setAttr("segue.outputs", b.getI64IntegerAttr(plan.results.size()));
  function->setAttr("segue.fixed_bytes", b.getDenseI64ArrayAttr(fixed));
  function->setAttr("segue.bytes_per_unit", b.getDenseI64ArrayAttr(perUnit));

  // A result may take the place of an operand that is read at the same element
  // alone, and in no level after the one that stores the result. A number per row
  // may take the place of one, as it is stored after all levels.
  for (BlockArgument argument : body.getArguments())
    for (auto [at, value, kind] : llvm::enumerate(body.getTerminator()->getOperands(), plan.results)) {
      auto access = plan.accesses.find(argument);
      bool isRow = kind == LoopPlan::ResultKind::Row;
      bool fits = grows && (isRow || kind == LoopPlan::ResultKind::Element) && access != plan.accesses.end() &&
                  access->second.indices.size() == 1 &&
                  *access->second.indices.begin() == (isRow ? plan.row : plan.element) &&
                  (isRow || access->second.lastLevel <= plan.level.lookup(value)) &&
                  tensorType(argument).getNumElements() == (isRow ? shape.rows : shape.elements()) &&
                  elementOf(argument) == elementOf(value);
      // Or of one that the loops that make it overwrite.
      fits |= shape.isOwn() && access == plan.accesses.end() && argument.hasOneUse() &&
              argument.use_begin()->getOwner() == value.getDefiningOp() &&
              cast<KernelOpInterface>(value.getDefiningOp()).mayOverwrite(argument.use_begin()->getOperandNumber());
      if (fits)
        kernel.inPlace.append({static_cast<int64_t>(argument.getArgNumber()), static_cast<int64_t>(at)});
    }
  if (!kernel.inPlace.empty())
    function->setAttr(kInPlaceAttr, b.getDenseI64ArrayAttr(kernel.inPlace));
}

/// Sets the flags of float arithmetic. Products and sums may become one instruction, and
/// the sign of a zero is free. Nothing else is: formulas keep the order that makes them
/// exact, as (x - max) - log(sum) does for a large max, a quotient is no product with an
/// inverse that may overflow, and NaN and infinity keep their meaning. Reductions have
/// `reassoc` already.
static void setFastMath(func::FuncOp function) {
  function.walk([&](Operation *op) {
    auto math = dyn_cast<arith::ArithFastMathInterface>(op);
    if (!math || isa<arith::TruncFOp, arith::ExtFOp>(op))
      return;
    auto flags = arith::FastMathFlags::contract | arith::FastMathFlags::nsz;
    if (auto known = math.getFastMathFlagsAttr())
      flags = flags | known.getValue();
    op->setAttr(math.getFastMathAttrName(), arith::FastMathFlagsAttr::get(op->getContext(), flags));
  });
}

/// A product of scalars is rounded. Each kernel that reads the scalar computes it again: a product that
/// one of them reads twice, and so rounds, would become one instruction with a sum in another.
static void roundScalarProducts(const llvm::SmallPtrSetImpl<Operation *> &products) {
  for (Operation *op : products)
    if (auto product = dyn_cast_if_present<arith::MulFOp>(op))
      product.setFastmath(product.getFastmath() & ~arith::FastMathFlags::contract);
}

/// A sum or difference of two products becomes one instruction with one of them, and the other is
/// rounded. LLVM takes either, by the order in which its passes have left them, and that
/// depends on what else is in the kernel: an update of a parameter would have other bits
/// in backward than alone. The choice is made here; a product with several uses is never
/// the one that is not rounded.
static void chooseFusedProducts(func::FuncOp function) {
  function.walk([](Operation *sum) {
    if (!isa<arith::AddFOp, arith::SubFOp>(sum))
      return;
    auto lhs = sum->getOperand(0).getDefiningOp<arith::MulFOp>(), rhs = sum->getOperand(1).getDefiningOp<arith::MulFOp>();
    if (!lhs || !rhs || lhs == rhs)
      return;
    arith::MulFOp rounded = lhs->hasOneUse() ? rhs : lhs;
    rounded.setFastmath(rounded.getFastmath() & ~arith::FastMathFlags::contract);
  });
}

void KernelBuilder::buildShape() {
  switch (plan.shape.kind) {
  case KernelShape::Kind::Map:
    return buildFlat();
  case KernelShape::Kind::Rows:
    return buildRows();
  case KernelShape::Kind::Columns:
    return buildColumns();
  case KernelShape::Kind::OwnByRows:
  case KernelShape::Kind::OwnByColumns:
    return buildOwn();
  }
}

FailureOr<LoopKernel> KernelBuilder::build(StringRef name, OpBuilder &builder) {
  auto buffer = [](Value value) -> Type { return MemRefType::get({ShapedType::kDynamic}, memoryType(elementOf(value))); };
  SmallVector<Type> types, results;
  for (Value value : body.getArguments())
    types.push_back(buffer(value));
  for (Value value : body.getTerminator()->getOperands())
    types.push_back(buffer(value));
  if (gpu) {
    types.push_back(MemRefType::get({ShapedType::kDynamic}, builder.getI64Type()));
  } else {
    types.append(2, builder.getIndexType());
    results.push_back(builder.getI64Type());
  }
  function = func::FuncOp::create(builder, loc, name, builder.getFunctionType(types, results));
  Block *entry = function.addEntryBlock();

  // Constants and allocations go to the front, before what is hoisted.
  Scope top(OpBuilder::atBlockEnd(entry));
  scopes.push_back(&top);
  if (gpu) {
    beginOnGpu();
  } else {
    begin = entry->getArgument(types.size() - 2);
    end = entry->getArgument(types.size() - 1);
  }
  buildShape();
  if (gpu) {
    endOnGpu();
  } else {
    Value code;
    if (status)
      code = memref::LoadOp::create(top.builder, loc, status, constantIndex(0));
    else
      code = arith::ConstantOp::create(top.builder, loc, builder.getI64IntegerAttr(0));
    func::ReturnOp::create(top.builder, loc, code);
  }
  scopes.pop_back();
  if (failedToBuild) {
    function.erase();
    return fused.emitOpError("has no loops: an op in it is used at an index that its kernel does not compute");
  }
  setFastMath(function);
  roundScalarProducts(scalarProducts);
  chooseFusedProducts(function);
  LoopKernel kernel;
  kernel.function = function;
  describe(kernel);
  return kernel;
}

FailureOr<LoopKernel> segue::buildLoops(FusedOp fused, StringRef name, OpBuilder &builder) {
  FailureOr<LoopPlan> plan = LoopPlan::make(fused);
  if (failed(plan))
    return failure();
  return KernelBuilder(fused, std::move(*plan)).build(name, builder);
}

FailureOr<LoopKernel> segue::buildGpuLoops(FusedOp fused, StringRef name, OpBuilder &builder) {
  FailureOr<LoopPlan> plan = LoopPlan::make(fused, LoopPlan::Form::Threads);
  if (failed(plan))
    return failure();
  GpuSchedule schedule = GpuSchedule::of(fused, *plan);
  return KernelBuilder(fused, std::move(*plan), schedule).build(name, builder);
}
