//===- FormKernels.cpp - fuses primitives into kernel regions -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// First puts the block in form (biases into matmuls, reductions that kernels can
// do), then decides which ops share a kernel (KernelClusters), then writes the
// block anew, kernel by kernel, in an order that the decision made possible.
//
//===----------------------------------------------------------------------===//

#include "EmptyTensors.h"
#include "KernelClusters.h"
#include "ReductionForms.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace segue;

namespace segue {
#define GEN_PASS_DEF_SEGUEFORMKERNELS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

/// Rewrites dot_general + broadcast(bias) -> dot_general with that bias.
static int64_t foldBiases(func::FuncOp function) {
  SmallVector<AddOp> adds;
  function.walk([&](AddOp add) { adds.push_back(add); });
  int64_t folded = 0;
  for (AddOp add : adds) {
    for (bool swapped : {false, true}) {
      auto dot = add->getOperand(swapped).getDefiningOp<DotGeneralOp>();
      auto broadcast = add->getOperand(!swapped).getDefiningOp<BroadcastOp>();
      if (!dot || !broadcast || dot.getBias() || !dot->hasOneUse() || dot->getBlock() != add->getBlock())
        continue;
      RankedTensorType type = dot.getType(), bias = broadcast.getInput().getType();
      bool alongLast = bias.getRank() == 1 && broadcast.getDims().front() == type.getRank() - 1 &&
                       bias.getDimSize(0) == type.getShape().back();
      if (!alongLast || bias.getElementType() != type.getElementType())
        continue;
      // The bias may come after the matmul.
      dot->moveBefore(add);
      dot.getBiasMutable().assign(broadcast.getInput());
      add.replaceAllUsesWith(dot.getResult());
      add.erase();
      if (broadcast->use_empty())
        broadcast.erase();
      ++folded;
      break;
    }
  }
  return folded;
}

namespace {

/// Writes the block anew.
class Rewriter {
public:
  Rewriter(Block &block, const KernelClusters &clusters) : block(block), clusters(clusters) {}

  int64_t run(ArrayRef<KernelClusters::Cluster> order) {
    int64_t kernels = 0;
    for (const KernelClusters::Cluster &cluster : order)
      for (Operation *op : cluster.ops)
        if (!cluster.isBarrier)
          inKernel.insert(op);
    for (const KernelClusters::Cluster &cluster : order) {
      if (cluster.isBarrier) {
        placeBarrier(cluster.ops.front());
        continue;
      }
      makeKernel(cluster.ops);
      ++kernels;
    }
    removeDead();
    return kernels;
  }

private:
  bool isShared(Operation *op) {
    auto kind = clusters.kindOf(op);
    return kind == KernelClusters::OpKind::View || kind == KernelClusters::OpKind::Free;
  }

  /// Moves an op to the end of what is written, after the views and free ops
  /// that it reads.
  void placeBarrier(Operation *op) {
    for (OpOperand &operand : op->getOpOperands())
      operand.set(placeShared(operand.get()));
    if (!op->hasTrait<OpTrait::IsTerminator>())
      op->moveBefore(block.getTerminator());
  }

  /// A value for readers outside of kernels.
  Value placeShared(Value value) {
    if (auto known = outside.find(value); known != outside.end())
      return known->second;
    Operation *op = value.getDefiningOp();
    // Made by this rewriter, or an argument, or of another block.
    if (!op || op->getBlock() != &block || !isShared(op))
      return value;
    if (clusters.kindOf(op) == KernelClusters::OpKind::View || op->hasTrait<OpTrait::ConstantLike>()) {
      for (OpOperand &operand : op->getOpOperands())
        operand.set(placeShared(operand.get()));
      op->moveBefore(block.getTerminator());
      return outside[value] = value;
    }
    // A count or a scalar that somebody wants as a value: a kernel of its own.
    SmallVector<Value> results = makeRegion({op}, {value}, op->getLoc());
    return outside[value] = results.front();
  }

