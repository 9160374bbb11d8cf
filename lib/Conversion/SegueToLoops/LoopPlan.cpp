//===- LoopPlan.cpp - which loops a kernel has ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The plan starts from one row and one column loop and walks the region. Where
// an index does not come apart into dimensions, a loop is split and the walk
// starts again; where a `pad` or `concat` has an edge inside a column loop, the
// loop is cut there, so that no element tests for the edge.
//
//===----------------------------------------------------------------------===//

#include "LoopPlan.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

/// A row buffer larger than this is not made: the value is computed again.
constexpr int64_t kRowBufferBytes = 64 << 10;
/// What is worth a row buffer, in the unit of `cost`.
constexpr int64_t kBufferedCost = 10;

static ArrayRef<int64_t> shapeOf(Value value) { return cast<RankedTensorType>(value.getType()).getShape(); }
static int64_t elementsOf(Value value) { return cast<RankedTensorType>(value.getType()).getNumElements(); }

//===----------------------------------------------------------------------===//
// Indices of pad, concat and gather
//===----------------------------------------------------------------------===//

Truth segue::decide(const IndexSpace &space, const Guard &guard) {
  auto [least, greatest] = space.range(guard.index);
  if (greatest < guard.low || least >= guard.high)
    return Truth::No;
  if (least >= guard.low && greatest < guard.high && guard.step == 1)
    return Truth::Yes;
  return Truth::Runtime;
}

Truth segue::decide(const IndexSpace &space, ArrayRef<Guard> guards) {
  Truth all = Truth::Yes;
  for (const Guard &guard : guards) {
    Truth one = decide(space, guard);
    if (one == Truth::No)
      return one;
    if (one == Truth::Runtime)
      all = one;
  }
  return all;
}

static std::optional<SmallVector<GuardedOperand>> concatOperands(IndexSpace &space, ConcatOp op,
                                                                 const IndexExpr &index) {
  // As [outer, along], where an operand takes a piece of `along`.
  ArrayRef<int64_t> shape = op.getType().getShape();
  int64_t outer = 1, inner = 1, dim = op.getDim();
  for (auto [at, extent] : llvm::enumerate(shape))
    (static_cast<int64_t>(at) < dim ? outer : inner) *= static_cast<int64_t>(at) == dim ? 1 : extent;
  auto indices = space.delinearize(index, {outer, shape[dim] * inner});
  if (!indices)
    return std::nullopt;
  SmallVector<GuardedOperand> operands;
  int64_t start = 0;
  for (Value input : op.getInputs()) {
    int64_t length = shapeOf(input)[dim] * inner;
    GuardedOperand operand{input, (*indices)[1], {}};
    operand.index.offset -= start;
    operand.index.add((*indices)[0], length);
    operand.guards.push_back({(*indices)[1], start, start + length, 1});
    operands.push_back(std::move(operand));
    start += length;
  }
  return operands;
}

static std::optional<SmallVector<GuardedOperand>> padOperands(IndexSpace &space, PadOp op, const IndexExpr &index) {
  // Runs of dimensions: one that is not padded joins the one before it.
  struct Run {
    int64_t extent, low, interior, high;
    int64_t padded() const { return low + extent + (extent - 1) * interior + high; }
  };
  SmallVector<Run> runs;
  for (auto [extent, low, interior, high] :
       llvm::zip_equal(shapeOf(op.getInput()), op.getLow(), op.getInterior(), op.getHigh())) {
    bool isPadded = low != 0 || high != 0 || (interior != 0 && extent > 1);
    if (!runs.empty() && !isPadded && (runs.back().interior == 0 || extent == 1)) {
      Run &before = runs.back();
      before = {before.extent * extent, before.low * extent, before.interior, before.high * extent};
      continue;
    }
    runs.push_back({extent, low, interior, high});
  }
  SmallVector<int64_t> padded;
  for (const Run &run : runs)
    padded.push_back(run.padded());
  auto indices = space.delinearize(index, padded);
  if (!indices)
    return std::nullopt;
  GuardedOperand operand{op.getInput(), {}, {}};
  int64_t stride = 1;
  for (size_t at = runs.size(); at-- > 0;) {
    const Run &run = runs[at];
    int64_t step = run.interior + 1;
    IndexExpr inner = (*indices)[at];
    if (run.padded() != run.extent)
      operand.guards.push_back({inner, run.low, run.low + (run.extent - 1) * step + 1, step});
    inner.offset -= run.low;
    operand.index.add(step == 1 ? inner : space.quotient(inner, step), stride);
    stride *= run.extent;
  }
  return SmallVector<GuardedOperand>{operand};
}

