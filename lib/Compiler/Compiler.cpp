//===- Compiler.cpp - a module and options to the bytes of a file ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/Compiler.h"
#include "KernelSegments.h"
#include "ParsedText.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Target/CPU/CPUTarget.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include "segue/Target/NVPTX/NVPTXTarget.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace segue;

static constexpr llvm::StringLiteral kKernels = "kernels";

static std::string print(Operation *op) {
  std::string text;
  llvm::raw_string_ostream os(text);
  op->print(os);
  if (text.empty() || text.back() != '\n')
    text += '\n';
  return text;
}

/// The module of kernels of that name as text, or an empty one.
static std::string printKernels(ModuleOp module, llvm::StringRef name) {
  auto kernels = module.lookupSymbol<ModuleOp>(name);
  return kernels ? print(kernels) : ("module @" + name + " {\n}\n").str();
}

namespace {
/// The settings, "name=value,...", of the parameters that have a weight decay or learning rate of
/// their own: with the optimizer's spec, all that decides what a step of the file does.
struct OwnSettings {
  std::string weightDecay, rateGroup, optimizers;
};
} // namespace

static std::string printed(double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.17g", number);
  return text;
}

static OwnSettings ownSettings(func::FuncOp forward) {
  OwnSettings own;
  auto add = [](std::string &text, StringRef name, const Twine &value) {
    text += ((text.empty() ? "" : ",") + name + "=" + value).str();
  };
  for (unsigned i = 0; i < forward.getNumArguments(); ++i) {
    auto name = forward.getArgAttrOfType<StringAttr>(i, SegueDialect::kNameAttr);
    if (!name)
      continue;
    if (auto decay = forward.getArgAttrOfType<FloatAttr>(i, "segue.weight_decay"))
      add(own.weightDecay, name.getValue(), printed(decay.getValueAsDouble()));
    if (auto group = forward.getArgAttrOfType<IntegerAttr>(i, "segue.rate_group"); group && group.getInt())
      add(own.rateGroup, name.getValue(), Twine(group.getInt()));
    if (auto optimizer = forward.getArgAttrOfType<StringAttr>(i, "segue.optimizer"))
      own.optimizers += ((own.optimizers.empty() ? "" : ";") + name.getValue() + "=" + optimizer.getValue()).str();
  }
  return own;
}

static SmallVector<std::string> targetsOf(const CompileOptions &options) {
  SmallVector<std::string> targets;
  if (options.v3)
    targets.push_back("x86_64_v3");
  if (options.v4)
    targets.push_back("x86_64_v4");
  if (options.gpuCapability)
    targets.push_back("sm_" + std::to_string(options.gpuCapability));
  return targets;
}

/// Notes version, producer and options, as the file keeps them.
static void sign(ModuleOp module, const CompileOptions &options, const OwnSettings &own) {
  Builder builder(module.getContext());
  NamedAttrList kept;
  auto keep = [&](StringRef key, StringRef value) { kept.set(key, builder.getStringAttr(value)); };
  keep("name", options.name);
  keep("optimizer", options.training ? options.optimizer : "none");
  std::string targets = llvm::join(targetsOf(options), ",");
  keep("targets", targets);
  keep("training", options.training ? "true" : "false");
  if (!own.weightDecay.empty())
    keep("weight_decay", own.weightDecay);
  if (!own.rateGroup.empty())
    keep("rate_group", own.rateGroup);
  if (!own.optimizers.empty())
    keep("optimizers", own.optimizers);
  module->setAttr(prog::ProgDialect::kVersionAttr,
                  builder.getDenseI32ArrayAttr({prog::ProgDialect::kVersionMajor, prog::ProgDialect::kVersionMinor}));
  module->setAttr(prog::ProgDialect::kProducerAttr, builder.getStringAttr("segue " SEGUE_VERSION));
  module->setAttr(prog::ProgDialect::kOptionsAttr, kept.getDictionary(module.getContext()));
}

std::string segue::readTargets(ArrayRef<std::string> targets, CompileOptions &options) {
  options.v3 = options.v4 = false;
  for (const std::string &target : targets) {
    options.v3 |= target == "x86-64-v3";
    options.v4 |= target == "x86-64-v4";
    if (target == "x86-64-v3" || target == "x86-64-v4")
      continue;
    std::string known = "x86-64-v3, x86-64-v4";
    unsigned found = 0;
    for (unsigned capability : gpuCapabilities()) {
      std::string name = "sm_" + std::to_string(capability);
      found = target == name ? capability : found;
      known += ", " + name;
    }
    if (!found)
      return "unknown target \"" + target + "\"; known are " + known;
    if (!llvm::is_contained(options.cubins.capabilities, found))
      options.cubins.capabilities.push_back(found);
  }
  llvm::sort(options.cubins.capabilities);
  options.gpuCapability = options.cubins.capabilities.empty() ? 0 : options.cubins.capabilities.front();
  return "";
}

namespace {
/// The parts of a compilation, each of which ends with forms that can be written.
enum class Stage { Training, Kernels, Programs };
} // namespace

static Stage stageOf(Emit emit) {
  switch (emit) {
  case Emit::Segue:
    return Stage::Training;
  case Emit::Loops:
  case Emit::LLVM:
  case Emit::Assembly:
  case Emit::Gpu:
  case Emit::NVVM:
  case Emit::PTX:
    return Stage::Kernels;
  case Emit::Prog:
  case Emit::Binary:
    return Stage::Programs;
  }
  llvm_unreachable("all forms are above");
}

