//===- HostCode.h - LLVM for the processors of a host -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_CPU_HOSTCODE_H
#define SEGUE_TARGET_CPU_HOSTCODE_H

#include "llvm/Support/Error.h"
#include "llvm/Target/TargetMachine.h"
#include <memory>
#include <string>

namespace segue {

/// A machine for x86-64 Linux, with the instructions of `cpu` where a function does not say others; null if LLVM has none.
std::unique_ptr<llvm::TargetMachine> createHostMachine(llvm::StringRef cpu,
                                                       llvm::CodeGenOptLevel level = llvm::CodeGenOptLevel::Aggressive);

/// Compiles `module` for x86-64, soon rather than well, and links it to the bytes of an ELF shared object that needs no other library.
llvm::Expected<std::string> hostCode(llvm::Module &module, llvm::StringRef cpu);

} // namespace segue

#endif // SEGUE_TARGET_CPU_HOSTCODE_H