  void makeKernel(ArrayRef<Operation *> ops) {
    llvm::SmallPtrSet<Operation *, 16> members(ops.begin(), ops.end());
    SmallVector<Value> outputs;
    for (Operation *op : ops)
      for (Value result : op->getResults())
        if (isNeededOutside(result, members))
          outputs.push_back(result);
    if (outputs.empty())
      return;
    SmallVector<Value> results = makeRegion(ops, outputs, ops.back()->getLoc());
    for (auto [output, result] : llvm::zip_equal(outputs, results))
      made[output] = result;
    // Readers that are written later see the result; members are cloned.
    for (auto [output, result] : llvm::zip_equal(outputs, results))
      output.replaceUsesWithIf(result, [&](OpOperand &use) { return !members.contains(use.getOwner()); });
  }

  bool isNeededOutside(Value value, const llvm::SmallPtrSet<Operation *, 16> &members) {
    SmallVector<Value> work = {value};
    while (!work.empty()) {
      Value next = work.pop_back_val();
      for (Operation *user : next.getUsers()) {
        if (isShared(user))
          work.append(user->getResults().begin(), user->getResults().end());
        else if (!members.contains(user))
          return true;
      }
    }
    return false;
  }

  /// Clones `ops`, with the views and free ops that they read, into a region.
  SmallVector<Value> makeRegion(ArrayRef<Operation *> ops, ArrayRef<Value> outputs, Location loc) {
    OpBuilder b(block.getTerminator());
    SmallVector<Type> types;
    for (Value output : outputs)
      types.push_back(output.getType());

    // Values from outside come first, in order of reading.
    llvm::SetVector<Operation *> inside;
    llvm::SetVector<Value> inputs;
    auto collect = [&](auto &self, Operation *op) -> void {
      if (inside.contains(op))
        return;
      for (Value operand : op->getOperands()) {
        Operation *def = operand.getDefiningOp();
        bool isMember = def && llvm::is_contained(ops, def);
        if (isMember || (def && def->getBlock() == &block && isShared(def)))
          self(self, def);
        else
          inputs.insert(operand);
      }
      inside.insert(op);
    };
    for (Operation *op : ops)
      collect(collect, op);

    SmallVector<Location> locations;
    for (Value output : outputs)
      locations.push_back(output.getLoc());
    auto fused = FusedOp::create(b, locations.empty() ? loc : b.getFusedLoc(locations), types, inputs.getArrayRef());
    // The last block that an op names: constants and glue may name none. Where
    // there are several, segue-group-blocks may find a better one.
    llvm::SetVector<Attribute> blocks;
    for (Operation *op : ops)
      if (Attribute name = op->getAttr(SegueDialect::kBlockAttr)) {
        fused->setAttr(SegueDialect::kBlockAttr, name);
        blocks.insert(name);
      }
    if (blocks.size() > 1)
      fused->setAttr(SegueDialect::kBlocksAttr, b.getArrayAttr(blocks.getArrayRef()));
    Block *body = b.createBlock(&fused.getBody());
    IRMapping mapping;
    for (Value input : inputs)
      mapping.map(input, body->addArgument(input.getType(), input.getLoc()));
    for (Operation *op : inside) {
      Operation *member = b.clone(*op, mapping);
      member->removeAttr(SegueDialect::kBlockAttr);
      member->removeAttr(SegueDialect::kUpdateAttr);
    }
    SmallVector<Value> yielded;
    for (Value output : outputs)
      yielded.push_back(mapping.lookup(output));
    YieldOp::create(b, loc, yielded);
    return SmallVector<Value>(fused.getResults());
  }

  void removeDead() {
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (op.use_empty() && (isShared(&op) || inKernel.contains(&op)))
        op.erase();
  }

  Block &block;
  const KernelClusters &clusters;
  llvm::SmallPtrSet<Operation *, 32> inKernel;
  llvm::DenseMap<Value, Value> outside, made;
};

struct FormKernelsPass : segue::impl::SegueFormKernelsBase<FormKernelsPass> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    if (function.isExternal())
      return;
    if (failed(refuseEmptyTensors(function)))
      return signalPassFailure();
    biases += foldBiases(function);
    splitReductions += normalizeReductions(function);
    for (Block &block : function.getBody()) {
      KernelClusters clusters(block);
      clusters.run();
      kernels += Rewriter(block, clusters).run(clusters.clusters());
    }
  }
};

} // namespace
