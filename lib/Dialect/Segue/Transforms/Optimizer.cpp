//===- Optimizer.cpp - makes @optimizer and @grad_norm --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlockTagger.h"
#include "OptimizerRules.h"
#include "TrainingSignature.h"
#include "WholeReduction.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include <cmath>
#include <map>
#include <set>

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
  /// The number of its learning rate; 0 is that of the optimizer.
  int64_t rateGroup = 0;
  /// Overrides the optimizer of the pass; null: it does not.
  StringAttr optimizer;
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

  LogicalResult finish(StringRef pass) {
    func::ReturnOp::create(builder, function.getLoc(), results);
    function.setType(builder.getFunctionType(body->getArgumentTypes(), TypeRange(ValueRange(results))));
    function.setAllArgAttrs(argumentAttrs);
    function.setAllResultAttrs(resultAttrs);
    return requireDistinctNames(function, pass);
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
    Type element = cast<RankedTensorType>(argument.getType()).getElementType();
    if (!isa<FloatType>(element))
      return backward.emitError() << "result " << index << " of `@backward` is the gradient of \"" << of.getValue()
                                  << "\", which holds " << element << "; only parameters of floats are trained";
    if (element.isF64())
      return backward.emitError() << "parameter \"" << of.getValue()
                                  << "\" is f64, but learning rates and states of optimizers are f32; train it with "
                                     "torch.optim, or convert the module by float()";
    auto decay = forward.getArgAttrOfType<FloatAttr>(argument.getArgNumber(), kWeightDecayAttr);
    auto group = forward.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), kRateGroupAttr);
    trained.push_back({of.getValue(), cast<RankedTensorType>(argument.getType()), argument.getLoc(),
                       decay ? std::optional(decay.getValueAsDouble()) : std::nullopt, group ? group.getInt() : 0,
                       forward.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kOptimizerAttr),
                       blockOfFirstUser(argument)});
  }
  return trained;
}

/// The sums of squares of gradients, together first, for whoever has all of them, if there are several; then each by
/// itself, of which a rank takes those of its own gradients.
static LogicalResult writeGradNorm(ModuleOp module, ArrayRef<TrainedParameter> parameters, StringRef pass) {
  FunctionWriter writer(module, SegueDialect::kGradNorm);
  OpBuilder &b = writer.builder;
  SmallVector<Value> gradients;
  for (const TrainedParameter &parameter : parameters)
    gradients.push_back(writer.addArgument(parameter.type, parameter.loc, (kGradientPrefix + parameter.name).str(),
                                           Role::Gradient, parameter.name));
  SmallVector<Value> sums;
  BlockTagger tagger;
  b.setListener(&tagger);
  for (auto [parameter, gradient] : llvm::zip_equal(parameters, gradients)) {
    tagger.block = parameter.block; // gradients come and go with their block, as in the optimizer
    Value sum = sumOfSquares(b, parameter.loc, gradient);
    sums.push_back(ReshapeOp::create(b, parameter.loc, RankedTensorType::get({1}, b.getF32Type()), sum));
  }
  b.setListener(nullptr);
  if (sums.empty())
    writer.addResult(ConstantOp::create(b, module.getLoc(), RankedTensorType::get({1}, b.getF32Type()), 0.0), kGradSquares,
                     Role::Output);
  else if (sums.size() > 1) // one alone is all of them
    writer.addResult(concatInGroups(b, module.getLoc(), sums, 0), kGradSquares, Role::Output);
  for (auto [parameter, sum] : llvm::zip_equal(parameters, sums))
    writer.addResult(sum, (kGradSquares + "." + parameter.name).str(), Role::Output);
  return writer.finish(pass);
}

namespace {
struct Optimizer : segue::impl::SegueOptimizerBase<Optimizer> {
  using SegueOptimizerBase::SegueOptimizerBase;

  void runOnOperation() override {
    if (failed(makeOptimizer(getOperation())))
      signalPassFailure();
  }

  LogicalResult makeOptimizer(ModuleOp module) {
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    FailureOr<func::FuncOp> backward = requireFunction(module, SegueDialect::kBackward, getArgument());
    if (failed(forward) || failed(backward))
      return failure();
    std::string wrong;
    std::optional<OptimizerSpec> spec = OptimizerSpec::parse(optimizer, wrong);
    if (!spec)
      return module.emitError(wrong);
    for (StringRef name : {StringRef(SegueDialect::kOptimizer), StringRef(SegueDialect::kGradNorm)})
      if (Operation *other = module.lookupSymbol(name))
        return other->emitError() << "`segue-optimizer` makes `@" << name << "`, but the module has one";
    FailureOr<SmallVector<TrainedParameter>> parameters = findTrainedParameters(*forward, *backward);
    if (failed(parameters))
      return failure();
    SmallVector<OptimizerSpec> specs;
    for (const TrainedParameter &parameter : *parameters) {
      std::optional<OptimizerSpec> own =
          parameter.optimizer ? OptimizerSpec::parse(parameter.optimizer.getValue(), wrong) : spec;
      if (own && own->rule->misfit)
        wrong = own->rule->misfit(parameter.type.getShape());
      if (!own || !wrong.empty())
        return mlir::emitError(parameter.loc)
               << "parameter \"" << parameter.name << "\", " << parameter.type << ": " << wrong
               << "; `segue.optimizer` gives it another (in Python a group: Group(\"" << parameter.name
               << "\", optimizer=AdamW()))";
      specs.push_back(std::move(*own));
    }
    return failure(failed(writeOptimizer(module, *spec, specs, *parameters)) ||
                   failed(writeGradNorm(module, *parameters, getArgument())));
  }

