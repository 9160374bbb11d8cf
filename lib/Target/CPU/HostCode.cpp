//===- HostCode.cpp - LLVM for the processors of a host -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/CPU/HostCode.h"
#include "../Kernels/Codegen.h"
#include "Link.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/TargetSelect.h"
#include <mutex>

static void initializeTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

std::unique_ptr<llvm::TargetMachine> segue::createHostMachine(llvm::StringRef cpu, llvm::CodeGenOptLevel level) {
  initializeTarget();
  return createMachine("x86_64-unknown-linux-gnu", cpu, level);
}

llvm::Expected<std::string> segue::hostCode(llvm::Module &module, llvm::StringRef cpu) {
  std::unique_ptr<llvm::TargetMachine> machine = createHostMachine(cpu, llvm::CodeGenOptLevel::Less);
  if (!machine)
    return llvm::createStringError("LLVM has no x86-64 target");
  module.setTargetTriple(machine->getTargetTriple());
  module.setDataLayout(machine->createDataLayout());
  optimize(module, *machine, llvm::OptimizationLevel::O1);
  return linkShared({emit(module, *machine, llvm::CodeGenFileType::ObjectFile)});
}