std::optional<SmallVector<GuardedOperand>> segue::guardedOperands(IndexSpace &space, Operation *op,
                                                                  const IndexExpr &index) {
  if (auto concat = dyn_cast<ConcatOp>(op))
    return concatOperands(space, concat, index);
  return padOperands(space, cast<PadOp>(op), index);
}

std::optional<IndexExpr> segue::iotaIndex(IndexSpace &space, IotaOp op, const IndexExpr &index) {
  ArrayRef<int64_t> shape = op.getType().getShape();
  int64_t outer = 1, inner = 1, dim = op.getDim();
  for (auto [at, extent] : llvm::enumerate(shape))
    (static_cast<int64_t>(at) < dim ? outer : inner) *= static_cast<int64_t>(at) == dim ? 1 : extent;
  auto indices = space.delinearize(index, {outer, shape[dim], inner});
  return indices ? std::optional<IndexExpr>((*indices)[1]) : std::nullopt;
}

std::optional<GatherIndex> segue::gatherIndex(IndexSpace &space, GatherOp op, const IndexExpr &index) {
  int64_t rows = elementsOf(op.getIndices()), tableRows = shapeOf(op.getTable()).front();
  int64_t rowElements = elementsOf(op.getTable()) / tableRows;
  auto parts = space.delinearize(index, {rows, rowElements});
  if (!parts)
    return std::nullopt;
  return GatherIndex{(*parts)[0], (*parts)[1], tableRows, rowElements};
}

//===----------------------------------------------------------------------===//
// Facts about the region that no loop changes
//===----------------------------------------------------------------------===//

LogicalResult LoopPlan::classify(FusedOp fused) {
  Block &body = *fused.getBody().begin();
  for (Operation &op : body.without_terminator()) {
    int64_t own = 0;
    bool reduces = false;
    for (Value operand : op.getOperands()) {
      own = std::max(own, level.lookup(operand));
      reduces |= dependsOnReduce.contains(operand);
    }
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      bool alongRow = shape.kind == KernelShape::Kind::Rows && ReduceExtents::of(reduce)->inner == 1;
      (alongRow ? rowReduces : columnReduces).push_back(reduce);
      own += alongRow || shape.kind == KernelShape::Kind::Columns;
      reduces = true;
    }
    for (Value result : op.getResults()) {
      level[result] = own;
      if (reduces)
        dependsOnReduce.insert(result);
    }
    levels = std::max(levels, own + 1);
  }
  for (auto [at, value] : llvm::enumerate(body.getTerminator()->getOperands())) {
    int64_t elements = elementsOf(value);
    auto reduce = value.getDefiningOp<ReduceOp>();
    if (shape.kind == KernelShape::Kind::Scatter) {
      if (!value.getDefiningOp<ScatterAddOp>())
        return fused.emitOpError("result ") << at << " is not that of the scatter_add";
      results.push_back(ResultKind::Element);
    } else if (reduce && shape.chunks && llvm::is_contained(columnReduces, reduce)) {
      results.push_back(ResultKind::Chunk);
    } else if (shape.kind == KernelShape::Kind::Columns) {
      if (elements != shape.cols)
        return fused.emitOpError("result ") << at << " has " << elements << " elements, the kernel makes " << shape.cols;
      results.push_back(ResultKind::Element);
    } else if (elements == shape.elements()) {
      results.push_back(ResultKind::Element);
      // What was rounded on its way to memory is not read back.
      if (isa<Float32Type, IntegerType>(getElementTypeOrSelf(value)))
        stored.try_emplace(value, at);
    } else if (elements == shape.rows) {
      results.push_back(ResultKind::Row);
    } else {
      return fused.emitOpError("result ") << at << " has " << elements << " elements; the kernel makes values of "
                                          << shape.elements() << " and of " << shape.rows;
    }
  }
  return success();
}

/// About the instructions for one element of a value, loads included. What is
/// computed once per row costs nothing here.
int64_t LoopPlan::cost(Value value) {
  if (auto known = costs.find(value); known != costs.end())
    return known->second;
  Operation *op = value.getDefiningOp();
  int64_t total = 1;
  if (op && !isa<ConstantOp, ReduceOp>(op) && elementsOf(value) >= shape.elements()) {
    if (isa<ExpOp, Expm1Op, LogOp, Log1pOp, SinOp, CosOp, TanhOp, ErfOp, PowOp>(op))
      total = 20;
    else if (isa<RandomOp>(op))
      total = 100;
    else if (isa<DivOp, SqrtOp, RsqrtOp>(op))
      total = 5;
    else if (IndexSpace::isView(op))
      total = 0;
    for (Value operand : op->getOperands())
      total += cost(operand);
    total = std::min<int64_t>(total, 1000);
  }
  return costs[value] = total;
}

//===----------------------------------------------------------------------===//
// The walk
//===----------------------------------------------------------------------===//

