//===- UpdateInForward.cpp - prog-update-in-forward -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The commands of @optimizer are copied into a copy of @forward, those of each parameter
// to the beginning of the block that reads it first. They are the same commands on the same
// buffers, so a step has the bits that it has with @optimizer, whichever of the two ran.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/SymbolTable.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/StringSet.h"

namespace segue::prog {
#define GEN_PASS_DEF_PROGUPDATEINFORWARD
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"
} // namespace segue::prog

using namespace mlir;
using namespace segue::prog;
using segue::Role;
using segue::SegueDialect;

/// Returns what a buffer looks into: an argument of the program, an alloc or a constant.
static Value rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewOp>())
    buffer = view.getSource();
  return buffer;
}

static bool isCommand(Operation *op) { return !isa<ProgramOp, PhaseOp, BlockOp, ViewOp, AllocOp, ConstantOp>(op); }

namespace {
/// Commands of @optimizer that stay together: all that update a parameter, and those of
/// parameters that are computed together.
struct Update {
  SmallVector<Operation *> commands;
  StringSet<> parameters;
};

/// The commands of @optimizer by the parameters that they update.
class Updates {
public:
  explicit Updates(ProgramOp optimizer) : optimizer(optimizer) {
    SmallVector<Operation *> commands;
    optimizer.walk([&](Operation *op) {
      if (isCommand(op))
        commands.push_back(op);
    });
    for (Operation *command : commands)
      sort(command);
    llvm::DenseMap<Operation *, unsigned> indexOf;
    for (Operation *command : commands) {
      if (!together.contains(command))
        continue;
      auto [entry, isNew] = indexOf.try_emplace(together.getLeaderValue(command), updates.size());
      if (isNew)
        updates.emplace_back();
      Update &update = updates[entry->second];
      update.commands.push_back(command);
      for (Value operand : command->getOperands())
        if (StringRef name = parameterOf(rootOf(operand)); !name.empty())
          update.parameters.insert(name);
    }
  }

  /// These commands belong to no parameter: updates read what they make of scalars, such as a factor of the rate.
  SmallVector<Operation *> shared;
  SmallVector<Update> updates;

private:
  /// Puts a command to those that touch its parameters or its temporaries, or to the shared.
  void sort(Operation *command) {
    bool isShared = true;
    for (Value operand : command->getOperands()) {
      Value root = rootOf(operand);
      bool isTemporary = root.getDefiningOp<AllocOp>();
      auto first = firstOf.find(root);
      bool isKnown = isTemporary && first != firstOf.end();
      isShared &= parameterOf(root).empty() && (!isKnown || sharedSet.contains(first->second));
    }
    if (isShared) {
      shared.push_back(command);
      sharedSet.insert(command);
    } else {
      together.insert(command);
    }
    for (Value operand : command->getOperands()) {
      Value root = rootOf(operand);
      StringRef name = parameterOf(root);
      if (name.empty() && !root.getDefiningOp<AllocOp>())
        continue;
      Operation *&first = name.empty() ? firstOf[root] : firstOfParameter[name];
      if (!first)
        first = command;
      else if (!isShared && !sharedSet.contains(first))
        together.unionSets(first, command);
    }
  }

  /// The parameter to which an argument of @optimizer belongs, or "".
  StringRef parameterOf(Value root) const {
    auto argument = dyn_cast<BlockArgument>(root);
    if (!argument)
      return {};
    unsigned index = argument.getArgNumber(), inputs = optimizer.getNumInputs();
    ValueAttr value = index < inputs ? optimizer.getInput(index) : optimizer.getOutput(index - inputs);
    return value.getRole() == Role::Parameter ? value.getName().getValue()
           : value.getOf()                    ? value.getOf().getValue()
                                              : StringRef();
  }

  mutable ProgramOp optimizer;
  llvm::EquivalenceClasses<Operation *> together;
  llvm::SmallPtrSet<Operation *, 8> sharedSet;
  llvm::DenseMap<Value, Operation *> firstOf;
  llvm::StringMap<Operation *> firstOfParameter;
};

/// Writes the copy of @forward.
class ForwardWriter {
public:
  ForwardWriter(ProgramOp forward, ProgramOp optimizer) : optimizer(optimizer) {
    OpBuilder builder(forward);
    builder.setInsertionPointAfter(forward);
    program = cast<ProgramOp>(builder.clone(*forward));
    program.setSymName(SegueDialect::kForwardUpdating);
  }

