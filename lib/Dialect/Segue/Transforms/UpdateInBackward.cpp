//===- UpdateInBackward.cpp - moves @optimizer into @backward -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The ops of @optimizer are cloned to the end of @backward, with its gradients in the
// place of theirs. There they change nothing of which other ops share a kernel, so that
// gradients have the bits that they have without this pass. They are marked as the
// update of that parameter and share a kernel with nothing else: a kernel over several
// parameters would belong to no block. segue-group-blocks moves them up, to where the
// gradient is known and nothing below reads the old parameter.
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"
#include "WholeReduction.h"
#include "mlir/IR/IRMapping.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringSet.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEUPDATEINBACKWARD
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

/// The argument of `function` with this name, role and type; null if there is none.
static BlockArgument findArgument(func::FuncOp function, StringRef name, Role role, Type type) {
  for (BlockArgument argument : function.getArguments())
    if (argumentName(function, argument.getArgNumber()) == name &&
        argumentRole(function, argument.getArgNumber()) == role && argument.getType() == type)
      return argument;
  return {};
}

namespace {
/// Writes @optimizer into @backward.
class BackwardWriter {
public:
  explicit BackwardWriter(func::FuncOp backward)
      : backward(backward), terminator(backward.getBody().front().getTerminator()) {
    for (unsigned index = 0; index < backward.getNumResults(); ++index)
      if (auto of = backward.getResultAttrOfType<StringAttr>(index, SegueDialect::kOfAttr);
          of && resultRole(backward, index) == Role::Gradient)
        gradients[of.getValue()] = index;
  }

  /// Verifies that `optimizer` takes parameters, scalars, gradients that @backward gives, and states, and overwrites
  /// nothing that goes away.
  LogicalResult check(func::FuncOp optimizer) const {
    auto refuse = [&](StringRef what, unsigned index, StringRef name) {
      return optimizer.emitError() << what << " " << index << " of `@optimizer`, \"" << name << "\", ";
    };
    llvm::StringSet<> taken;
    for (BlockArgument argument : optimizer.getArguments()) {
      unsigned index = argument.getArgNumber();
      Role role = argumentRole(optimizer, index);
      StringRef name = argumentName(optimizer, index);
      if (!llvm::is_contained({Role::Parameter, Role::Hyper, Role::Gradient, Role::State}, role))
        return refuse("argument", index, name) << "has role `" << stringifyRole(role)
                                               << "`; an optimizer takes parameters, gradients, states and hyper alone";
      auto of = optimizer.getArgAttrOfType<StringAttr>(index, SegueDialect::kOfAttr);
      if (!of && (role == Role::Gradient || role == Role::State))
        return refuse("argument", index, name) << "has no `segue.of`, which names its parameter";
      if (role != Role::Gradient)
        continue;
      auto gradient = gradients.find(of.getValue());
      if (gradient == gradients.end() || terminator->getOperand(gradient->second).getType() != argument.getType())
        return refuse("argument", index, name) << "is a gradient of \"" << of.getValue() << "\" of type "
                                               << argument.getType() << ", which `@backward` does not return";
      if (!taken.insert(of.getValue()).second)
        return refuse("argument", index, name) << "is a second gradient of \"" << of.getValue() << "\"";
    }
    for (unsigned index = 0; index < optimizer.getNumResults(); ++index)
      if (auto alias = optimizer.getResultAttrOfType<IntegerAttr>(index, kAliasAttr);
          alias && argumentRole(optimizer, alias.getInt()) == Role::Gradient)
        return refuse("result", index, resultName(optimizer, index))
               << "lies in the place of a gradient, which is gone after `segue-update-in-backward`";
    return success();
  }

  /// Clones the body of `optimizer`, whose arguments become gradients and arguments of
  /// @backward, and whose results become results of it.
  void append(func::FuncOp optimizer) {
    IRMapping map;
    SmallVector<std::pair<StringRef, Value>> trained; // name and gradient
    for (BlockArgument argument : optimizer.getArguments()) {
      Value value = valueFor(optimizer, argument);
      map.map(argument, value);
      if (argumentRole(optimizer, argument.getArgNumber()) == Role::Gradient)
        trained.push_back({ofArgument(optimizer, argument.getArgNumber()), value});
    }
    OpBuilder builder(terminator);
    // The square of a gradient comes right before the update: they share a kernel. That of a parameter without an op
    // comes last.
    llvm::StringMap<Value> squareOf;
    llvm::StringMap<Value> gradientOf;
    for (auto [name, gradient] : trained)
      gradientOf[name] = gradient;
    llvm::DenseMap<Operation *, StringRef> parameterOf = findParameters(optimizer);
    for (Operation &op : optimizer.getBody().front().without_terminator()) {
      StringRef name = parameterOf.lookup(&op);
      if (Value gradient = gradientOf.lookup(name); gradient && !squareOf.contains(name))
        squareOf[name] = appendSquare(builder, name, gradient, op.getAttr(SegueDialect::kBlockAttr));
      tag(builder.clone(op, map), name);
    }
    SmallVector<Value> squares;
    for (auto [name, gradient] : trained) {
      if (!squareOf.contains(name))
        squareOf[name] = appendSquare(builder, name, gradient, Attribute());
      squares.push_back(squareOf.lookup(name));
    }
    Operation *returned = optimizer.getBody().front().getTerminator();
    for (auto [index, value] : llvm::enumerate(returned->getOperands())) {
      NamedAttrList attrs(optimizer.getResultAttrDict(index));
      if (auto alias = dyn_cast_if_present<IntegerAttr>(attrs.get(kAliasAttr))) {
        auto over = cast<BlockArgument>(map.lookup(optimizer.getArgument(alias.getInt())));
        attrs.set(kAliasAttr, builder.getI64IntegerAttr(over.getArgNumber()));
      }
      addResult(map.lookup(value), attrs.getDictionary(optimizer.getContext()));
    }
    if (!squares.empty())
      addResult(concatInGroups(builder, backward.getLoc(), squares, 0),
                signatureAttrs(backward.getContext(), kGradSquares, Role::Output));
    dropGradients(trained);
  }

private:
  static StringRef ofArgument(func::FuncOp function, unsigned index) {
    return function.getArgAttrOfType<StringAttr>(index, SegueDialect::kOfAttr).getValue();
  }

