//===- GpuTwins.h - kernels of a GPU on a processor -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A twin is the code of this machine for the LLVM IR that PTX is made of, with calls in place of NVVM intrinsics. It shows on any
// machine whether a kernel computes the right thing, whatever order its blocks and threads run in; not what the instructions of a
// GPU round differently.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_NVPTX_GPUTWINS_H
#define SEGUE_TARGET_NVPTX_GPUTWINS_H

#include "TwinBlocks.h"
#include "mlir/IR/BuiltinOps.h"
#include "segue/Target/CPU/LoadedCode.h"
#include "llvm/ADT/StringMap.h"

namespace segue {

/// Compiles the kernels of `module` to the bytes of a shared object of twins. Errors are emitted as diagnostics.
llvm::FailureOr<std::string> compileGpuTwins(mlir::ModuleOp module);

class GpuTwins {
public:
  /// Compiles and maps the kernels of `module`, once. Errors are emitted as diagnostics.
  llvm::LogicalResult load(mlir::ModuleOp module);

  bool has(llvm::StringRef kernel) const { return kernels.contains(kernel); }
  /// Runs all blocks of a kernel on this thread. Returns 0, or 1 + the operand that holds a bad index; fails where threads
  /// wait for others that do not come.
  llvm::Expected<int64_t> run(llvm::StringRef kernel, llvm::ArrayRef<void *> args, TwinOrder order) const;

private:
  struct Kernel {
    TwinEntry entry;
    uint64_t blocks;
    unsigned threads;
  };
  LoadedCode code;
  llvm::StringMap<Kernel> kernels;
};

} // namespace segue

#endif // SEGUE_TARGET_NVPTX_GPUTWINS_H