bool LoopPlan::visit(Value value, const IndexExpr &index) {
  Operation *op = value.getDefiningOp();
  if (auto first = firstLevel.find(value);
      op && index == element && first != firstLevel.end() && first->second < currentLevel) {
    // Computed by an earlier level: read back, kept, or computed again.
    if (stored.contains(value) && level.lookup(value) < currentLevel)
      return true;
    bool fits = shape.cols * 4 <= kRowBufferBytes;
    if (fits && cost(value) > kBufferedCost && !IndexSpace::isView(op)) {
      buffered.insert({value, first->second});
      return true;
    }
  }
  if (!seen.insert({value.getAsOpaquePointer(), index}).second)
    return true;

  if (index == element)
    firstLevel.try_emplace(value, currentLevel);
  if (!op) {
    Access &access = accesses[value];
    access.indices.insert(index);
    access.lastLevel = std::max(access.lastLevel, currentLevel);
    return true;
  }
  if (isa<ConstantOp, ReduceOp>(op))
    return true;
  if (IndexSpace::isView(op)) {
    auto operand = space.throughView(op, index);
    return operand && visit(op->getOperand(0), *operand);
  }
  if (auto iota = dyn_cast<IotaOp>(op))
    return iotaIndex(space, iota, index).has_value();
  if (isa<RandomOp>(op))
    return visit(op->getOperand(0), {}) && visit(op->getOperand(1), {});
  if (auto gather = dyn_cast<GatherOp>(op)) {
    auto parts = gatherIndex(space, gather, index);
    if (!parts || !visit(gather.getIndices(), parts->indices))
      return false;
    IndexExpr table = parts->rest;
    table.add(space.addVariable(parts->tableRows, /*splittable=*/false), parts->rowElements);
    return visit(gather.getTable(), table);
  }
  if (isa<PadOp, ConcatOp>(op)) {
    auto operands = guardedOperands(space, op, index);
    if (!operands)
      return false;
    for (const GuardedOperand &operand : *operands)
      for (const Guard &guard : operand.guards) {
        if (decide(space, guard) != Truth::Runtime || guard.index.terms.size() != 1 || guard.step != 1)
          continue;
        auto [variable, coefficient] = guard.index.terms.front();
        bool isColumn = llvm::any_of(columnLoops, [&, v = variable](const Loop &loop) { return loop.variable == v; });
        if (flat || !isColumn || coefficient != 1)
          continue;
        for (int64_t edge : {guard.low - guard.index.offset, guard.high - guard.index.offset})
          if (edge > space[variable].low && edge < space[variable].high)
            wantedBounds[variable].insert(edge);
      }
    if (!wantedBounds.empty())
      return false;
    for (const GuardedOperand &operand : *operands)
      if (decide(space, operand.guards) != Truth::No && !visit(operand.value, operand.index))
        return false;
    return true;
  }
  for (Value operand : op->getOperands())
    if (!visit(operand, index))
      return false;
  return true;
}

bool LoopPlan::walkRoots(Block &body) {
  if (shape.kind == KernelShape::Kind::Scatter) {
    for (Operation &op : body)
      if (auto scatter = dyn_cast<ScatterAddOp>(op))
        if (!visit(scatter.getUpdates(), element) || !visit(scatter.getIndices(), row))
          return false;
    return true;
  }
  if (shape.kind == KernelShape::Kind::Columns) {
    for (ReduceOp reduce : columnReduces)
      if (!visit(reduce.getInput(), element))
        return false;
    return llvm::all_of(body.getTerminator()->getOperands(), [&](Value value) { return visit(value, column); });
  }
  firstLevel.clear();
  for (currentLevel = 0; currentLevel < levels; ++currentLevel) {
    seen.clear();
    auto visitRoot = [&](Value value) { return level.lookup(value) != currentLevel || visit(value, element); };
    for (ReduceOp reduce : rowReduces)
      if (!visitRoot(reduce.getInput()))
        return false;
    for (ReduceOp reduce : columnReduces)
      if (!visitRoot(reduce.getInput()))
        return false;
    for (auto [value, kind] : llvm::zip_equal(body.getTerminator()->getOperands(), results))
      if (kind == ResultKind::Element && !visitRoot(value))
        return false;
  }
  currentLevel = levels;
  for (auto [value, kind] : llvm::zip_equal(body.getTerminator()->getOperands(), results))
    if (kind == ResultKind::Row && !visit(value, row))
      return false;
  return true;
}

bool LoopPlan::walkSegments(Block &body, size_t loop) {
  if (loop == columnLoops.size()) {
    seen.clear();
    return walkRoots(body);
  }
  // By copy: the walk may not change the loops, but stays readable so.
  Loop segments = columnLoops[loop];
  bool ok = true;
  for (size_t at = 0; ok && at + 1 < segments.bounds.size(); ++at) {
    space.restrict(segments.variable, segments.bounds[at], segments.bounds[at + 1]);
    ok = walkSegments(body, loop + 1);
  }
  space.restrict(segments.variable, 0, segments.extent);
  return ok;
}

