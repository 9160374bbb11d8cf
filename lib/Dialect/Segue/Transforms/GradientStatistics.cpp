//===- GradientStatistics.cpp - segue-gradient-statistics -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlockTagger.h"
#include "TrainingSignature.h"
#include "WholeReduction.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEGRADIENTSTATISTICS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

namespace {
/// A part of the model that a result of statistics is over.
struct Unit {
  StringAttr block;
  SmallVector<Value> gradients;
};
/// Units by the names that results give them.
using Units = llvm::MapVector<StringAttr, Unit>;

/// The parameters of a block, trained or frozen, by name.
struct BlockParameters {
  struct Trained {
    StringRef name;
    bool isMatrix;
  };
  SmallVector<Trained> trained;
  SmallVector<StringRef> frozenLayers, trainedLayers;
};
} // namespace

/// Returns "h.0.fc" of "h.0.fc.weight".
static StringRef parentOf(StringRef name) { return name.contains('.') ? name.rsplit('.').first : StringRef(); }

static bool isAtOrBelow(StringRef name, StringRef path) {
  return name.consume_front(path) && (name.empty() || name.front() == '.');
}

/// The layer that is nearest to a parameter in the tree of names, if just one
/// is. The search ends below the block, or for a matrix, which a norm is not, with
/// all of it.
static StringRef nearestLayer(BlockParameters::Trained parameter, ArrayRef<StringRef> layers, StringRef block) {
  bool isInBlock = true;
  for (StringRef path = parentOf(parameter.name); !path.empty() && isInBlock; path = parentOf(path)) {
    isInBlock = path != block;
    if (!isInBlock && !parameter.isMatrix)
      break;
    StringRef found;
    unsigned count = 0;
    for (StringRef layer : layers)
      if (isAtOrBelow(layer, path))
        found = layer, ++count;
    if (count)
      return count == 1 ? found : StringRef();
  }
  return {};
}

/// Returns, by parameter, the unit that its gradient counts for.
static llvm::StringMap<StringRef> layersOfParameters(const BlockParameters &block, StringRef name) {
  llvm::StringMap<StringRef> layers;
  for (BlockParameters::Trained parameter : block.trained) {
    StringRef layer = nearestLayer(parameter, block.frozenLayers, name);
    if (layer.empty())
      layer = nearestLayer(parameter, block.trainedLayers, name);
    if (!layer.empty())
      layers[parameter.name] = layer;
  }
  return layers;
}

/// The units in the order of `forward` with the gradients of their parameters.
static Units gradientsByUnit(func::FuncOp forward, func::FuncOp backward, bool perLayer) {
  llvm::MapVector<StringAttr, BlockParameters> blocks;
  for (Operation &op : forward.getBody().front())
    if (auto block = op.getAttrOfType<StringAttr>(SegueDialect::kBlockAttr))
      blocks[block];
  for (BlockArgument argument : forward.getArguments()) {
    unsigned index = argument.getArgNumber();
    Role role = argumentRole(forward, index);
    auto block = dyn_cast_if_present<StringAttr>(blockOfFirstUser(argument));
    if (!block || (role != Role::Parameter && role != Role::Frozen))
      continue;
    StringRef name = argumentName(forward, index);
    BlockParameters &parameters = blocks[block];
    bool isMatrix = cast<RankedTensorType>(argument.getType()).getRank() == 2;
    if (role == Role::Parameter)
      parameters.trained.push_back({name, isMatrix});
    if (name.ends_with(".weight") && isMatrix)
      (role == Role::Frozen ? parameters.frozenLayers : parameters.trainedLayers).push_back(parentOf(name));
  }

  Units units;
  llvm::StringMap<StringAttr> unitOf;
  for (auto &[block, parameters] : blocks) {
    if (!perLayer) {
      units[block].block = block;
      for (const BlockParameters::Trained &parameter : parameters.trained)
        unitOf[parameter.name] = block;
      continue;
    }
    for (const auto &[name, layer] : layersOfParameters(parameters, block.getValue()))
      unitOf[name] = StringAttr::get(forward.getContext(), layer);
    for (ArrayRef<StringRef> layers : {ArrayRef(parameters.frozenLayers), ArrayRef(parameters.trainedLayers)})
      for (StringRef layer : layers)
        units[StringAttr::get(forward.getContext(), layer)].block = block;
  }
  Operation *terminator = backward.getBody().front().getTerminator();
  for (unsigned index = 0; index < backward.getNumResults(); ++index) {
    auto of = backward.getResultAttrOfType<StringAttr>(index, SegueDialect::kOfAttr);
    StringAttr unit = of ? unitOf.lookup(of.getValue()) : StringAttr();
    if (unit && resultRole(backward, index) == Role::Gradient)
      units[unit].gradients.push_back(terminator->getOperand(index));
  }
  units.remove_if([](auto &entry) { return entry.second.gradients.empty(); });
  return units;
}

/// Writes an f32 [4]: sum of squares, greatest magnitude, sum, count.
static Value writeStatistics(OpBuilder &b, ArrayRef<Value> gradients) {
  Location loc = b.getFusedLoc(llvm::map_to_vector(gradients, [](Value g) { return g.getLoc(); }));
  Value squares, greatest, sum;
  double count = 0;
  auto join = [&](Value &all, auto combine, Value one) { all = all ? combine(all, one) : one; };
  auto add = [&](Value a, Value c) -> Value { return AddOp::create(b, loc, a, c); };
  auto max = [&](Value a, Value c) -> Value { return MaxOp::create(b, loc, a, c); };
  for (Value gradient : gradients) {
    Value x = toF32(b, gradient.getLoc(), gradient);
    count += cast<RankedTensorType>(x.getType()).getNumElements();
    join(squares, add, reduceWhole(b, loc, ReduceKind::Sum, MulOp::create(b, loc, x, x)));
    join(greatest, max, reduceWhole(b, loc, ReduceKind::Max, AbsOp::create(b, loc, x)));
    join(sum, add, reduceWhole(b, loc, ReduceKind::Sum, x));
  }
  SmallVector<Value> parts;
  for (Value part : {squares, greatest, sum})
    parts.push_back(ReshapeOp::create(b, loc, part, ArrayRef<int64_t>{1}));
  parts.push_back(ConstantOp::create(b, loc, RankedTensorType::get({1}, b.getF32Type()), count));
  return ConcatOp::create(b, loc, parts, 0);
}

namespace {
struct GradientStatistics : segue::impl::SegueGradientStatisticsBase<GradientStatistics> {
  using SegueGradientStatisticsBase::SegueGradientStatisticsBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<func::FuncOp> forward = requireFunction(module, SegueDialect::kForward, getArgument());
    FailureOr<func::FuncOp> backward = requireFunction(module, SegueDialect::kBackward, getArgument());
    if (failed(forward) || failed(backward))
      return signalPassFailure();
    Operation *terminator = backward->getBody().front().getTerminator();
    BlockTagger tagger;
    OpBuilder builder(&getContext(), &tagger);
    builder.setInsertionPoint(terminator);
    for (auto &[name, unit] : gradientsByUnit(*forward, *backward, perLayer)) {
      tagger.block = unit.block;
      Value result = writeStatistics(builder, unit.gradients);
      terminator->insertOperands(terminator->getNumOperands(), result);
      (void)backward->insertResult(
          backward->getNumResults(), result.getType(),
          signatureAttrs(&getContext(), ("statistics." + name.getValue()).str(), Role::Statistics, name.getValue()));
      ++units;
    }
  }
};
} // namespace
