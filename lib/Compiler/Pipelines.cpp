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

using namespace mlir;
using namespace segue;

static void addCleanup(OpPassManager &pm) {
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

/// Takes `setting` out of the settings of an optimizer: true if it is set.
static bool take(StringRef setting, SmallVectorImpl<StringRef> &keys, std::string &error) {
  bool isSet = false, isGiven = false;
  llvm::erase_if(keys, [&](StringRef key) {
    auto [name, value] = key.split('=');
    if (name != setting)
      return false;
    if (std::exchange(isGiven, true))
      error = ("an optimizer was given " + setting + " twice").str();
    isSet = value == "true" || value == "1" || value.empty();
    if (!isSet && value != "false" && value != "0")
      error = (setting + " of an optimizer is true or false, not \"" + value + "\"").str();
    return true;
  });
  return isSet;
}

static constexpr StringLiteral kInBackward = "in-backward", kInForward = "in-forward";

bool segue::updatesInForward(StringRef optimizer) {
  SmallVector<StringRef> keys;
  optimizer.split(':').second.split(keys, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  std::string error;
  return take(kInForward, keys, error);
}

/// Makes the pass that `kind:key=value,...` configures. `inBackward` tells whether the pass
/// that moves it into backward is to follow.
static std::unique_ptr<Pass> createOptimizer(StringRef spec, bool &inBackward, std::string &error) {
  auto [kind, settings] = spec.split(':');
  SmallVector<StringRef> keys;
  settings.split(keys, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  inBackward = take(kInBackward, keys, error);
  if (take(kInForward, keys, error) && inBackward)
    error = "in-backward and in-forward: a parameter is updated in one place, give one of them";
  std::string rest = (kind + ":" + llvm::join(keys, ",")).str();
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
  bool inBackward = false;
  std::unique_ptr<Pass> pass = createOptimizer(optimizer, inBackward, error);
  if (!pass)
    return failure();
  pm.addPass(std::move(pass));
  if (inBackward)
    pm.addPass(createSegueUpdateInBackward());
  return success();
}

void segue::buildLayoutPipeline(OpPassManager &pm, StringRef stitchHints, StringRef frozenStorage) {
  SegueAssignLayoutsOptions options;
  options.hints = stitchHints.str();
  options.frozenStorage = frozenStorage.str();
  pm.addPass(createSegueAssignLayouts(options));
}

void segue::buildFusionPipeline(OpPassManager &pm, bool gpu) {
  if (gpu)
    pm.addNestedPass<func::FuncOp>(createSegueFuseEpilogues());
  pm.addNestedPass<func::FuncOp>(createSegueExpand());
  addCleanup(pm);
  pm.addNestedPass<func::FuncOp>(createSegueFormKernels());
}

void segue::buildKernelPipeline(OpPassManager &pm, OpenLayouts layouts, bool gpu) {
  buildFusionPipeline(pm, gpu);
  pm.addPass(createSegueOutlineKernels({.gpu = gpu}));
  pm.addNestedPass<func::FuncOp>(createSegueGroupBlocks());
  if (layouts.choose)
    pm.addPass(createSegueChooseLayouts({.explain = layouts.explain}));
  pm.addPass(createSegueRecomputePrograms());
}

void segue::buildProgramPipeline(OpPassManager &pm, uint64_t l1Bytes, OpenLayouts layouts, bool updatesInForward) {
  pm.addPass(createSegueToProg({.chooseOrders = layouts.choose, .explain = layouts.explain}));
  if (updatesInForward)
    pm.addPass(prog::createProgUpdateInForward());
  if (l1Bytes)
    pm.addNestedPass<prog::ProgramOp>(prog::createProgPlaceInL1({.l1Bytes = l1Bytes}));
  pm.addNestedPass<prog::ProgramOp>(prog::createProgPlanMemory());
  pm.addNestedPass<prog::ProgramOp>(prog::createProgListAlternatives());
}

namespace {
struct TrainingOptions : PassPipelineOptions<TrainingOptions> {
  Option<std::string> optimizer{*this, "optimizer", llvm::cl::desc("kind[:key=value,...] of segue-optimizer, in-backward=true too, or none"),
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
