//===- Pipelines.cpp - passes in their order ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/Pipelines.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"
#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace segue;

static void addCleanup(OpPassManager &pm) {
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

static SmallVector<StringRef> settingsOf(StringRef optimizer) {
  SmallVector<StringRef> keys;
  optimizer.split(':').second.split(keys, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  return keys;
}

/// Takes `updates` out of the settings of an optimizer.
static Updates takeUpdates(SmallVectorImpl<StringRef> &keys, std::string &error) {
  Updates updates = Updates::AfterBackward;
  llvm::erase_if(keys, [&](StringRef key) {
    auto [name, value] = key.split('=');
    if (name != "updates")
      return false;
    auto known = llvm::StringSwitch<std::optional<Updates>>(value)
                     .Case("after-backward", Updates::AfterBackward)
                     .Case("in-backward", Updates::InBackward)
                     .Case("in-forward", Updates::InForward)
                     .Default(std::nullopt);
    if (!known)
      error = ("updates of an optimizer are after-backward, in-backward or in-forward, not \"" + value + "\"").str();
    updates = known.value_or(updates);
    return true;
  });
  return updates;
}

Updates segue::updatesOf(StringRef optimizer) {
  SmallVector<StringRef> keys = settingsOf(optimizer);
  std::string error;
  return takeUpdates(keys, error);
}

/// Makes the pass that `kind:key=value,...` configures, but for where it updates.
static std::unique_ptr<Pass> createOptimizer(StringRef spec, std::string &error) {
  SmallVector<StringRef> keys = settingsOf(spec);
  takeUpdates(keys, error);
  std::string rest = (spec.split(':').first + ":" + llvm::join(keys, ",")).str();
  if (error.empty())
    error = findOptimizerError(rest);
  return error.empty() ? createSegueOptimizer({.optimizer = rest}) : nullptr;
}

void segue::buildBlockPipeline(OpPassManager &pm, bool blockPrograms) {
  if (!blockPrograms)
    return;
  addCleanup(pm);
  pm.addPass(createSegueOutlineBlocks());
}

LogicalResult segue::buildTrainingPipeline(OpPassManager &pm, StringRef optimizer, std::string &error,
                                           StatisticsPer statistics) {
  addCleanup(pm);
  pm.addPass(createSegueAutodiff());
  addCleanup(pm);
  pm.addPass(createSeguePlanSaved());
  addCleanup(pm);
  if (statistics != StatisticsPer::Nothing)
    pm.addPass(createSegueGradientStatistics({.perLayer = statistics == StatisticsPer::Layer}));
  if (optimizer == "none")
    return success();
  std::unique_ptr<Pass> pass = createOptimizer(optimizer, error);
  if (!pass)
    return failure();
  pm.addPass(std::move(pass));
  if (updatesOf(optimizer) == Updates::InBackward)
    pm.addPass(createSegueUpdateInBackward());
  return success();
}

void segue::buildLayoutPipeline(OpPassManager &pm, StringRef stitchHints, StringRef frozenStorage) {
  SegueAssignLayoutsOptions options;
  options.hints = stitchHints.str();
  options.frozenStorage = frozenStorage.str();
  pm.addPass(createSegueAssignLayouts(options));
}

void segue::buildFusionPipeline(OpPassManager &pm) {
  pm.addNestedPass<func::FuncOp>(createSegueExpand());
  addCleanup(pm);
  pm.addNestedPass<func::FuncOp>(createSegueFormKernels());
}

void segue::buildKernelPipeline(OpPassManager &pm, OpenLayouts layouts, bool gpu) {
  buildFusionPipeline(pm);
  pm.addPass(createSegueOutlineKernels({.gpu = gpu}));
  pm.addNestedPass<func::FuncOp>(createSegueGroupBlocks());
  if (layouts.choose)
    pm.addPass(createSegueChooseLayouts({.explain = layouts.explain}));
  pm.addPass(createSegueRecomputePrograms());
}

void segue::buildProgramPipeline(OpPassManager &pm, uint64_t l1Bytes, OpenLayouts layouts, bool updatesInForward) {
  pm.addPass(createSegueToProg({.chooseOrders = layouts.choose, .explain = layouts.explain}));
  pm.addPass(prog::createProgNormInBackward());
  if (updatesInForward)
    pm.addPass(prog::createProgUpdateInForward());
  if (l1Bytes)
    pm.addNestedPass<prog::ProgramOp>(prog::createProgPlaceInL1({.l1Bytes = l1Bytes}));
  pm.addNestedPass<prog::ProgramOp>(prog::createProgPlanMemory());
  pm.addNestedPass<prog::ProgramOp>(prog::createProgListAlternatives());
}

namespace {
struct TrainingOptions : PassPipelineOptions<TrainingOptions> {
  Option<std::string> optimizer{
      *this, "optimizer", llvm::cl::desc("kind[:key=value,...] of segue-optimizer, updates=in-backward too, or none"),
      llvm::cl::init("adamw")};
  Option<StatisticsPer> gradientStatistics{*this, "gradient-statistics",
                                           llvm::cl::desc("@backward returns statistics of the gradients of each"),
                                           llvm::cl::values(clEnumValN(StatisticsPer::Nothing, "nothing", "of none"),
                                                            clEnumValN(StatisticsPer::Block, "block", "block"),
                                                            clEnumValN(StatisticsPer::Layer, "layer", "linear layer")),
                                           llvm::cl::init(StatisticsPer::Nothing)};
  Option<bool> blockPrograms{*this, "block-programs", llvm::cl::desc("A function for each block of @forward, too"),
                             llvm::cl::init(false)};
};

struct ProgramOptions : PassPipelineOptions<ProgramOptions> {
  Option<bool> inForward{*this, "in-forward", llvm::cl::desc("A forward that updates its parameters first, too"),
                         llvm::cl::init(false)};
};

struct LayoutOptions : PassPipelineOptions<LayoutOptions> {
  Option<std::string> hints{*this, "hints", llvm::cl::desc("file that the runtime's StitchReport::writeHints wrote")};
  Option<std::string> frozenStorage{*this, "frozen-storage",
                                    llvm::cl::desc("how frozen matrices that only products read are stored")};
};
} // namespace

void segue::registerSeguePipelines() {
  PassPipelineRegistration<TrainingOptions>(
      "segue-training-pipeline", "Derive @backward, plan what is saved, make @optimizer",
      [](OpPassManager &pm, const TrainingOptions &options) {
        std::string error;
        buildBlockPipeline(pm, options.blockPrograms);
        if (failed(buildTrainingPipeline(pm, options.optimizer, error, options.gradientStatistics)))
          llvm::report_fatal_error(llvm::Twine("segue-training-pipeline: ") + error, /*gen_crash_diag=*/false);
      });
  PassPipelineRegistration<LayoutOptions>("segue-layout-pipeline", "Decide the layouts of inputs and outputs",
                                          [](OpPassManager &pm, const LayoutOptions &options) {
                                            buildLayoutPipeline(pm, options.hints, options.frozenStorage);
                                          });
  PassPipelineRegistration<>("segue-kernel-pipeline", "Expand composite ops and move them into kernels",
                             [](OpPassManager &pm) { buildKernelPipeline(pm); });
  PassPipelineRegistration<ProgramOptions>(
      "segue-program-pipeline", "Make programs, plan their memory, list alternatives",
      [](OpPassManager &pm, const ProgramOptions &options) { buildProgramPipeline(pm, 0, {}, options.inForward); });
}
