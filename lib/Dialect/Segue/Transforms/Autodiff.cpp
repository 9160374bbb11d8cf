//===- Autodiff.cpp - makes @backward from @forward -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reverse mode over one block. First it is known which values lie between an
// argument that wants a gradient and a float output. Then the ops between are
// visited from last to first, and each turns the gradients of its results into
// gradients of its operands through DifferentiableOpInterface. These ops use
// forward values freely; SavedValues.h cuts the two functions apart at the end.
//
//===----------------------------------------------------------------------===//

#include "BlockTagger.h"
#include "SavedValues.h"
#include "TrainingSignature.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEAUTODIFF
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// What gets a gradient
//===----------------------------------------------------------------------===//

/// Returns parameters, then inputs, each in the order of the arguments.
static SmallVector<BlockArgument> findWantedArguments(func::FuncOp forward) {
  SmallVector<BlockArgument> parameters, inputs;
  for (BlockArgument argument : forward.getArguments()) {
    unsigned index = argument.getArgNumber();
    auto requiresGrad = forward.getArgAttrOfType<BoolAttr>(index, kRequiresGradAttr);
    if (!isFloatTensor(argument.getType()) || (requiresGrad && !requiresGrad.getValue()))
      continue;
    Role role = argumentRole(forward, index);
    if (role == Role::Parameter)
      parameters.push_back(argument);
    else if (role == Role::Input)
      inputs.push_back(argument);
  }
  llvm::append_range(parameters, inputs);
  return parameters;
}

namespace {
/// The float values on a path from a wanted argument to a float output.
class Activity {
public:
  Activity(func::FuncOp forward, ArrayRef<BlockArgument> wanted) {
    DenseSet<Value> depends(wanted.begin(), wanted.end());
    Block &block = forward.getBody().front();
    for (Operation &op : block.without_terminator())
      if (!isa<DetachOp>(op) && llvm::any_of(op.getOperands(), [&](Value operand) { return depends.contains(operand); }))
        for (Value result : op.getResults())
          if (isFloatTensor(result.getType()))
            depends.insert(result);
    DenseSet<Value> matters;
    for (Value output : block.getTerminator()->getOperands())
      if (isFloatTensor(output.getType()))
        matters.insert(output);
    for (Operation &op : llvm::reverse(block.without_terminator()))
      if (llvm::any_of(op.getResults(), [&](Value result) { return matters.contains(result); }))
        matters.insert(op.operand_begin(), op.operand_end());
    for (Value value : depends)
      if (matters.contains(value))
        active.insert(value);
  }

  bool contains(Value value) const { return active.contains(value); }
  bool isActive(Operation *op) const {
    return llvm::any_of(op->getOperands(), [&](Value operand) { return contains(operand); }) &&
           llvm::any_of(op->getResults(), [&](Value result) { return contains(result); });
  }

private:
  DenseSet<Value> active;
};

/// Writes the body of backward.
class GradientWriter {
public:
  GradientWriter(const Activity &activity, Block *body)
      : activity(activity), builder(OpBuilder::atBlockEnd(body, &tagger)) {}

  void addContribution(Value value, Value gradient) { contributions[value].push_back(gradient); }

  /// Turns the gradients of the results of `op` into contributions to those of
  /// its operands.
  LogicalResult visit(Operation *op);

  /// The whole gradient of `value`; null if nothing reached it.
  Value gradientOf(Value value, Location loc);

  OpBuilder &getBuilder() { return builder; }
  void clearBlock() { tagger.block = {}; }

private:
  const Activity &activity;
  BlockTagger tagger;
  OpBuilder builder;
  DenseMap<Value, SmallVector<Value>> contributions;
};
} // namespace

