//===- NVPTXTarget.h - kernels to PTX ---------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Turns the module `@gpu_kernels` that `segue-outline-kernels{gpu}` makes into PTX, in
// process and without a toolkit: our math -> LLVM dialect -> LLVM O3 -> NVPTX. An entry
// has the parameters that segue/runtime/Device/Kernel.h tells. The same module gives the
// same text.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_NVPTX_NVPTXTARGET_H
#define SEGUE_TARGET_NVPTX_NVPTXTARGET_H

#include "mlir/IR/BuiltinOps.h"
#include <string>

namespace segue {

/// The compute capabilities that PTX is made for, times ten: 80 is that of an A100, 90 of an H100, 100 of a B200.
llvm::ArrayRef<unsigned> gpuCapabilities();

/// The optimised LLVM IR of all kernels, as text. Errors are emitted as diagnostics at the kernel.
llvm::FailureOr<std::string> gpuKernelsToNVVM(mlir::ModuleOp module, unsigned capability);

/// The PTX of all kernels, for GPUs of `capability` and later ones.
llvm::FailureOr<std::string> gpuKernelsToPTX(mlir::ModuleOp module, unsigned capability);

} // namespace segue

#endif // SEGUE_TARGET_NVPTX_NVPTXTARGET_H
