//===- GpuKernelsToLLVM.h - kernels of threads to LLVM ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_NVPTX_GPUKERNELSTOLLVM_H
#define SEGUE_LIB_TARGET_NVPTX_GPUKERNELSTOLLVM_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include <memory>

namespace segue {

/// Takes a copy of the kernels of `module` to LLVM IR with NVVM intrinsics, before any pass of LLVM. Each is an entry of PTX with
/// the parameters that Device/Kernel.h of the runtime tells: those of its buffers, range, piece and fault. Null with a diagnostic.
std::unique_ptr<llvm::Module> gpuKernelsToLLVM(mlir::ModuleOp module, llvm::LLVMContext &context);

} // namespace segue

#endif // SEGUE_LIB_TARGET_NVPTX_GPUKERNELSTOLLVM_H
