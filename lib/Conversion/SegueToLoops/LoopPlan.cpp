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
/// A value of this cost, in the unit of `cost`, is worth a row buffer.
constexpr int64_t kBufferedCost = 10;

static int64_t elementsOf(Value value) { return cast<RankedTensorType>(value.getType()).getNumElements(); }

bool segue::readsOf(Operation *op, IndexSpace &space, const IndexExpr &index, SmallVectorImpl<KernelRead> &reads) {
  if (auto kernel = dyn_cast<KernelOpInterface>(op))
    return kernel.getKernelReads(space, index, reads);
  for (Value operand : op->getOperands())
    reads.push_back({operand, index, {}});
  return true;
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
    if (shape.isOwn()) {
      if (!value.getDefiningOp() || !hasLoops(value.getDefiningOp()))
        return fused.emitOpError("result ") << at << " is not made by the loops of the kernel";
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
      if (Type element = getElementTypeOrSelf(value); element == computeType(element))
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

/// Returns about the number of instructions for one element of a value, loads included.
/// Work that is done once per row costs nothing here.
int64_t LoopPlan::cost(Value value) {
  if (auto known = costs.find(value); known != costs.end())
    return known->second;
  Operation *op = value.getDefiningOp();
  int64_t total = 1;
  if (op && op->getNumOperands() && !hasLoops(op) && elementsOf(value) >= shape.elements()) {
    total = elementCostOf(op);
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
    bool fits = form == Form::Nested && shape.cols * 4 <= kRowBufferBytes;
    if (fits && cost(value) > kBufferedCost && !isView(op)) {
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
  // A reduction is a root of its own.
  if (hasLoops(op))
    return true;
  SmallVector<KernelRead> reads;
  if (!readsOf(op, space, index, reads))
    return false;
  for (const KernelRead &read : reads)
    for (const Guard &guard : read.guards) {
      if (decide(space, guard) != Truth::Runtime || guard.index.terms.size() != 1 || guard.step != 1)
        continue;
      auto [variable, coefficient] = guard.index.terms.front();
      bool isColumn = llvm::any_of(columnLoops, [&, v = variable](const Loop &loop) { return loop.variable == v; });
      if (form == Form::Threads || flat || !isColumn || coefficient < 1)
        continue;
      if (coefficient != 1 && columnLoops.back().variable != variable)
        continue; // a test before the innermost loop (PadOp)
      for (int64_t distance : {guard.low - guard.index.offset, guard.high - guard.index.offset})
        if (int64_t edge = llvm::divideCeilSigned(distance, coefficient);
            edge > space[variable].low && edge < space[variable].high)
          wantedBounds[variable].insert(edge);
    }
  if (!wantedBounds.empty())
    return false;
  for (const KernelRead &read : reads)
    if (decide(space, read.guards) != Truth::No && !visit(read.value, read.index))
      return false;
  return true;
}

bool LoopPlan::walkRoots(Block &body) {
  if (shape.isOwn()) {
    for (Operation &op : body)
      if (hasLoops(&op))
        for (OpOperand &operand : op.getOpOperands()) {
          auto access = cast<KernelOpInterface>(op).getOperandAccess(operand.getOperandNumber());
          // The loops themselves read an operand that they find by an index, from an argument.
          if (access == OperandAccess::Found)
            continue;
          if (!visit(operand.get(), access == OperandAccess::Row ? row : element))
            return false;
        }
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
  // The segments are a copy: the walk may not change the loops, but stays readable so.
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
  bool rowsLoop = form == Form::Nested && shape.kind != KernelShape::Kind::Map && shape.kind != KernelShape::Kind::Columns;
  for (int64_t extent : rowExtents)
    if (extent != 1)
      rowLoops.push_back({space.addVariable(extent, rowsLoop), extent, {}});
  for (int64_t extent : columnExtents)
    if (extent != 1) {
      // Only whole rows can be split in loops.
      bool whole = form == Form::Nested && (flat || shape.kind == KernelShape::Kind::Rows);
      columnLoops.push_back({space.addVariable(extent, whole), extent, {0, extent}});
    }
  int64_t stride = 1;
  for (Loop &loop : llvm::reverse(columnLoops)) {
    column.add(loop.variable, stride);
    stride *= loop.extent;
  }
  // Rows may lie side by side, `inner` of them.
  element.add(column, shape.inner);
  stride = 1;
  for (Loop &loop : llvm::reverse(rowLoops)) {
    row.add(loop.variable, stride);
    element.add(loop.variable, stride < shape.inner ? stride : stride * shape.cols);
    stride *= loop.extent;
  }
}

/// Returns true if the loops reach every element: nobody writes those that they leave out.
bool LoopPlan::coversAll() const {
  auto product = [](ArrayRef<Loop> loops) {
    int64_t elements = 1;
    for (const Loop &loop : loops)
      elements *= loop.extent;
    return elements;
  };
  return product(rowLoops) == shape.rows && product(columnLoops) == shape.cols;
}

/// Returns the number of columns of a row when a Map falls apart in rows of `inner`: some
/// hundreds, to pay for starting a row.
static int64_t columnsOfMap(int64_t elements, int64_t inner) {
  int64_t columns = inner;
  for (int64_t factor = 2; columns < 256 && factor <= 256; ++factor)
    if ((elements / inner) % factor == 0 && inner < 64 && inner * factor <= 1024)
      columns = inner * factor;
  return columns;
}

FailureOr<LoopPlan> LoopPlan::make(FusedOp fused, Form form) {
  Block &body = *fused.getBody().begin();
  FailureOr<KernelShape> shape = inferKernelShape(body);
  if (failed(shape))
    return failure();
  LoopPlan plan;
  plan.form = form;
  plan.shape = *shape;
  plan.flat = shape->kind == KernelShape::Kind::Map;
  if (failed(plan.classify(fused)))
    return failure();

  SmallVector<int64_t> rowExtents = {plan.shape.rows / plan.shape.inner, plan.shape.inner};
  SmallVector<int64_t> columnExtents = {plan.shape.cols};
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
    if (plan.walkSegments(body, 0)) {
      if (!plan.coversAll())
        return fused.emitOpError("loops of the kernel leave elements out");
      return plan;
    }

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
