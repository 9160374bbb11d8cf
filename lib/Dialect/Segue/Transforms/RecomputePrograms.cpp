//===- RecomputePrograms.cpp - functions that make saved values again -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Slices @forward, after fusion: what is cloned are the very commands that
// made the value, which is why the value comes out equal to the bit. Whether
// what a slice starts from is still there when backward wants the value is
// known once backward is a program, and decided there (SegueToProg.cpp).
//
//===----------------------------------------------------------------------===//

#include "SavedValues.h"
#include "TrainingSignature.h"
#include "mlir/IR/IRMapping.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/DebugLog.h"

namespace segue {
#define GEN_PASS_DEF_SEGUERECOMPUTEPROGRAMS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-recompute-programs"

using namespace mlir;
using namespace segue;

/// Returns true for ops that become no command, or a copy at most.
static bool isShapeOp(Operation *op) { return remakeOf(op) == Remake::Always || isView(op); }

namespace {
/// Saved results of @forward that one function gives.
struct Target {
  SmallVector<unsigned> results;
  Recomputation recomputation;
};

struct Slicer {
  Slicer(ModuleOp module, func::FuncOp forward, func::FuncOp backward)
      : forward(forward), terminator(forward.getBody().front().getTerminator()) {
    if (auto nested = module.lookupSymbol<ModuleOp>(SegueDialect::kKernelsModule))
      for (auto kernel : nested.getOps<func::FuncOp>())
        if (auto flops = kernel->getAttrOfType<IntegerAttr>("segue.flops_per_unit"))
          flopsPerUnit[kernel.getName()] = flops.getInt();
    for (unsigned i = 0; i < backward.getNumArguments(); ++i)
      if (argumentRole(backward, i) != Role::Saved && argumentRole(backward, i) != Role::Gradient)
        backwardTakes.insert(argumentName(backward, i));
    for (unsigned i = 0; i < forward.getNumResults(); ++i)
      if (resultRole(forward, i) == Role::Saved)
        resultOf.try_emplace(terminator->getOperand(i), i);
  }

  /// The saved results by the op that makes them, in the order of results.
  SmallVector<Target> targets() const {
    llvm::MapVector<Operation *, SmallVector<unsigned>> groups;
    for (unsigned i = 0; i < forward.getNumResults(); ++i)
      if (resultRole(forward, i) == Role::Saved)
        if (Operation *op = makerOf(terminator->getOperand(i)))
          groups[op].push_back(i);
    SmallVector<Target> targets;
    for (auto &[op, results] : groups) {
      ValueSet wanted;
      for (unsigned result : results)
        wanted.insert(terminator->getOperand(result));
      auto isOther = [&](Value value) { return resultOf.contains(value) && !wanted.contains(value); };
      targets.push_back({results, recomputationOf(wanted, isOther)});
    }
    return targets;
  }

  int64_t flopsOf(const Target &target) const {
    int64_t flops = 0;
    for (Operation *op : target.recomputation.ops)
      if (auto launch = dyn_cast<LaunchOp>(op))
        flops += flopsPerUnit.lookup(launch.getKernel()) * launch.getRange();
      else
        flops += segue::flopsOf(op);
    return flops;
  }

  int64_t bytesOf(const Target &target) const {
    int64_t bytes = 0;
    for (unsigned result : target.results)
      bytes += tensorBytes(forward.getResultTypes()[result]);
    return bytes;
  }

  /// Null, or why no function can make it.
  const char *refusal(const Target &target) const {
    for (Operation *op : target.recomputation.ops)
      if (!isMemoryEffectFree(op))
        return "has effects";
    for (Value leaf : target.recomputation.leaves)
      if (auto argument = dyn_cast<BlockArgument>(leaf)) {
        unsigned index = argument.getArgNumber();
        Role role = argumentRole(forward, index);
        if (role != Role::Parameter && role != Role::Frozen && !backwardTakes.contains(argumentName(forward, index)))
          return "needs an input that backward does not take";
      }
    return nullptr;
  }