  Value valueFor(func::FuncOp optimizer, BlockArgument argument) {
    unsigned index = argument.getArgNumber();
    Role role = argumentRole(optimizer, index);
    if (role == Role::Gradient)
      return terminator->getOperand(gradients.at(ofArgument(optimizer, index)));
    if (BlockArgument known = findArgument(backward, argumentName(optimizer, index), role, argument.getType()))
      return known;
    (void)backward.insertArgument(backward.getNumArguments(), argument.getType(), optimizer.getArgAttrDict(index),
                                  argument.getLoc());
    return backward.getArguments().back();
  }

  /// The parameter to whose update each op belongs: what it reads is of that parameter, or, of an op
  /// that reads scalars alone, what reads it.
  static llvm::DenseMap<Operation *, StringRef> findParameters(func::FuncOp optimizer) {
    llvm::DenseMap<Operation *, StringRef> parameterOf;
    auto belongsTo = [&](Value value) -> StringRef {
      auto argument = dyn_cast<BlockArgument>(value);
      if (!argument)
        return parameterOf.lookup(value.getDefiningOp());
      unsigned index = argument.getArgNumber();
      Role role = argumentRole(optimizer, index);
      return role == Role::Parameter ? argumentName(optimizer, index)
             : role == Role::Hyper   ? StringRef()
                                     : ofArgument(optimizer, index);
    };
    Block &body = optimizer.getBody().front();
    for (Operation &op : body.without_terminator())
      for (Value operand : op.getOperands())
        if (StringRef name = belongsTo(operand); !name.empty())
          parameterOf[&op] = name;
    for (Operation &op : llvm::reverse(body.without_terminator()))
      for (Operation *user : op.getUsers())
        if (StringRef name = parameterOf.lookup(user); !name.empty() && !parameterOf.contains(&op))
          parameterOf[&op] = name;
    return parameterOf;
  }

  static void tag(Operation *op, StringRef parameter) {
    if (!parameter.empty())
      op->setAttr(SegueDialect::kUpdateAttr, StringAttr::get(op->getContext(), parameter));
  }

  /// The sum of the squares of a gradient as a tensor of one element, in the block of the
  /// parameter's update.
  Value appendSquare(OpBuilder &builder, StringRef name, Value gradient, Attribute block) {
    Operation *before = terminator->getPrevNode();
    Value square = ReshapeOp::create(builder, gradient.getLoc(), sumOfSquares(builder, gradient.getLoc(), gradient),
                                     ArrayRef<int64_t>{1});
    for (Operation *op = before ? before->getNextNode() : &terminator->getBlock()->front(); op != terminator;
         op = op->getNextNode()) {
      if (block)
        op->setAttr(SegueDialect::kBlockAttr, block);
      tag(op, name);
    }
    return square;
  }

  void addResult(Value value, DictionaryAttr attrs) {
    terminator->insertOperands(terminator->getNumOperands(), value);
    (void)backward.insertResult(backward.getNumResults(), value.getType(), attrs);
  }

  void dropGradients(ArrayRef<std::pair<StringRef, Value>> trained) {
    llvm::BitVector dropped(backward.getNumResults());
    for (auto [name, gradient] : trained)
      dropped.set(gradients.at(name));
    (void)backward.eraseResults(dropped);
    for (int index = dropped.find_last(); index >= 0; index = dropped.find_prev(index))
      terminator->eraseOperand(index);
  }

  func::FuncOp backward;
  Operation *terminator;
  /// The results of @backward by what they are the gradient of.
  llvm::StringMap<unsigned> gradients;
};

struct UpdateInBackward : segue::impl::SegueUpdateInBackwardBase<UpdateInBackward> {
  using SegueUpdateInBackwardBase::SegueUpdateInBackwardBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<func::FuncOp> functions;
    for (StringRef name : {StringRef(SegueDialect::kBackward), StringRef(SegueDialect::kOptimizer),
                           StringRef(SegueDialect::kGradNorm)}) {
      FailureOr<func::FuncOp> function = requireFunction(module, name, getArgument());
      if (failed(function))
        return signalPassFailure();
      functions.push_back(*function);
    }
    func::FuncOp backward = functions[0], optimizer = functions[1], gradNorm = functions[2];
    BackwardWriter writer(backward);
    if (failed(writer.check(optimizer)))
      return signalPassFailure();
    writer.append(optimizer);
    if (failed(requireDistinctNames(backward, getArgument())))
      return signalPassFailure();
    for (unsigned index = 0; index < optimizer.getNumArguments(); ++index)
      parameters += argumentRole(optimizer, index) == Role::Parameter;
    optimizer.erase();
    gradNorm.erase();
  }
};
} // namespace
