//===- PlanSaved.cpp - chooses what is saved and what is recomputed -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Joins @forward and @backward (SavedValues.h), writes what backward needs as
// a SaveGraph, lets a minimum cut choose, and separates them again.
//
//===----------------------------------------------------------------------===//

#include "SavedValues.h"
#include "TrainingSignature.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "segue/Dialect/Segue/Transforms/SaveGraph.h"
#include "llvm/Support/DebugLog.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEPLANSAVED
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-plan-saved"

using namespace mlir;
using namespace segue;

/// Returns what an argument costs to keep. Parameters are owned by the
/// session and integer inputs come from the batch: both are there in backward.
/// A float input is an activation that would be freed otherwise.
static int64_t argumentBytes(func::FuncOp forward, BlockArgument argument) {
  bool isActivation =
      argumentRole(forward, argument.getArgNumber()) == Role::Input && isFloatTensor(argument.getType());
  return isActivation ? tensorBytes(argument.getType()) : 0;
}

namespace {
/// The SaveGraph of what leads to the values that backward needs.
struct ForwardGraph {
  ForwardGraph(func::FuncOp forward, const ValueSet &needed, function_ref<bool(Operation *)> mayRecompute) {
    for (Operation *op : recomputationOf(needed, [](Value) { return false; }).ops) {
      SaveGraph::Op node;
      node.flops = flopsOf(op);
      node.mayRecompute = mayRecompute(op);
      for (Value operand : op->getOperands())
        node.operands.push_back(indexOf(forward, operand));
      graph.ops.push_back(std::move(node));
      for (Value result : op->getResults()) {
        unsigned index = indexOf(forward, result);
        graph.values[index].producer = graph.ops.size() - 1;
      }
    }
    for (Value value : needed)
      graph.values[indexOf(forward, value)].needed = true;
  }

  unsigned indexOf(func::FuncOp forward, Value value) {
    auto [entry, isNew] = indices.try_emplace(value, values.size());
    if (isNew) {
      auto argument = dyn_cast<BlockArgument>(value);
      values.push_back(value);
      graph.values.push_back({argument ? argumentBytes(forward, argument) : tensorBytes(value.getType())});
    }
    return entry->second;
  }

  SaveGraph graph;
  SmallVector<Value> values;
  DenseMap<Value, unsigned> indices;
};
} // namespace

static int64_t totalBytes(ArrayRef<Value> values) {
  int64_t bytes = 0;
  for (Value value : values)
    bytes += tensorBytes(value.getType());
  return bytes;
}

static int64_t totalFlops(ArrayRef<Operation *> ops) {
  int64_t flops = 0;
  for (Operation *op : ops)
    flops += flopsOf(op);
  return flops;
}

/// Returns the bytes that these ops read and write, one command each; views move nothing.
static int64_t totalTraffic(ArrayRef<Operation *> ops) {
  int64_t bytes = 0;
  for (Operation *op : ops) {
    if (remakeOf(op) == Remake::Always)
      continue;
    for (Value value : llvm::concat<Value>(SmallVector<Value>(op->getOperands()), SmallVector<Value>(op->getResults())))
      bytes += tensorBytes(value.getType());
  }
  return bytes;
}

/// Writes on each saved result what it would cost to make it from the others.
static void annotateSavedResults(func::FuncOp forward, const Separation &separation) {
  Builder b(forward.getContext());
  DenseSet<Value> saved(separation.saved.begin(), separation.saved.end());
  for (auto [k, value] : llvm::enumerate(separation.saved)) {
    unsigned index = separation.firstSaved + k;
    ValueSet target;
    target.insert(value);
    auto isOther = [&, self = value](Value v) { return v != self && saved.contains(v); };
    SmallVector<Operation *> region = recomputationOf(target, isOther).ops;
    int64_t flops = totalFlops(region);
    forward.setResultAttr(index, kRecomputeFlopsAttr, b.getI64IntegerAttr(flops));
    forward.setResultAttr(index, kRecomputeBytesAttr, b.getI64IntegerAttr(totalTraffic(region)));
    if (Attribute block = value.getDefiningOp()->getAttr(SegueDialect::kBlockAttr))
      forward.setResultAttr(index, SegueDialect::kBlockAttr, block);
    LDBG() << "saves " << resultName(forward, index) << ": " << value.getType() << " of "
           << value.getDefiningOp()->getName() << ", " << flops << " flops to recompute";
  }
}

namespace {
struct PlanSaved : segue::impl::SeguePlanSavedBase<PlanSaved> {
  using SeguePlanSavedBase::SeguePlanSavedBase;

  void runOnOperation() override {
    if (failed(plan(getOperation())))
      signalPassFailure();
  }

  bool mayRecompute(Operation *op) const {
    if (recompute == Recompute::None)
      return remakeOf(op) == Remake::Always;
    if (maxRecomputeFlops > 0 && flopsOf(op) > maxRecomputeFlops)
      return false;
    return recompute == Recompute::All ? isMemoryEffectFree(op) : remakeOf(op) != Remake::OnDemand;
  }

  LogicalResult plan(ModuleOp module) {
    if (flopsPerByte < 1 || maxRecomputeFlops < 0)
      return module.emitError() << "`segue-plan-saved` needs `flops-per-byte` of at least 1 and "
                                   "`max-recompute-flops` of at least 0, but was given "
                                << int64_t(flopsPerByte) << " and " << int64_t(maxRecomputeFlops);
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    FailureOr<func::FuncOp> backward = requireFunction(module, SegueDialect::kBackward, getArgument());
    if (failed(forward) || failed(backward))
      return failure();
    FailureOr<ValueSet> savedBefore = join(*forward, *backward);
    if (failed(savedBefore))
      return failure();

    ForwardGraph graph(*forward, neededValues(*forward, *backward), [&](Operation *op) { return mayRecompute(op); });
    // Bytes alone decide for `all`: flops only choose between equals.
    int64_t weight = recompute == Recompute::All ? int64_t(1) << 20 : int64_t(flopsPerByte);
    std::vector<bool> kept = chooseSaved(graph.graph, weight);
    ValueSet saved;
    for (auto [value, keep] : llvm::zip_equal(graph.values, kept))
      if (keep && !isa<BlockArgument>(value))
        saved.insert(value);

    Separation separation = separate(*forward, *backward, saved);
    annotateSavedResults(*forward, separation);
    bytesBefore += totalBytes(savedBefore->getArrayRef());
    bytesAfter += totalBytes(separation.saved);
    opsRecomputed += separation.cloned.size();
    flopsRecomputed += totalFlops(separation.cloned);
    return success();
  }
};
} // namespace
