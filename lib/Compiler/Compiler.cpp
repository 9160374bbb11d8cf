//===- Compiler.cpp - a module and options to the bytes of a file ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/Compiler.h"
#include "ParsedText.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Target/CPU/CPUTarget.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
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

/// The module of kernels as text, or an empty one.
static std::string printKernels(ModuleOp module) {
  auto kernels = module.lookupSymbol<ModuleOp>(kKernels);
  return kernels ? print(kernels) : "module @kernels {\n}\n";
}

/// Compiles `@kernels` to a segment and tells each kernel its variants.
static LogicalResult attachKernels(ModuleOp module, const CPUTargetOptions &target) {
  auto kernels = module.lookupSymbol<ModuleOp>(kKernels);
  if (!kernels)
    return success();
  FailureOr<CompiledKernels> compiled = compileKernels(kernels, target);
  if (failed(compiled))
    return failure();
  kernels.erase();
  if (compiled->elf.empty())
    return success();

  OpBuilder builder(module.getContext());
  builder.setInsertionPointToStart(module.getBody());
  unsigned number = 0;
  for (auto segment : module.getOps<prog::SegmentOp>()) {
    builder.setInsertionPointAfter(segment);
    ++number;
  }
  std::string name = "segment" + std::to_string(number);
  auto type = RankedTensorType::get({static_cast<int64_t>(compiled->elf.size())}, builder.getI8Type());
  AsmResourceBlob blob = HeapAsmResourceBlob::allocateAndCopyWithAlign(
      ArrayRef<char>(compiled->elf.data(), compiled->elf.size()), prog::kAlignment, /*dataIsMutable=*/false);
  prog::SegmentOp::create(builder, builder.getUnknownLoc(), name, prog::SegmentKind::Elf, prog::kAlignment,
                          DenseResourceElementsAttr::get(type, name, std::move(blob)));

  auto segment = FlatSymbolRefAttr::get(module.getContext(), name);
  SymbolTable symbols(module);
  for (const KernelSymbol &kernel : compiled->kernels) {
    auto op = symbols.lookup<prog::KernelOp>(kernel.name);
    if (!op)
      return module.emitError() << "kernel \"" << kernel.name << "\" was compiled but not declared";
    SmallVector<Attribute> variants;
    auto add = [&](prog::Isa isa, const std::string &symbol) {
      if (!symbol.empty())
        variants.push_back(prog::VariantAttr::get(module.getContext(), isa, builder.getStringAttr(symbol), segment));
    };
    add(prog::Isa::X86_64_v3, kernel.v3Symbol);
    add(prog::Isa::X86_64_v4, kernel.v4Symbol);
    op.setVariantsAttr(builder.getArrayAttr(variants));
  }
  return success();
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

/// Notes version, producer and options, as the file keeps them.
static void sign(ModuleOp module, const CompileOptions &options, const OwnSettings &own) {
  Builder builder(module.getContext());
  NamedAttrList kept;
  auto keep = [&](StringRef key, StringRef value) { kept.set(key, builder.getStringAttr(value)); };
  keep("name", options.name);
  keep("optimizer", options.training ? options.optimizer : "none");
  keep("targets", options.v3 && options.v4 ? "x86_64_v3,x86_64_v4" : options.v3 ? "x86_64_v3" : "x86_64_v4");
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

namespace {
/// Runs the parts of a compilation, each in its own timing scope.
class Compilation {
public:
  Compilation(ModuleOp module, const CompileOptions &options, function_ref<LogicalResult(PassManager &)> configure,
              TimingScope *timing)
      : module(module), options(options), configure(configure), timing(timing) {}

  FailureOr<std::string> run() {
    if (!options.v3 && !options.v4)
      return module.emitError() << "no instruction set to compile kernels for: ask for x86-64-v3, x86-64-v4 or both";
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
    if (options.emit == Emit::Segue)
      return print(module);

    OpenLayouts open{options.chooseLayouts, options.explainLayouts};
    if (failed(runPasses("kernels", [&](PassManager &pm) { return buildKernelPipeline(pm, open), success(); })))
      return failure();
    CPUTargetOptions target{options.v3, options.v4, std::max(1u, options.threads)};
    auto kernels = module.lookupSymbol<ModuleOp>(kKernels);
    if (options.emit == Emit::Loops)
      return printKernels(module);
    if (options.emit == Emit::LLVM)
      return kernels ? kernelsToLLVM(kernels, target) : std::string();
    if (options.emit == Emit::Assembly)
      return kernels ? kernelsToAssembly(kernels, target) : std::string();

    bool inForward = options.training && updatesInForward(options.optimizer);
    if (failed(runPasses("programs", [&](PassManager &pm) {
          return buildProgramPipeline(pm, options.l1Bytes, open, inForward), success();
        })))
      return failure();
    {
      TimingScope scope = timing ? timing->nest("kernels to ELF") : TimingScope();
      if (failed(attachKernels(module, target)))
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