namespace {
/// Runs the parts of a compilation, each in its own timing scope.
class Compilation {
public:
  Compilation(ModuleOp module, const CompileOptions &options, function_ref<LogicalResult(PassManager &)> configure,
              TimingScope *timing)
      : module(module), options(options), configure(configure), timing(timing) {}

  FailureOr<std::string> run() {
    if (!options.v3 && !options.v4 && !options.gpuCapability)
      return module.emitError() << "no instruction set to compile kernels for: ask for x86-64-v3, x86-64-v4 or both";
    bool emitsGpu = options.emit == Emit::Gpu || options.emit == Emit::NVVM || options.emit == Emit::PTX;
    if ((emitsGpu || !options.gpuTwins.empty()) && !options.gpuCapability)
      return module.emitError() << "kernels of a GPU need a target such as sm_90";
    auto forward = module.lookupSymbol<func::FuncOp>("forward");
    if (!forward)
      return module.emitError() << "module has no function @forward to compile";
    OwnSettings own = options.training ? ownSettings(forward) : OwnSettings();
    if (options.blockPrograms &&
        failed(runPasses("blocks", [](PassManager &pm) { return buildBlockPipeline(pm, true), success(); })))
      return failure();
    if (options.training && failed(runPasses("training", [&](PassManager &pm) -> LogicalResult {
          std::string error;
          if (succeeded(buildTrainingPipeline(pm, options.optimizer, error, options.gradientStatistics)))
            return success();
          return module.emitError() << "optimizer \"" << options.optimizer << "\": " << error;
        })))
      return failure();
    if (failed(runPasses("layouts", [&](PassManager &pm) {
          return buildLayoutPipeline(pm, options.stitchHints, options.frozenStorage), success();
        })))
      return failure();
    if (stageOf(options.emit) == Stage::Training)
      return print(module);

    OpenLayouts open{options.chooseLayouts, options.explainLayouts};
    if (failed(runPasses("kernels", [&](PassManager &pm) { return buildKernelPipeline(pm, open, options.gpuCapability), success(); })))
      return failure();
    CPUTargetOptions target{options.v3, options.v4, std::max(1u, options.threads)};
    if (stageOf(options.emit) == Stage::Kernels)
      return emitKernels(target);

    bool inForward = options.training && updatesInForward(options.optimizer);
    if (failed(runPasses("programs", [&](PassManager &pm) {
          return buildProgramPipeline(pm, options.l1Bytes, open, inForward), success();
        })))
      return failure();
    {
      TimingScope scope = timing ? timing->nest("kernels to ELF") : TimingScope();
      if (failed(attachKernels(module, target, options)))
        return failure();
    }
    sign(module, options, own);
    TimingScope scope = timing ? timing->nest("write") : TimingScope();
    if (failed(verify(module)))
      return failure();
    if (options.emit == Emit::Prog)
      return print(module);
    std::string file;
    llvm::raw_string_ostream os(file);
    if (failed(exportBinary(module, os)))
      return failure();
    return file;
  }

private:
  /// Returns the kernels in the form that is asked for; nothing where there are none.
  FailureOr<std::string> emitKernels(const CPUTargetOptions &target) {
    auto kernels = module.lookupSymbol<ModuleOp>(kKernels), ofGpu = module.lookupSymbol<ModuleOp>(kGpuKernelsModule);
    switch (options.emit) {
    case Emit::Loops:
      return printKernels(module, kKernels);
    case Emit::LLVM:
      return kernels ? kernelsToLLVM(kernels, target) : std::string();
    case Emit::Assembly:
      return kernels ? kernelsToAssembly(kernels, target) : std::string();
    case Emit::Gpu:
      return printKernels(module, kGpuKernelsModule);
    case Emit::NVVM:
      return ofGpu ? gpuKernelsToNVVM(ofGpu, options.gpuCapability) : std::string();
    case Emit::PTX:
      return ofGpu ? gpuKernelsToPTX(ofGpu, options.gpuCapability) : std::string();
    case Emit::Segue:
    case Emit::Prog:
    case Emit::Binary:
      break;
    }
    llvm_unreachable("no form of kernels");
  }

  LogicalResult runPasses(StringRef name, function_ref<LogicalResult(PassManager &)> build) {
    TimingScope scope = timing ? timing->nest(name) : TimingScope();
    PassManager pm = PassManager::on<ModuleOp>(module.getContext());
    if (configure && failed(configure(pm)))
      return failure();
    if (timing)
      pm.enableTiming(scope);
    return failure(failed(build(pm)) || failed(pm.run(module)));
  }

  ModuleOp module;
  const CompileOptions &options;
  function_ref<LogicalResult(PassManager &)> configure;
  TimingScope *timing;
};
} // namespace

FailureOr<std::string> segue::compile(ModuleOp module, const CompileOptions &options,
                                      function_ref<LogicalResult(PassManager &)> configure, TimingScope *timing) {
  return Compilation(module, options, configure, timing).run();
}

FailureOr<std::string> segue::compileText(StringRef text, const CompileOptions &options, std::string &diagnostics,
                                          StringRef source) {
  ParsedText parsed(text, source, diagnostics);
  if (!parsed.get())
    return failure();
  return compile(parsed.get(), options);
}