  func::FuncOp make(const Target &target, OpBuilder &builder, StringRef name) const {
    SmallVector<Value> leaves(target.recomputation.leaves.begin(), target.recomputation.leaves.end());
    llvm::sort(leaves, [&](Value a, Value b) { return orderOf(a) < orderOf(b); });
    SmallVector<Type> types, resultTypes;
    for (Value leaf : leaves)
      types.push_back(leaf.getType());
    for (unsigned result : target.results)
      resultTypes.push_back(forward.getResultTypes()[result]);
    auto function = func::FuncOp::create(builder, forward.getLoc(), name, builder.getFunctionType(types, resultTypes));
    Block *block = function.addEntryBlock();
    IRMapping mapping;
    for (auto [i, leaf] : llvm::enumerate(leaves)) {
      mapping.map(leaf, block->getArgument(i));
      block->getArgument(i).setLoc(leaf.getLoc());
      if (auto argument = dyn_cast<BlockArgument>(leaf)) {
        unsigned index = argument.getArgNumber();
        function.setArgAttrs(i, signature(argumentName(forward, index), argumentRole(forward, index),
                                          forward.getArgAttr(index, SegueDialect::kLayoutAttr)));
      } else {
        unsigned index = resultOf.lookup(leaf);
        function.setArgAttrs(i, signature(resultName(forward, index), Role::Saved,
                                          forward.getResultAttr(index, SegueDialect::kLayoutAttr)));
      }
    }
    for (auto [i, result] : llvm::enumerate(target.results))
      function.setResultAttrs(i, signature(resultName(forward, result), Role::Output,
                                           forward.getResultAttr(result, SegueDialect::kLayoutAttr)));
    OpBuilder body = OpBuilder::atBlockEnd(block);
    for (Operation *op : target.recomputation.ops)
      body.clone(*op, mapping);
    SmallVector<Value> values;
    for (unsigned result : target.results)
      values.push_back(mapping.lookup(terminator->getOperand(result)));
    func::ReturnOp::create(body, terminator->getLoc(), values);
    return function;
  }

private:
  /// The op behind the shape ops that show `value`, as far as no other saved
  /// value is met; null for an argument.
  Operation *makerOf(Value value) const {
    Operation *op = value.getDefiningOp();
    while (op && isShapeOp(op) && op->getNumOperands() && !resultOf.contains(op->getOperand(0)) &&
           op->getOperand(0).getDefiningOp())
      op = op->getOperand(0).getDefiningOp();
    return op;
  }

  /// Saved values in the order of results, then arguments.
  std::pair<bool, unsigned> orderOf(Value leaf) const {
    if (auto argument = dyn_cast<BlockArgument>(leaf))
      return {true, argument.getArgNumber()};
    return {false, resultOf.lookup(leaf)};
  }

  DictionaryAttr signature(StringRef name, Role role, Attribute layout) const {
    NamedAttrList attrs(signatureAttrs(forward.getContext(), name, role));
    if (layout)
      attrs.set(SegueDialect::kLayoutAttr, layout);
    return attrs.getDictionary(forward.getContext());
  }

  mutable func::FuncOp forward;
  Operation *terminator;
  llvm::DenseMap<Value, unsigned> resultOf;
  llvm::DenseSet<StringRef> backwardTakes;
  llvm::StringMap<int64_t> flopsPerUnit;
};

struct RecomputePrograms : segue::impl::SegueRecomputeProgramsBase<RecomputePrograms> {
  using SegueRecomputeProgramsBase::SegueRecomputeProgramsBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (maxFlopsPerByte < 0 || maxCommands < 0) {
      module.emitError() << "`segue-recompute-programs` needs `max-flops-per-byte` and `max-commands` of at least 0, "
                            "but was given "
                         << int64_t(maxFlopsPerByte) << " and " << int64_t(maxCommands);
      return signalPassFailure();
    }
    auto forward = module.lookupSymbol<func::FuncOp>(SegueDialect::kForward);
    auto backward = module.lookupSymbol<func::FuncOp>(SegueDialect::kBackward);
    if (!forward || !backward || !forward.getBody().hasOneBlock() || !backward.getBody().hasOneBlock())
      return; // nothing is saved
    Slicer slicer(module, forward, backward);
    OpBuilder builder(module.getContext());
    builder.setInsertionPointToEnd(module.getBody());
    unsigned number = 0;
    for (const Target &target : slicer.targets()) {
      StringRef first = resultName(forward, target.results.front());
      int64_t flops = slicer.flopsOf(target), bytes = slicer.bytesOf(target);
      int64_t commands = llvm::count_if(target.recomputation.ops, [](Operation *op) { return !isShapeOp(op); });
      const char *reason = slicer.refusal(target);
      if (!reason && (commands > maxCommands || flops / std::max<int64_t>(bytes, 1) > maxFlopsPerByte))
        reason = "costs too much";
      LDBG() << first << ": " << commands << " commands, " << flops << " flops for " << bytes << " bytes"
             << (reason ? ", left out: " : "") << (reason ? reason : "");
      if (reason)
        continue;
      std::string name = (SegueDialect::kRecomputePrefix + Twine(number++)).str();
      if (Operation *other = module.lookupSymbol(name)) {
        other->emitError() << "`" << getArgument() << "` makes `@" << name << "`, but the module has one";
        return signalPassFailure();
      }
      slicer.make(target, builder, name);
      ++functions;
      bytesRecomputable += bytes;
    }
  }
};
} // namespace
