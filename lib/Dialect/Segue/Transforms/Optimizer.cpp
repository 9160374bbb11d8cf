//===- Optimizer.cpp - makes @optimizer and @grad_norm --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"
#include "WholeReduction.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include <cmath>

namespace segue {
#define GEN_PASS_DEF_SEGUEOPTIMIZER
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

namespace {
/// A parameter of @forward with a gradient from @backward.
struct TrainedParameter {
  StringRef name;
  RankedTensorType type;
  Location loc;
  /// Overrides the weight decay of the pass.
  std::optional<double> weightDecay;
  /// The block of its first user; null if that has none.
  Attribute block;
};

/// Writes a function whose arguments and results come up one after another. They
/// are set at once at the end: a model has thousands.
class FunctionWriter {
public:
  FunctionWriter(ModuleOp module, StringRef name)
      : builder(OpBuilder::atBlockEnd(module.getBody())),
        function(func::FuncOp::create(builder, module.getLoc(), name, builder.getFunctionType({}, {}))),
        body(function.addEntryBlock()) {
    builder.setInsertionPointToEnd(body);
  }

  Value addArgument(Type type, Location loc, StringRef name, Role role, StringRef of = "") {
    argumentAttrs.push_back(signatureAttrs(builder.getContext(), name, role, of));
    return body->addArgument(type, loc);
  }

  /// A result that is written in the place of argument `alias`, if given.
  void addResult(Value value, StringRef name, Role role, StringRef of = "", Value alias = {}) {
    NamedAttrList attrs(signatureAttrs(builder.getContext(), name, role, of));
    if (alias)
      attrs.set(kAliasAttr, builder.getI64IntegerAttr(cast<BlockArgument>(alias).getArgNumber()));
    resultAttrs.push_back(attrs.getDictionary(builder.getContext()));
    results.push_back(value);
  }

  void finish() {
    func::ReturnOp::create(builder, function.getLoc(), results);
    function.setType(builder.getFunctionType(body->getArgumentTypes(), TypeRange(ValueRange(results))));
    function.setAllArgAttrs(argumentAttrs);
    function.setAllResultAttrs(resultAttrs);
  }

  OpBuilder builder;

private:
  func::FuncOp function;
  Block *body;
  SmallVector<Value> results;
  SmallVector<DictionaryAttr> argumentAttrs, resultAttrs;
};
} // namespace

/// Returns the parameters in the order of the gradients of @backward.
static FailureOr<SmallVector<TrainedParameter>> findTrainedParameters(func::FuncOp forward, func::FuncOp backward) {
  llvm::StringMap<BlockArgument> parameters;
  for (BlockArgument argument : forward.getArguments())
    if (argumentRole(forward, argument.getArgNumber()) == Role::Parameter)
      parameters[argumentName(forward, argument.getArgNumber())] = argument;

  SmallVector<TrainedParameter> trained;
  for (unsigned index = 0; index < backward.getNumResults(); ++index) {
    auto of = backward.getResultAttrOfType<StringAttr>(index, SegueDialect::kOfAttr);
    BlockArgument argument = of ? parameters.lookup(of.getValue()) : BlockArgument();
    if (resultRole(backward, index) != Role::Gradient || !argument)
      continue;
    if (backward.getResultTypes()[index] != argument.getType())
      return backward.emitError() << "result " << index << " of `@backward` is the gradient of \"" << of.getValue()
                                  << "\" and has type " << backward.getResultTypes()[index]
                                  << ", but the parameter has " << argument.getType();
    auto decay = forward.getArgAttrOfType<FloatAttr>(argument.getArgNumber(), kWeightDecayAttr);
    trained.push_back({of.getValue(), cast<RankedTensorType>(argument.getType()), argument.getLoc(),
                       decay ? std::optional(decay.getValueAsDouble()) : std::nullopt, blockOfFirstUser(argument)});
  }
  return trained;
}

static void writeGradNorm(ModuleOp module, ArrayRef<TrainedParameter> parameters) {
  FunctionWriter writer(module, SegueDialect::kGradNorm);
  OpBuilder &b = writer.builder;
  SmallVector<Value> gradients;
  for (const TrainedParameter &parameter : parameters)
    gradients.push_back(writer.addArgument(parameter.type, parameter.loc, (kGradientPrefix + parameter.name).str(),
                                           Role::Gradient, parameter.name));
  Value total;
  for (auto [parameter, gradient] : llvm::zip_equal(parameters, gradients)) {
    Location loc = parameter.loc;
    Block &body = *b.getInsertionBlock();
    Operation *before = body.empty() ? nullptr : &body.back();
    Value sum = sumOfSquares(b, loc, gradient);
    total = total ? Value(AddOp::create(b, loc, total, sum)) : sum;
    // Gradients come and go with their block, as in the optimizer.
    for (Operation &op : llvm::make_range(before ? std::next(before->getIterator()) : body.begin(), body.end()))
      if (parameter.block)
        op.setAttr(SegueDialect::kBlockAttr, parameter.block);
  }
  if (!total)
    total = ConstantOp::create(b, module.getLoc(), RankedTensorType::get({}, b.getF32Type()), 0.0);
  writer.addResult(total, "grad_norm_sq", Role::Output);
  writer.finish();
}

namespace {
struct Optimizer : segue::impl::SegueOptimizerBase<Optimizer> {
  using SegueOptimizerBase::SegueOptimizerBase;