void LoopPlan::makeSpace(ArrayRef<int64_t> rowExtents, ArrayRef<int64_t> columnExtents) {
  space = IndexSpace();
  rowLoops.clear();
  columnLoops.clear();
  row = element = column = IndexExpr();
  bool rowsLoop = shape.kind != KernelShape::Kind::Map && shape.kind != KernelShape::Kind::Columns;
  for (int64_t extent : rowExtents)
    if (extent != 1)
      rowLoops.push_back({space.addVariable(extent, rowsLoop), extent, {}});
  for (int64_t extent : columnExtents)
    if (extent != 1) {
      // Only whole rows can be split in loops.
      bool whole = flat || shape.kind == KernelShape::Kind::Rows;
      columnLoops.push_back({space.addVariable(extent, whole), extent, {0, extent}});
    }
  int64_t stride = 1;
  for (Loop &loop : llvm::reverse(columnLoops)) {
    column.add(loop.variable, stride);
    stride *= loop.extent;
  }
  element = column;
  stride = 1;
  for (Loop &loop : llvm::reverse(rowLoops)) {
    row.add(loop.variable, stride);
    element.add(loop.variable, stride * shape.cols);
    stride *= loop.extent;
  }
}

/// How many columns a row gets when a Map falls apart in rows of `inner`: some
/// hundreds, to pay for starting a row.
static int64_t columnsOfMap(int64_t elements, int64_t inner) {
  int64_t columns = inner;
  for (int64_t factor = 2; columns < 256 && factor <= 256; ++factor)
    if ((elements / inner) % factor == 0 && inner < 64 && inner * factor <= 1024)
      columns = inner * factor;
  return columns;
}

FailureOr<LoopPlan> LoopPlan::make(FusedOp fused) {
  Block &body = *fused.getBody().begin();
  FailureOr<KernelShape> shape = KernelShape::infer(body);
  if (failed(shape))
    return failure();
  LoopPlan plan;
  plan.shape = *shape;
  plan.flat = shape->kind == KernelShape::Kind::Map;
  if (failed(plan.classify(fused)))
    return failure();

  SmallVector<int64_t> rowExtents = {plan.shape.rows}, columnExtents = {plan.shape.cols};
  std::map<size_t, std::set<int64_t>> bounds;
  // Each round splits or cuts a loop; there are few divisors and edges.
  for (int round = 0; round < 256; ++round) {
    plan.makeSpace(rowExtents, columnExtents);
    for (auto &[at, edges] : bounds) {
      auto &loop = plan.columnLoops[at];
      loop.bounds.assign(1, 0);
      loop.bounds.append(edges.begin(), edges.end());
      loop.bounds.push_back(loop.extent);
    }
    plan.buffered.clear();
    plan.accesses.clear();
    plan.wantedBounds.clear();
    plan.currentLevel = 0;
    plan.firstLevel.clear();
    if (plan.walkSegments(body, 0))
      return plan;

    if (!plan.space.wantedSplit) {
      for (auto &[variable, edges] : plan.wantedBounds)
        for (auto [at, loop] : llvm::enumerate(plan.columnLoops))
          if (loop.variable == variable)
            bounds[at].insert(edges.begin(), edges.end());
      continue;
    }
    IndexSpace::Split split = *plan.space.wantedSplit;
    if (plan.flat) {
      // The elements have structure: rows of them become the range.
      plan.flat = false;
      plan.shape.kind = KernelShape::Kind::Rows;
      int64_t elements = plan.shape.cols;
      plan.shape.cols = columnsOfMap(elements, split.factor);
      plan.shape.rows = elements / plan.shape.cols;
      rowExtents = {plan.shape.rows};
      columnExtents = {plan.shape.cols};
      plan.costs.clear();
      continue;
    }
    // Cuts refer to loops that are about to change; they are found again.
    bounds.clear();
    auto replace = [&](ArrayRef<Loop> loops, SmallVector<int64_t> &extents) {
      for (auto [at, loop] : llvm::enumerate(loops)) {
        if (loop.variable != split.variable)
          continue;
        SmallVector<int64_t> next;
        for (auto [other, entry] : llvm::enumerate(loops)) {
          if (other == at)
            next.append({entry.extent / split.factor, split.factor});
          else
            next.push_back(entry.extent);
        }
        extents = next;
        return;
      }
    };
    replace(plan.rowLoops, rowExtents);
    replace(plan.columnLoops, columnExtents);
  }
  return fused.emitOpError("loops of the kernel could not be settled");
}