  void write() {
    joinSignatures();
    for (Operation &op : optimizer.getBlock())
      if (isa<AllocOp, ConstantOp>(op))
        OpBuilder::atBlockBegin(&program.getBlock()).clone(op, map);
    Updates updates(optimizer);
    llvm::DenseMap<Value, Operation *> firstReader = firstReaders();
    OpBuilder begin(frontOf(phase().getBlock()));
    for (Operation *command : updates.shared)
      copy(begin, command);
    for (const Update &update : updates.updates) {
      auto [before, block] = placeOf(update, firstReader);
      OpBuilder builder(before);
      if (!block.empty()) { // the reader lies in no block, and what an update needs comes and goes by block
        auto own = BlockOp::create(builder, before->getLoc(), block);
        builder.setInsertionPointToStart(&own.getBody().emplaceBlock());
      }
      for (Operation *command : update.commands)
        copy(builder, command);
    }
  }

private:
  /// The op of @forward with which a block begins: what is inserted before it stands in order.
  Operation *frontOf(Block &block) { return fronts.try_emplace(&block, &block.front()).first->second; }

  PhaseOp phase() { return *program.getBlock().getOps<PhaseOp>().begin(); }

  /// Appends inputs and outputs of @optimizer. A parameter is forward's, written over.
  void joinSignatures() {
    unsigned forwardInputs = program.getNumInputs(), forwardOutputs = program.getNumOutputs();
    SmallVector<Attribute> inputs(program.getInputs().getValue()), outputs(program.getOutputs().getValue());
    llvm::DenseMap<Attribute, unsigned> known;
    for (unsigned i = 0; i < forwardInputs; ++i)
      if (program.getInput(i).getRole() == Role::Parameter)
        known[program.getInput(i).getName()] = i;
    SmallVector<unsigned> indices;
    Block &body = program.getBlock();
    for (unsigned i = 0; i < optimizer.getNumInputs(); ++i) {
      ValueAttr value = optimizer.getInput(i);
      auto found = known.find(value.getName());
      if (value.getRole() == Role::Parameter && found != known.end()) {
        inputs[found->second] = value; // what is written in place can lie nowhere else
        indices.push_back(found->second);
      } else {
        indices.push_back(inputs.size());
        BlockArgument in = optimizer.getInputBuffer(i);
        body.insertArgument(inputs.size(), in.getType(), in.getLoc());
        inputs.push_back(value.getRole() == Role::Hyper ? renamed(value) : value);
      }
      map.map(optimizer.getInputBuffer(i), body.getArgument(indices.back()));
    }
    for (unsigned i = 0; i < optimizer.getNumOutputs(); ++i) {
      outputs.push_back(optimizer.getOutput(i));
      BlockArgument out = optimizer.getOutputBuffer(i);
      map.map(out, body.addArgument(out.getType(), out.getLoc()));
    }
    SmallVector<Attribute> aliases;
    if (auto own = program.getAliases())
      llvm::append_range(aliases, *own);
    if (auto theirs = optimizer.getAliases())
      for (auto alias : theirs->getAsRange<AliasAttr>())
        aliases.push_back(AliasAttr::get(program.getContext(), forwardOutputs + alias.getOutput(),
                                         indices[alias.getInput()], alias.getRequired()));
    Builder builder(program.getContext());
    program.setInputsAttr(builder.getArrayAttr(inputs));
    program.setOutputsAttr(builder.getArrayAttr(outputs));
    program.setAliasesAttr(builder.getArrayAttr(aliases));
  }

  /// The update's own step is that of its gradients: one before the step of a random op in forward.
  static ValueAttr renamed(ValueAttr hyper) {
    auto name = StringAttr::get(hyper.getContext(), "update." + hyper.getName().getValue());
    return ValueAttr::get(hyper.getContext(), name, hyper.getRole(), hyper.getType(), hyper.getOf(),
                          hyper.getAlternatives());
  }

