//===- NVPTXTarget.cpp - kernels to PTX -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/NVPTX/NVPTXTarget.h"
#include "../Kernels/Codegen.h"
#include "GpuKernelsToLLVM.h"
#include "llvm/Support/TargetSelect.h"
#include <mutex>

using namespace mlir;
using namespace segue;

static std::unique_ptr<llvm::TargetMachine> createGpuMachine(unsigned capability) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  return createMachine("nvptx64-nvidia-cuda", "sm_" + std::to_string(capability));
}

ArrayRef<unsigned> segue::gpuCapabilities() {
  static constexpr unsigned known[] = {80, 90, 100};
  return known;
}

template <typename Finish>
static FailureOr<std::string> compiled(ModuleOp module, unsigned capability, Finish finish) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> kernels = gpuKernelsToLLVM(module, context);
  if (!kernels)
    return failure();
  std::unique_ptr<llvm::TargetMachine> machine = createGpuMachine(capability);
  if (!machine)
    return module.emitError() << "LLVM has no target for sm_" << capability;
  kernels->setTargetTriple(machine->getTargetTriple());
  kernels->setDataLayout(machine->createDataLayout());
  optimize(*kernels, *machine);
  return finish(*kernels, *machine);
}

FailureOr<std::string> segue::gpuKernelsToNVVM(ModuleOp module, unsigned capability) {
  return compiled(module, capability, [](llvm::Module &kernels, llvm::TargetMachine &) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    kernels.print(stream, nullptr);
    return text;
  });
}

FailureOr<std::string> segue::gpuKernelsToPTX(ModuleOp module, unsigned capability) {
  return compiled(module, capability, [](llvm::Module &kernels, llvm::TargetMachine &machine) {
    return emit(kernels, machine, llvm::CodeGenFileType::AssemblyFile);
  });
}
