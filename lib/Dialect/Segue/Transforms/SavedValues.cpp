//===- SavedValues.cpp - what backward knows of forward -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SavedValues.h"

#include "TrainingSignature.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace segue;

ValueSet segue::neededValues(func::FuncOp forward, func::FuncOp backward) {
  ValueSet needed;
  Block *block = &forward.getBody().front();
  for (Operation &op : backward.getBody().front())
    for (Value operand : op.getOperands())
      if (operand.getParentBlock() == block)
        needed.insert(operand);
  return needed;
}

Recomputation segue::recomputationOf(const ValueSet &values, function_ref<bool(Value)> isAvailable) {
  Recomputation recomputation;
  llvm::SetVector<Operation *> ops;
  auto reach = [&](Value value) {
    if (isa<BlockArgument>(value) || isAvailable(value))
      recomputation.leaves.insert(value);
    else
      ops.insert(value.getDefiningOp());
  };
  llvm::for_each(values, reach);
  for (unsigned next = 0; next < ops.size(); ++next)
    llvm::for_each(ops[next]->getOperands(), reach);
  recomputation.ops = ops.takeVector();
  llvm::sort(recomputation.ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  return recomputation;
}

//===----------------------------------------------------------------------===//
// separate
//===----------------------------------------------------------------------===//

/// Appends `values` to the results of `forward`, as "saved.<k>".
static void addSavedResults(func::FuncOp forward, ArrayRef<Value> values) {
  Operation *terminator = forward.getBody().front().getTerminator();
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attrs;
  for (auto [k, value] : llvm::enumerate(values)) {
    types.push_back(value.getType());
    attrs.push_back(signatureAttrs(forward.getContext(), ("saved." + Twine(k)).str(), Role::Saved));
  }
  SmallVector<unsigned> indices(values.size(), forward.getNumResults());
  (void)forward.insertResults(indices, types, attrs);
  terminator->insertOperands(terminator->getNumOperands(), values);
}

/// Puts `saved` and `arguments` of `forward` in front of the arguments of
/// `backward` and maps them to these.
static void addBackwardArguments(func::FuncOp forward, func::FuncOp backward, ArrayRef<Value> saved,
                                 ArrayRef<BlockArgument> arguments, IRMapping &mapping) {
  SmallVector<Value> values(saved);
  llvm::append_range(values, arguments);
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attrs;
  SmallVector<Location> locs;
  for (auto [k, value] : llvm::enumerate(values)) {
    types.push_back(value.getType());
    locs.push_back(value.getLoc());
    if (k < saved.size()) {
      attrs.push_back(signatureAttrs(forward.getContext(), ("saved." + Twine(k)).str(), Role::Saved));
      continue;
    }
    unsigned index = cast<BlockArgument>(value).getArgNumber();
    attrs.push_back(signatureAttrs(forward.getContext(), argumentName(forward, index), argumentRole(forward, index)));
  }
  SmallVector<unsigned> indices(values.size(), 0);
  (void)backward.insertArguments(indices, types, attrs, locs);
  mapping.map(values, backward.getArguments().take_front(values.size()));
}

Separation segue::separate(func::FuncOp forward, func::FuncOp backward, const ValueSet &saved) {
  auto isSaved = [&](Value value) { return saved.contains(value); };
  Block *block = &forward.getBody().front();
  Recomputation whole = recomputationOf(neededValues(forward, backward), isSaved);

  // Saved values and arguments in the order of forward.
  Separation separation;
  SmallVector<BlockArgument> arguments;
  for (Value leaf : whole.leaves)
    if (auto argument = dyn_cast<BlockArgument>(leaf))
      arguments.push_back(argument);
    else
      separation.saved.push_back(leaf);
  llvm::sort(arguments, [](auto a, auto b) { return a.getArgNumber() < b.getArgNumber(); });
  llvm::sort(separation.saved, [](Value a, Value b) {
    if (a.getDefiningOp() != b.getDefiningOp())
      return a.getDefiningOp()->isBeforeInBlock(b.getDefiningOp());
    return cast<OpResult>(a).getResultNumber() < cast<OpResult>(b).getResultNumber();
  });

  IRMapping mapping;
  separation.firstSaved = forward.getNumResults();
  addBackwardArguments(forward, backward, separation.saved, arguments, mapping);
  addSavedResults(forward, separation.saved);

  // Users are visited in the order of backward, so that the first one dominates the others.
  for (Operation &user : llvm::make_early_inc_range(backward.getBody().front())) {
    ValueSet missing;
    for (Value operand : user.getOperands())
      if (operand.getParentBlock() == block && !mapping.contains(operand))
        missing.insert(operand);
    OpBuilder builder(&user);
    for (Operation *op : recomputationOf(missing, [&](Value v) { return mapping.contains(v); }).ops) {
      // A result that was saved stays the saved one.
      SmallVector<std::pair<Value, Value>> kept;
      for (Value result : op->getResults())
        if (Value known = mapping.lookupOrNull(result))
          kept.push_back({result, known});
      separation.cloned.push_back(builder.clone(*op, mapping));
      for (auto [result, known] : kept)
        mapping.map(result, known);
    }
    for (OpOperand &operand : user.getOpOperands())
      if (operand.get().getParentBlock() == block)
        operand.set(mapping.lookup(operand.get()));
  }
  return separation;
}

//===----------------------------------------------------------------------===//
// join
//===----------------------------------------------------------------------===//

FailureOr<ValueSet> segue::join(func::FuncOp forward, func::FuncOp backward) {
  Operation *terminator = forward.getBody().front().getTerminator();
  llvm::StringMap<Value> savedByName, argumentByName;
  llvm::BitVector savedResults(forward.getNumResults());
  for (unsigned index = 0; index < forward.getNumResults(); ++index)
    if (resultRole(forward, index) == Role::Saved) {
      savedByName[resultName(forward, index)] = terminator->getOperand(index);
      savedResults.set(index);
    }
  for (BlockArgument argument : forward.getArguments())
    argumentByName[argumentName(forward, argument.getArgNumber())] = argument;

  ValueSet saved;
  llvm::BitVector joined(backward.getNumArguments());
  for (BlockArgument argument : backward.getArguments()) {
    unsigned index = argument.getArgNumber();
    Role role = argumentRole(backward, index);
    if (role == Role::Gradient)
      continue;
    StringRef name = argumentName(backward, index);
    Value value = role == Role::Saved ? savedByName.lookup(name) : argumentByName.lookup(name);
    if (!value)
      return backward.emitError() << "argument " << index << " of `@backward` is \"" << name
                                  << "\", but `@forward` has no such "
                                  << (role == Role::Saved ? "saved result" : "argument");
    if (value.getType() != argument.getType())
      return backward.emitError() << "argument " << index << " of `@backward`, \"" << name << "\", is "
                                  << argument.getType() << ", but " << value.getType() << " in `@forward`";
    if (role == Role::Saved)
      saved.insert(value);
    argument.replaceAllUsesWith(value);
    joined.set(index);
  }
  (void)backward.eraseArguments(joined);
  (void)forward.eraseResults(savedResults);
  terminator->eraseOperands(savedResults);
  return saved;
}
