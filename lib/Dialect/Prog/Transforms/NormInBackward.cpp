//===- NormInBackward.cpp - prog-norm-in-backward -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The commands of @grad_norm are copied into @backward, those of each gradient to where it is
// finished. They read the gradient where it lies, so the sums have the bits that @grad_norm gives.
//
//===----------------------------------------------------------------------===//

#include "CommandCopier.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/SymbolTable.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringMap.h"

namespace segue::prog {
#define GEN_PASS_DEF_PROGNORMINBACKWARD
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"
} // namespace segue::prog

using namespace mlir;
using namespace segue::prog;
using segue::Role;
using segue::SegueDialect;

/// The buffers of @backward in which the gradients lie that @grad_norm reads, by its inputs; nothing where it would
/// have to read one in another layout, or on the host.
static std::optional<SmallVector<Value>> findGradients(ProgramOp backward, ProgramOp gradNorm) {
  llvm::StringMap<unsigned> outputOf;
  for (unsigned i = 0; i < backward.getNumOutputs(); ++i)
    if (ValueAttr value = backward.getOutput(i); value.getRole() == Role::Gradient)
      outputOf[value.getOf().getValue()] = i;
  SmallVector<Value> gradients;
  for (unsigned i = 0; i < gradNorm.getNumInputs(); ++i) {
    ValueAttr value = gradNorm.getInput(i);
    auto found = value.getRole() == Role::Gradient ? outputOf.find(value.getOf().getValue()) : outputOf.end();
    if (found == outputOf.end() || backward.getOutput(found->second).getType() != value.getType())
      return std::nullopt;
    gradients.push_back(backward.getOutputBuffer(found->second));
    if (!isOnDevice(cast<MemRefType>(gradients.back().getType())))
      return std::nullopt;
  }
  return gradients;
}

namespace {
/// Tells from which gradients the commands of @grad_norm compute, asked for one after the other.
class Origins {
public:
  using Gradients = llvm::SmallSetVector<Value, 2>;

  /// The inputs of @grad_norm on which a command depends; temporaries that it touches depend on them from here on.
  Gradients of(Operation *command) {
    Gradients gradients;
    for (Value operand : command->getOperands()) {
      Value root = rootOf(operand);
      if (root.getDefiningOp<AllocOp>())
        gradients.insert_range(ofTemporary[root]);
      else if (isInput(root))
        gradients.insert(root);
    }
    for (Value operand : command->getOperands())
      if (Value root = rootOf(operand); root.getDefiningOp<AllocOp>())
        ofTemporary[root] = gradients;
    return gradients;
  }

private:
  static bool isInput(Value root) {
    auto argument = dyn_cast<BlockArgument>(root);
    return argument && argument.getArgNumber() < cast<ProgramOp>(argument.getOwner()->getParentOp()).getNumInputs();
  }

  llvm::DenseMap<Value, Gradients> ofTemporary;
};

struct NormInBackward : segue::prog::impl::ProgNormInBackwardBase<NormInBackward> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto backward = module.lookupSymbol<ProgramOp>(SegueDialect::kBackward);
    auto gradNorm = module.lookupSymbol<ProgramOp>(SegueDialect::kGradNorm);
    if (!backward || !gradNorm || !gradNorm.getNumInputs())
      return;
    if (std::optional<SmallVector<Value>> gradients = findGradients(backward, gradNorm))
      copyInto(backward, gradNorm, *gradients);
  }

  void copyInto(ProgramOp backward, ProgramOp gradNorm, ArrayRef<Value> gradients) {
    llvm::DenseMap<Value, Operation *> last; // of the commands that touch a gradient, by the input of @grad_norm
    llvm::DenseMap<Value, Value> inputOf;
    for (auto [i, gradient] : llvm::enumerate(gradients))
      inputOf[gradient] = gradNorm.getInputBuffer(i);
    backward.walk<WalkOrder::PreOrder>([&](Operation *op) {
      for (Value operand : op->getOperands())
        if (Value input = inputOf.lookup(rootOf(operand)); input && isCommand(op))
          last[input] = op;
    });
    Block &phase = llvm::to_vector(backward.getBlock().getOps<PhaseOp>()).back().getBlock();
    OpBuilder begin = OpBuilder::atBlockBegin(&phase);
    CommandCopier commands(gradNorm, backward);
    for (auto [i, gradient] : llvm::enumerate(gradients))
      commands.put(gradient, gradNorm.getInputBuffer(i));
    appendOutputs(backward, gradNorm, commands);
    Origins origins;
    SmallVector<Operation *> atEnd;
    gradNorm.walk<WalkOrder::PreOrder>([&](Operation *command) {
      if (!isCommand(command))
        return;
      Origins::Gradients of = origins.of(command);
      Operation *behind = of.size() == 1 ? last.lookup(of.front()) : nullptr;
      if (of.empty()) {
        commands.copy(begin, command);
      } else if (behind) {
        OpBuilder builder(behind->getContext());
        builder.setInsertionPointAfter(behind);
        commands.copy(builder, command);
        last[of.front()] = &*std::prev(builder.getInsertionPoint());
        ++copied;
      } else {
        atEnd.push_back(command);
      }
    });
    OpBuilder end = OpBuilder::atBlockEnd(&phase);
    for (Operation *command : atEnd)
      commands.copy(end, command);
  }

  static void appendOutputs(ProgramOp backward, ProgramOp gradNorm, CommandCopier &commands) {
    SmallVector<Attribute> outputs(backward.getOutputs().getValue());
    for (unsigned i = 0; i < gradNorm.getNumOutputs(); ++i) {
      outputs.push_back(gradNorm.getOutput(i));
      BlockArgument out = gradNorm.getOutputBuffer(i);
      commands.put(backward.getBlock().addArgument(out.getType(), out.getLoc()), out);
    }
    backward.setOutputsAttr(ArrayAttr::get(backward.getContext(), outputs));
  }
};
} // namespace