/// If `parts` are zero-padded pieces that tile a value of their type along one
/// dimension, returns the pieces in order and the dimension. That is what the
/// slices of a joined projection (q, k and v) leave: their gradients are then
/// put side by side rather than added with zeros around.
static std::optional<int64_t> findTiling(MutableArrayRef<PadOp> parts) {
  ArrayRef<int64_t> whole = cast<RankedTensorType>(parts.front().getType()).getShape();
  std::optional<int64_t> along;
  for (PadOp part : parts) {
    FloatAttr value = dyn_cast<FloatAttr>(part.getValue());
    if (!value || !value.getValue().isPosZero() || llvm::any_of(part.getInterior(), [](int64_t n) { return n != 0; }))
      return std::nullopt;
    for (int64_t dim = 0, rank = whole.size(); dim < rank; ++dim)
      if (part.getLow()[dim] != 0 || part.getHigh()[dim] != 0) {
        if (along && *along != dim)
          return std::nullopt;
        along = dim;
      }
  }
  if (!along)
    return std::nullopt;
  llvm::sort(parts, [&](PadOp a, PadOp b) { return a.getLow()[*along] < b.getLow()[*along]; });
  int64_t end = 0;
  for (PadOp part : parts) {
    if (part.getLow()[*along] != end)
      return std::nullopt;
    end = whole[*along] - part.getHigh()[*along];
  }
  return end == whole[*along] ? along : std::nullopt;
}

Value GradientWriter::gradientOf(Value value, Location loc) {
  auto found = contributions.find(value);
  if (found == contributions.end())
    return {};
  SmallVector<Value> &parts = found->second;
  if (parts.size() == 1)
    return parts.front();

  Value sum;
  SmallVector<PadOp> pads;
  for (Value part : parts)
    if (auto pad = part.getDefiningOp<PadOp>())
      pads.push_back(pad);
  if (pads.size() == parts.size())
    if (std::optional<int64_t> dim = findTiling(pads)) {
      SmallVector<Value> pieces = llvm::map_to_vector(pads, [](PadOp pad) { return Value(pad.getInput()); });
      sum = ConcatOp::create(builder, loc, pieces, *dim);
    }
  if (!sum) {
    sum = parts.front();
    for (Value part : ArrayRef(parts).drop_front())
      sum = AddOp::create(builder, loc, sum, part);
  }
  parts.assign({sum});
  return sum;
}

LogicalResult GradientWriter::visit(Operation *op) {
  tagger.block = op->getAttr(SegueDialect::kBlockAttr);
  auto differentiable = dyn_cast<DifferentiableOpInterface>(op);
  if (!differentiable) {
    InFlightDiagnostic error = op->emitOpError("has no derivative, but lies on the way from a value that wants a "
                                               "gradient to an output");
    for (Value operand : op->getOperands())
      if (activity.contains(operand)) {
        error.attachNote(operand.getLoc()) << "this operand wants a gradient; give its arguments role `frozen` or "
                                              "`segue.requires_grad = false` if it should not";
        break;
      }
    return error;
  }

  SmallVector<Value> resultGradients;
  for (Value result : op->getResults())
    resultGradients.push_back(activity.contains(result) ? gradientOf(result, op->getLoc()) : Value());
  if (llvm::none_of(resultGradients, [](Value gradient) { return !!gradient; }))
    return success();
  SmallVector<bool> wanted;
  for (Value operand : op->getOperands())
    wanted.push_back(activity.contains(operand));
  auto gradients = differentiable.buildGradients(builder, resultGradients, wanted);
  if (failed(gradients))
    return failure();
  if (gradients->size() != op->getNumOperands())
    return op->emitOpError("has a derivative that gives ")
           << gradients->size() << " gradients for " << op->getNumOperands() << " operands";

  for (auto [operand, want, gradient] : llvm::zip_equal(op->getOperands(), wanted, *gradients)) {
    if (!want || !gradient)
      continue;
    if (gradient.getType() != operand.getType())
      return op->emitOpError("has a derivative that gives a gradient of type ")
             << gradient.getType() << " for an operand of type " << operand.getType();
    addContribution(operand, gradient);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// Makes @backward without arguments and results.
static func::FuncOp createBackward(func::FuncOp forward) {
  OpBuilder builder(forward.getContext());
  builder.setInsertionPointAfter(forward);
  auto backward =
      func::FuncOp::create(builder, forward.getLoc(), SegueDialect::kBackward, builder.getFunctionType({}, {}));
  backward.addEntryBlock();
  return backward;
}

/// Adds an argument per active output: where gradients start from.
static void addSeeds(func::FuncOp forward, func::FuncOp backward, const Activity &activity, GradientWriter &writer) {
  MLIRContext *context = forward.getContext();
  Operation *terminator = forward.getBody().front().getTerminator();
  for (auto [index, output] : llvm::enumerate(terminator->getOperands())) {
    if (!activity.contains(output))
      continue;
    StringRef name = resultName(forward, index);
    (void)backward.insertArgument(backward.getNumArguments(), output.getType(),
                                  signatureAttrs(context, (kGradientPrefix + name).str(), Role::Gradient, name),
                                  output.getLoc());
    writer.addContribution(output, backward.getArguments().back());
  }
}

/// Returns the gradient of each wanted argument, zeros where nothing reached it.
static void addResults(func::FuncOp forward, func::FuncOp backward, ArrayRef<BlockArgument> wanted,
                       GradientWriter &writer) {
  writer.clearBlock();
  OpBuilder &builder = writer.getBuilder();
  SmallVector<Value> gradients;
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attrs;
  for (BlockArgument argument : wanted) {
    Value gradient = writer.gradientOf(argument, argument.getLoc());
    if (!gradient)
      gradient = ConstantOp::create(builder, argument.getLoc(), cast<RankedTensorType>(argument.getType()), 0.0);
    gradients.push_back(gradient);
    types.push_back(argument.getType());
    StringRef name = argumentName(forward, argument.getArgNumber());
    attrs.push_back(signatureAttrs(builder.getContext(), (kGradientPrefix + name).str(), Role::Gradient, name));
  }
  func::ReturnOp::create(builder, forward.getLoc(), gradients);
  (void)backward.insertResults(SmallVector<unsigned>(types.size(), 0), types, attrs);
}

/// Erases ops that nobody reads: derivatives may build some that nobody asked for.
static void eraseDeadOps(func::FuncOp function) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(function.getBody().front())))
    if (isOpTriviallyDead(&op))
      op.erase();
}