  void runOnOperation() override {
    if (failed(makeOptimizer(getOperation())))
      signalPassFailure();
  }

  LogicalResult checkOptions(ModuleOp module) {
    auto refuse = [&](StringRef option, double value, StringRef allowed) {
      return module.emitError() << "`segue-optimizer` was given " << option << " = " << value << "; it must be "
                                << allowed;
    };
    for (auto [option, value] : {std::pair<StringRef, double>("beta1", beta1), {"beta2", beta2}})
      if (!(value >= 0 && value < 1))
        return refuse(option, value, "in [0, 1)");
    for (auto [option, value] : {std::pair<StringRef, double>("eps", eps), {"decay", decay}, {"momentum", momentum}})
      if (!(value >= 0) || !std::isfinite(value))
        return refuse(option, value, "0 or more, and finite");
    if (!std::isfinite(dampening))
      return refuse("dampening", dampening, "finite");
    if (nesterov && !(momentum > 0 && dampening == 0))
      return module.emitError("`segue-optimizer` was given `nesterov`, which needs a momentum above 0 and dampening 0");
    return success();
  }

  LogicalResult makeOptimizer(ModuleOp module) {
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    FailureOr<func::FuncOp> backward = requireFunction(module, SegueDialect::kBackward, getArgument());
    if (failed(forward) || failed(backward) || failed(checkOptions(module)))
      return failure();
    for (StringRef name : {StringRef(SegueDialect::kOptimizer), StringRef(SegueDialect::kGradNorm)})
      if (Operation *other = module.lookupSymbol(name))
        return other->emitError() << "`segue-optimizer` makes `@" << name << "`, but the module has one";
    FailureOr<SmallVector<TrainedParameter>> parameters = findTrainedParameters(*forward, *backward);
    if (failed(parameters))
      return failure();
    writeOptimizer(module, *parameters);
    writeGradNorm(module, *parameters);
    return success();
  }

  void writeOptimizer(ModuleOp module, ArrayRef<TrainedParameter> trained) {
    FunctionWriter writer(module, SegueDialect::kOptimizer);
    SmallVector<StringRef> stateNames;
    if (kind == OptimizerKind::AdamW)
      stateNames = {"m.", "v."};
    else if (momentum != 0)
      stateNames = {"u."};

    // Per parameter: its value, its gradient, its states.
    SmallVector<SmallVector<Value>> arguments;
    for (const TrainedParameter &parameter : trained) {
      auto add = [&](Type type, StringRef prefix, Role role, StringRef of) {
        return writer.addArgument(type, parameter.loc, (prefix + parameter.name).str(), role, of);
      };
      auto stateType = RankedTensorType::get(parameter.type.getShape(), writer.builder.getF32Type());
      SmallVector<Value> &values = arguments.emplace_back();
      values.push_back(add(parameter.type, "", Role::Parameter, ""));
      values.push_back(add(parameter.type, kGradientPrefix, Role::Gradient, parameter.name));
      for (StringRef state : stateNames) {
        values.push_back(add(stateType, state, Role::State, parameter.name));
        stateBytes += tensorBytes(stateType);
      }
      ++parameters;
    }
    auto f32 = RankedTensorType::get({}, writer.builder.getF32Type());
    auto i64 = RankedTensorType::get({}, writer.builder.getI64Type());
    Value lr = writer.addArgument(f32, module.getLoc(), "lr", Role::Hyper);
    Value step = writer.addArgument(i64, module.getLoc(), "step", Role::Hyper);
    Value clip = writer.addArgument(f32, module.getLoc(), "clip", Role::Hyper);

    for (auto [parameter, values] : llvm::zip_equal(trained, arguments)) {
      Operation *op = writeStep(writer.builder, parameter, values, lr, step, clip);
      if (parameter.block)
        op->setAttr(SegueDialect::kBlockAttr, parameter.block);
      writer.addResult(op->getResult(0), parameter.name, Role::Parameter, "", values[0]);
      for (auto [k, state] : llvm::enumerate(stateNames))
        writer.addResult(op->getResult(k + 1), (state + parameter.name).str(), Role::State, parameter.name,
                         values[k + 2]);
    }
    writer.finish();
  }

  Operation *writeStep(OpBuilder &b, const TrainedParameter &parameter, ArrayRef<Value> values, Value lr, Value step,
                       Value clip) {
    Type type = parameter.type;
    FloatAttr weightDecay = b.getF64FloatAttr(parameter.weightDecay.value_or(decay));
    if (kind == OptimizerKind::Sgd && momentum == 0)
      return DescendOp::create(b, parameter.loc, type, values[0], values[1], lr, clip, weightDecay);
    Type stateType = values[2].getType();
    if (kind == OptimizerKind::AdamW)
      return AdamWOp::create(b, parameter.loc, TypeRange{type, stateType, stateType}, values[0], values[1], values[2],
                             values[3], lr, step, clip, b.getDenseF64ArrayAttr({beta1, beta2}), b.getF64FloatAttr(eps),
                             weightDecay);
    return SgdOp::create(b, parameter.loc, TypeRange{type, stateType}, values[0], values[1], values[2], lr, step, clip,
                         b.getF64FloatAttr(momentum), b.getF64FloatAttr(dampening), weightDecay,
                         nesterov ? b.getUnitAttr() : UnitAttr());
  }
};
} // namespace
