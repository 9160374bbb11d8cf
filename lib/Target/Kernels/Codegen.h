//===- Codegen.h - LLVM's passes over kernels -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_KERNELS_CODEGEN_H
#define SEGUE_LIB_TARGET_KERNELS_CODEGEN_H

#include "llvm/Passes/OptimizationLevel.h"
#include "llvm/Target/TargetMachine.h"
#include <memory>
#include <string>

namespace segue {

/// Returns a machine for `cpu` of a triple, whose target the caller has initialized; null if LLVM has none.
std::unique_ptr<llvm::TargetMachine> createMachine(llvm::StringRef triple, llvm::StringRef cpu,
                                                   llvm::CodeGenOptLevel level = llvm::CodeGenOptLevel::Aggressive);

/// Runs LLVM's passes for `machine`. No loop becomes a call of the C library.
void optimize(llvm::Module &module, llvm::TargetMachine &machine,
              llvm::OptimizationLevel level = llvm::OptimizationLevel::O3);

/// Returns the bytes of an object, or the text of assembly.
std::string emit(llvm::Module &module, llvm::TargetMachine &machine, llvm::CodeGenFileType type);

} // namespace segue

#endif // SEGUE_LIB_TARGET_KERNELS_CODEGEN_H
