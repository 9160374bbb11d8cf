//===- CPUTarget.cpp - kernels to native code -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels are dealt out to a fixed number of groups, each an LLVM module of its
// own, so that threads can work on them and the bytes stay the same. In a group
// every kernel is copied once per instruction set.
//
//===----------------------------------------------------------------------===//

#include "segue/Target/CPU/CPUTarget.h"
#include "../Kernels/Codegen.h"
#include "KernelsToLLVM.h"
#include "Link.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "segue/Target/CPU/HostCode.h"
#include <atomic>
#include <thread>

using namespace mlir;
using namespace segue;

/// The number of groups, which is more than threads, so that a slow one does not hold up the others.
constexpr size_t kGroups = 8;

namespace {
struct InstructionSet {
  StringRef suffix, cpu, vectorWidth;
};
} // namespace

constexpr InstructionSet kV3 = {".v3", "x86-64-v3", "256"};
constexpr InstructionSet kV4 = {".v4", "x86-64-v4", "512"};

static SmallVector<InstructionSet> instructionSets(const CPUTargetOptions &options) {
  SmallVector<InstructionSet> sets;
  if (options.v3)
    sets.push_back(kV3);
  if (options.v4)
    sets.push_back(kV4);
  return sets;
}

/// Copies every kernel for every instruction set and drops the originals.
static void specialize(llvm::Module &module, ArrayRef<InstructionSet> sets) {
  SmallVector<llvm::Function *> originals;
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      originals.push_back(&function);
  for (const InstructionSet &set : sets) {
    llvm::ValueToValueMapTy map;
    SmallVector<llvm::Function *> copies;
    // Bodies come before their entries, so that calls find the copy.
    for (llvm::Function *original : originals) {
      llvm::Function *copy = llvm::CloneFunction(original, map);
      copy->setName(original->getName() + set.suffix);
      copy->addFnAttr("target-cpu", set.cpu);
      copy->addFnAttr("prefer-vector-width", set.vectorWidth);
      copy->setDoesNotThrow();
      map[original] = copy;
      copies.push_back(copy);
    }
  }
  for (llvm::Function *original : llvm::reverse(originals)) {
    original->dropAllReferences();
    original->eraseFromParent();
  }
}

static SmallVector<func::FuncOp> sortedKernels(ModuleOp module) {
  SmallVector<func::FuncOp> kernels(module.getOps<func::FuncOp>());
  llvm::sort(kernels, [](func::FuncOp l, func::FuncOp r) { return l.getName() < r.getName(); });
  return kernels;
}

/// Runs every group through LLVM and `finish`; the answers in order of groups.
template <typename Finish>
static FailureOr<SmallVector<std::string>> compileGroups(ModuleOp module, const CPUTargetOptions &options,
                                                         size_t groupCount, Finish finish) {
  MLIRContext *context = module.getContext();
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registry.insert<LLVM::LLVMDialect>();
  context->appendDialectRegistry(registry);
  context->loadDialect<LLVM::LLVMDialect>();

  SmallVector<func::FuncOp> kernels = sortedKernels(module);
  groupCount = std::min(groupCount, kernels.size());
  SmallVector<OwningOpRef<ModuleOp>> groups;
  for (size_t group = 0; group < groupCount; ++group) {
    groups.push_back(ModuleOp::create(module.getLoc()));
    OpBuilder b = OpBuilder::atBlockEnd(groups.back()->getBody());
    for (size_t at = group; at < kernels.size(); at += groupCount)
      b.clone(*kernels[at]);
    if (failed(lowerKernels(*groups.back())))
      return failure();
  }

  SmallVector<std::string> results(groupCount);
  SmallVector<InstructionSet> sets = instructionSets(options);
  std::atomic<size_t> next = 0;
  std::atomic<bool> ok = true;
  auto work = [&] {
    while (true) {
      size_t group = next++;
      if (group >= groupCount)
        return;
      llvm::LLVMContext llvmContext;
      std::unique_ptr<llvm::Module> llvmModule = translateModuleToLLVMIR(*groups[group], llvmContext, "kernels");
      std::unique_ptr<llvm::TargetMachine> machine = createHostMachine(kV3.cpu);
      if (!llvmModule || !machine) {
        ok = false;
        return;
      }
      llvmModule->setTargetTriple(machine->getTargetTriple());
      llvmModule->setDataLayout(machine->createDataLayout());
      specialize(*llvmModule, sets);
      optimize(*llvmModule, *machine);
      results[group] = finish(*llvmModule, *machine);
    }
  };
  SmallVector<std::thread> threads;
  for (unsigned thread = 1; thread < std::min<size_t>(options.threads, groupCount); ++thread)
    threads.emplace_back(work);
  work();
  for (std::thread &thread : threads)
    thread.join();
  if (!ok)
    return module.emitError("LLVM has no x86-64 target, or kernels could not be translated");
  return results;
}

FailureOr<CompiledKernels> segue::compileKernels(ModuleOp module, const CPUTargetOptions &options) {
  CompiledKernels compiled;
  for (func::FuncOp kernel : sortedKernels(module)) {
    std::string name = kernel.getName().str();
    compiled.kernels.push_back({name, options.v3 ? name + kV3.suffix.str() : "", options.v4 ? name + kV4.suffix.str() : ""});
  }
  if (compiled.kernels.empty())
    return compiled;
  auto objects = compileGroups(module, options, kGroups, [](llvm::Module &llvmModule, llvm::TargetMachine &machine) {
    return emit(llvmModule, machine, llvm::CodeGenFileType::ObjectFile);
  });
  if (failed(objects))
    return failure();
  llvm::Expected<std::string> linked = linkShared(*objects);
  if (!linked)
    return module.emitError() << llvm::toString(linked.takeError());
  compiled.elf = std::move(*linked);
  return compiled;
}

static std::string joined(ArrayRef<std::string> parts) {
  std::string text;
  for (const std::string &part : parts)
    text += part;
  return text;
}

FailureOr<std::string> segue::kernelsToLLVM(ModuleOp module, const CPUTargetOptions &options) {
  auto parts = compileGroups(module, options, 1, [](llvm::Module &llvmModule, llvm::TargetMachine &) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    llvmModule.print(stream, nullptr);
    return text;
  });
  if (failed(parts))
    return failure();
  return joined(*parts);
}

FailureOr<std::string> segue::kernelsToAssembly(ModuleOp module, const CPUTargetOptions &options) {
  auto parts = compileGroups(module, options, 1, [](llvm::Module &llvmModule, llvm::TargetMachine &machine) {
    return emit(llvmModule, machine, llvm::CodeGenFileType::AssemblyFile);
  });
  if (failed(parts))
    return failure();
  return joined(*parts);
}
