//===- GpuTwins.cpp - kernels of a GPU on a processor ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/NVPTX/GpuTwins.h"
#include "GpuKernelsToLLVM.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Instructions.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Target/CPU/HostCode.h"
#include "segue/Target/CPU/LoadedKernels.h"

using namespace mlir;
using namespace segue;

namespace {
/// Replaces the intrinsics of a module by calls of a table that is found in a variable of it.
class CallWriter {
public:
  explicit CallWriter(llvm::Module &module) : module(module), pointer(llvm::PointerType::get(module.getContext(), 0)) {
    table = new llvm::GlobalVariable(module, pointer, /*isConstant=*/false, llvm::GlobalValue::ExternalLinkage,
                                     llvm::ConstantPointerNull::get(pointer), kTwinCallsSymbol);
  }

  /// Returns the name of an intrinsic that has no twin, or nothing.
  std::string run() {
    for (llvm::Function &intrinsic : llvm::make_early_inc_range(module)) {
      if (!intrinsic.getName().starts_with("llvm.nvvm."))
        continue;
      for (llvm::User *user : llvm::make_early_inc_range(intrinsic.users())) {
        auto *call = cast<llvm::CallInst>(user);
        llvm::Value *result = replacement(intrinsic.getName().drop_front(StringRef("llvm.nvvm.").size()), call);
        if (!result)
          return intrinsic.getName().str();
        if (!call->getType()->isVoidTy())
          call->replaceAllUsesWith(result);
        call->eraseFromParent();
      }
      intrinsic.eraseFromParent();
    }
    return {};
  }

private:
  llvm::Value *replacement(StringRef name, llvm::CallInst *call) {
    llvm::IRBuilder<> b(call);
    llvm::Type *word = b.getInt32Ty(), *nothing = b.getVoidTy();
    // The numbers are the places in TwinCalls.
    if (name == "read.ptx.sreg.tid.x")
      return callOf(b, 0, word, {});
    if (name == "read.ptx.sreg.ctaid.x")
      return callOf(b, 1, word, {});
    if (name.starts_with("barrier.cta.sync.aligned.all"))
      return callOf(b, 2, nothing, {});
    if (name == "bar.warp.sync")
      return callOf(b, 3, nothing, {});
    if (name.starts_with("shfl.sync.bfly")) {
      llvm::Value *given = b.CreateBitCast(call->getArgOperand(1), word);
      return b.CreateBitCast(callOf(b, 4, word, {given, call->getArgOperand(2)}), call->getType());
    }
    return nullptr;
  }

  llvm::Value *callOf(llvm::IRBuilder<> &b, unsigned place, llvm::Type *result, ArrayRef<llvm::Value *> operands) {
    SmallVector<llvm::Type *> types;
    for (llvm::Value *operand : operands)
      types.push_back(operand->getType());
    llvm::Value *calls = b.CreateLoad(pointer, table);
    llvm::Value *callee = b.CreateLoad(pointer, b.CreateConstGEP1_32(pointer, calls, place));
    return b.CreateCall(llvm::FunctionType::get(result, types, false), callee, operands);
  }

  llvm::Module &module;
  llvm::PointerType *pointer;
  llvm::GlobalVariable *table;
};
} // namespace

/// Writes `void <name>.twin(ptr parameters)`, which loads each parameter where the array points to.
static void addTwinEntry(llvm::Function &kernel) {
  llvm::Module &module = *kernel.getParent();
  llvm::IRBuilder<> b(module.getContext());
  auto *entry = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy()}, false),
                                       llvm::GlobalValue::ExternalLinkage, kernel.getName() + kTwinSuffix, module);
  b.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "", entry));
  SmallVector<llvm::Value *> parameters;
  for (llvm::Argument &argument : kernel.args()) {
    llvm::Value *place = b.CreateLoad(b.getPtrTy(), b.CreateConstGEP1_32(b.getPtrTy(), entry->getArg(0), argument.getArgNo()));
    parameters.push_back(b.CreateLoad(argument.getType(), place));
  }
  b.CreateCall(&kernel, parameters);
  b.CreateRetVoid();
}

FailureOr<std::string> segue::compileGpuTwins(ModuleOp module) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> translated = gpuKernelsToLLVM(module, context);
  if (!translated)
    return failure();
  for (auto function : module.getOps<func::FuncOp>()) {
    llvm::Function *kernel = translated->getFunction(function.getName());
    kernel->setCallingConv(llvm::CallingConv::C);
    addTwinEntry(*kernel);
    kernel->setLinkage(llvm::GlobalValue::InternalLinkage);
  }
  // A call of the table lets other threads write what the block shares: LLVM must not think itself alone.
  for (llvm::GlobalVariable &shared : translated->globals())
    if (shared.hasInternalLinkage())
      shared.setLinkage(llvm::GlobalValue::ExternalLinkage);
  if (std::string unknown = CallWriter(*translated).run(); !unknown.empty())
    return module.emitError() << "kernels use " << unknown << ", of which there is no twin";
  llvm::Expected<std::string> elf = hostCode(*translated, "x86-64-v3");
  if (!elf)
    return module.emitError() << llvm::toString(elf.takeError());
  return std::move(*elf);
}

LogicalResult GpuTwins::load(ModuleOp module) {
  if (runnableIsas().empty())
    return module.emitError("twins of kernels need a processor with AVX2");
  FailureOr<std::string> elf = compileGpuTwins(module);
  if (failed(elf))
    return failure();
  if (llvm::Error error = code.load(*elf))
    return module.emitError() << llvm::toString(std::move(error));
  *static_cast<const TwinCalls **>(code.find(kTwinCallsSymbol)) = &twinCalls();
  for (auto function : module.getOps<func::FuncOp>()) {
    std::string symbol = (function.getName() + kTwinSuffix).str();
    kernels[function.getName()] = {reinterpret_cast<TwinEntry>(code.find(symbol)),
                                   uint64_t(function->getAttrOfType<IntegerAttr>(kGpuBlocksAttr).getInt()),
                                   unsigned(function->getAttrOfType<IntegerAttr>(kGpuThreadsAttr).getInt())};
  }
  return success();
}

llvm::Expected<int64_t> GpuTwins::run(StringRef name, ArrayRef<void *> args, TwinOrder order) const {
  const Kernel &kernel = kernels.find(name)->second;
  uint64_t fault = UINT64_MAX;
  void *word = &fault;
  // A kernel of the compiler reads neither.
  int64_t range = -1, piece = -1;
  SmallVector<void *> buffers(args), parameters;
  for (void *&buffer : buffers)
    parameters.push_back(&buffer);
  parameters.append({&range, &piece, &word});
  std::string error = runTwin(kernel.entry, kernel.threads, kernel.blocks, parameters.data(), order, /*seed=*/1);
  if (!error.empty())
    return llvm::createStringError(error);
  return fault == UINT64_MAX ? 0 : int64_t(fault & 0xffff);
}