  /// `specs`: by parameter; `spec`: that of the pass, which decides of what all have in common.
  LogicalResult writeOptimizer(ModuleOp module, const OptimizerSpec &spec, ArrayRef<OptimizerSpec> specs,
                               ArrayRef<TrainedParameter> trained) {
    FunctionWriter writer(module, SegueDialect::kOptimizer);
    Type f32 = writer.builder.getF32Type();

    // Per parameter: its value, its gradient, its states.
    SmallVector<SmallVector<Value>> arguments;
    SmallVector<SmallVector<OptimizerState>> states;
    for (auto [parameter, own] : llvm::zip_equal(trained, specs)) {
      auto add = [&](Type type, const Twine &name, Role role, StringRef of) {
        return writer.addArgument(type, parameter.loc, name.str(), role, of);
      };
      SmallVector<Value> &values = arguments.emplace_back();
      values.push_back(add(parameter.type, parameter.name, Role::Parameter, ""));
      values.push_back(add(parameter.type, kGradientPrefix + parameter.name, Role::Gradient, parameter.name));
      states.push_back(own.states(parameter.type.getShape()));
      for (auto &[name, type] : partsOf(states.back(), writer.builder)) {
        values.push_back(add(type, name + "." + parameter.name, Role::State, parameter.name));
        stateBytes += tensorBytes(type);
      }
      ++parameters;
    }
    auto scalar = [&](StringRef name, Type type) {
      return writer.addArgument(RankedTensorType::get({}, type), module.getLoc(), name, Role::Hyper);
    };
    std::set<int64_t> groups = {0};
    for (const TrainedParameter &parameter : trained)
      groups.insert(parameter.rateGroup);
    std::map<int64_t, Value> rates, steps;
    for (int64_t group : groups)
      rates[group] = scalar(group ? "lr." + std::to_string(group) : "lr", f32);
    for (int64_t group : groups)
      steps[group] = group == 0 || spec.is("own-steps")
                         ? scalar(group ? "step." + std::to_string(group) : "step", writer.builder.getI64Type())
                         : steps[0];
    Value clip = scalar("clip", f32);

    BlockTagger tagger;
    writer.builder.setListener(&tagger);
    for (auto [parameter, own, values, kept] : llvm::zip_equal(trained, specs, arguments, states)) {
      tagger.block = parameter.block;
      SmallVector<Value> results = writeStep(writer.builder, own, parameter, kept, values, rates[parameter.rateGroup],
                                             steps[parameter.rateGroup], clip);
      writer.addResult(results[0], parameter.name, Role::Parameter, "", values[0]);
      for (auto [result, part, old] : llvm::zip_equal(ArrayRef(results).drop_front(), partsOf(kept, writer.builder),
                                                      ArrayRef(values).drop_front(2)))
        writer.addResult(result, part.first + "." + parameter.name.str(), Role::State, parameter.name, old);
    }
    writer.builder.setListener(nullptr);
    return writer.finish(getArgument());
  }

  /// Names and types of the tensors that states are kept in: codes and scales of one that has codes.
  static SmallVector<std::pair<std::string, RankedTensorType>> partsOf(ArrayRef<OptimizerState> states, Builder &b) {
    SmallVector<std::pair<std::string, RankedTensorType>> parts;
    for (const OptimizerState &state : states) {
      std::string name = state.name.str();
      if (!state.block) {
        parts.emplace_back(name, RankedTensorType::get(state.shape, b.getF32Type()));
        continue;
      }
      int64_t blocks = llvm::product_of(state.shape) / state.block;
      parts.emplace_back(name, RankedTensorType::get({blocks, state.block}, b.getI8Type()));
      parts.emplace_back(name + "_scale", RankedTensorType::get(blocks, b.getF32Type()));
    }
    return parts;
  }

  /// The new parameter and the new parts of its states.
  static SmallVector<Value> writeStep(OpBuilder &builder, const OptimizerSpec &spec, const TrainedParameter &parameter,
                                      ArrayRef<OptimizerState> kept, ArrayRef<Value> values, Value rate, Value step,
                                      Value clip) {
    OptimizerStep formula(builder, parameter.loc, spec);
    formula.parameter = formula.f32(values[0]);
    formula.gradient = formula.mul(formula.f32(values[1]), clip);
    ArrayRef<Value> parts = values.drop_front(2);
    auto take = [&] {
      Value part = parts.front();
      parts = parts.drop_front();
      return part;
    };
    for (const OptimizerState &state : kept) {
      Value first = take();
      formula.states.push_back(state.block ? decodeState(formula, state.code, {first, take()}, state.shape) : first);
    }
    formula.rate = rate;
    formula.step = formula.f32(step);
    formula.decay = parameter.weightDecay.value_or(spec["decay"]);
    auto element = cast<FloatType>(parameter.type.getElementType());
    formula.epsilon = std::ldexp(1.0, 1 - static_cast<int>(element.getFPMantissaWidth()));
    SmallVector<Value> written = spec.write(formula), results = {written[0]};
    for (auto [state, value] : llvm::zip_equal(kept, ArrayRef(written).drop_front())) {
      if (state.block) {
        auto [codes, scales] = encodeState(formula, state.code, value, state.block, formula.step);
        results.append({codes, scales});
      } else {
        results.push_back(value);
      }
    }
    if (formula.step.use_empty())
      formula.step.getDefiningOp()->erase();
    results[0] = formula.to(results[0], parameter.type.getElementType());
    return results;
  }
};
} // namespace