  /// The first command that reads each buffer.
  llvm::DenseMap<Value, Operation *> firstReaders() {
    llvm::DenseMap<Value, Operation *> first;
    program.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (isCommand(op))
        for (Value operand : op->getOperands())
          first.try_emplace(rootOf(operand), op);
    });
    return first;
  }

  /// The op before which an update goes, and the name of the block that it needs there, if that is none yet.
  std::pair<Operation *, StringRef> placeOf(const Update &update,
                                            const llvm::DenseMap<Value, Operation *> &firstReader) {
    Operation *first = nullptr;
    for (unsigned i = 0; i < program.getNumInputs(); ++i) {
      ValueAttr value = program.getInput(i);
      if (value.getRole() != Role::Parameter || !update.parameters.contains(value.getName().getValue()))
        continue;
      Operation *reader = firstReader.lookup(program.getInputBuffer(i));
      if (reader && (!first || isBefore(reader, first)))
        first = reader;
    }
    if (first)
      if (auto block = first->getParentOfType<BlockOp>())
        return {frontOf(block.getBlock()), {}};
    auto own = update.commands.front()->getParentOfType<BlockOp>();
    if (!first && own)
      for (BlockOp block : phase().getBlock().getOps<BlockOp>())
        if (block.getName() == own.getName())
          return {frontOf(block.getBlock()), {}};
    return {first ? first : frontOf(phase().getBlock()), own ? own.getName() : StringRef()};
  }

  static bool isBefore(Operation *a, Operation *b) {
    auto outer = [](Operation *op) {
      while (!isa<PhaseOp>(op->getParentOp()))
        op = op->getParentOp();
      return op;
    };
    Operation *outerA = outer(a), *outerB = outer(b);
    if (outerA == outerB)
      return a->isBeforeInBlock(b);
    return outerA->getBlock() == outerB->getBlock() ? outerA->isBeforeInBlock(outerB)
                                                    : outerA->getParentOp()->isBeforeInBlock(outerB->getParentOp());
  }

  /// Copies a command with the views that it reads.
  void copy(OpBuilder &builder, Operation *command) {
    SmallVector<Value> views;
    for (Value operand : command->getOperands())
      copyView(builder, operand, views);
    builder.clone(*command, map);
    for (Value view : views) // another command may stand in another block
      map.erase(view);
  }
  void copyView(OpBuilder &builder, Value buffer, SmallVector<Value> &views) {
    auto view = buffer.getDefiningOp<ViewOp>();
    if (!view || map.contains(buffer))
      return;
    copyView(builder, view.getSource(), views);
    builder.clone(*view, map);
    views.push_back(buffer);
  }

  ProgramOp optimizer, program;
  IRMapping map;
  llvm::DenseMap<Block *, Operation *> fronts;
};

struct UpdateInForward : segue::prog::impl::ProgUpdateInForwardBase<UpdateInForward> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto require = [&](StringRef name) {
      auto program = module.lookupSymbol<ProgramOp>(name);
      if (!program)
        module.emitError() << "`prog-update-in-forward` needs a program `@" << name << "`, but the module has none";
      return program;
    };
    ProgramOp forward = require(SegueDialect::kForward), optimizer = require(SegueDialect::kOptimizer);
    if (!forward || !optimizer)
      return signalPassFailure();
    if (Operation *other = module.lookupSymbol(SegueDialect::kForwardUpdating)) {
      other->emitError() << "`prog-update-in-forward` makes `@" << SegueDialect::kForwardUpdating
                         << "`, but the module has one";
      return signalPassFailure();
    }
    auto phases = forward.getBlock().getOps<PhaseOp>();
    if (phases.empty() || (*phases.begin()).getBlock().empty()) {
      forward.emitError() << "`prog-update-in-forward` puts updates before the commands of the phase of `@forward`, "
                             "which has none";
      return signalPassFailure();
    }
    // A parameter that the two want in different layouts is copied between them, which no program does.
    for (unsigned i = 0; i < optimizer.getNumInputs(); ++i)
      for (unsigned j = 0; j < forward.getNumInputs(); ++j)
        if (ValueAttr a = optimizer.getInput(i), b = forward.getInput(j);
            a.getRole() == Role::Parameter && b.getRole() == Role::Parameter && a.getName() == b.getName() &&
            a.getType() != b.getType()) {
          forward.emitError() << "`prog-update-in-forward`: @forward reads the parameter \"" << a.getName().getValue()
                              << "\" as " << b.getType() << ", and @optimizer writes it as " << a.getType();
          return signalPassFailure();
        }
    ForwardWriter(forward, optimizer).write();
  }
};
} // namespace