static LogicalResult checkModule(ModuleOp module, func::FuncOp forward) {
  for (StringRef name : {StringRef(SegueDialect::kBackward), StringRef(kInference)})
    if (Operation *other = module.lookupSymbol(name))
      return other->emitError() << "`segue-autodiff` makes `@" << name << "`, but the module has one";
  for (unsigned index = 0; index < forward.getNumResults(); ++index)
    if (resultRole(forward, index) != Role::Output)
      return forward.emitError() << "result " << index << " of `@forward` has role `"
                                 << stringifyRole(resultRole(forward, index))
                                 << "`; before `segue-autodiff` all results are outputs";
  return requireNames(forward);
}

namespace {
struct Autodiff : segue::impl::SegueAutodiffBase<Autodiff> {
  void runOnOperation() override {
    if (failed(differentiate(getOperation())))
      signalPassFailure();
  }

  LogicalResult differentiate(ModuleOp module) {
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    if (failed(forward) || failed(checkModule(module, *forward)))
      return failure();
    SmallVector<BlockArgument> wanted = findWantedArguments(*forward);
    if (!wanted.empty() && llvm::none_of(forward->getResultTypes(), isFloatTensor))
      return forward->emitError() << "`@forward` has no float output, so \""
                                  << argumentName(*forward, wanted.front().getArgNumber())
                                  << "\" can get no gradient; make it `frozen` or return a float";

    for (BlockArgument argument : wanted)
      if (!isStorable(argument.getType()))
        return forward->emitError() << "argument " << argument.getArgNumber() << " of `@forward` wants a gradient, but "
                                    << argument.getType() << " is no tensor that a program holds";

    func::FuncOp inference = forward->clone();
    inference.setName(kInference);
    Activity activity(*forward, wanted);
    func::FuncOp backward = createBackward(*forward);
    module.insert(std::next(backward->getIterator()), inference);

    GradientWriter writer(activity, &backward.getBody().front());
    addSeeds(*forward, backward, activity, writer);
    for (Operation &op : llvm::reverse(forward->getBody().front().without_terminator()))
      if (activity.isActive(&op) && failed(writer.visit(&op)))
        return failure();
    addResults(*forward, backward, wanted, writer);
    eraseDeadOps(backward);

    ValueSet needed = neededValues(*forward, backward);
    ValueSet saved = recomputationOf(needed, [](Value v) { return remakeOf(v.getDefiningOp()) != Remake::Always; }).leaves;
    Separation separation = separate(*forward, backward, saved);
    valuesSaved += separation.saved.size();
    for (Value value : separation.saved)
      bytesSaved += tensorBytes(value.getType());
    return failure(failed(requireDistinctNames(*forward, getArgument())) ||
                   failed(requireDistinctNames(backward, getArgument())));
  }
};
} // namespace
