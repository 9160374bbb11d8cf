//===- LoadedKernels.h - compiled kernels in this process -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For tests and for checks of values: calls kernels where they were compiled,
// without a file and without the runtime.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_CPU_LOADEDKERNELS_H
#define SEGUE_TARGET_CPU_LOADEDKERNELS_H

#include "segue/Target/CPU/CPUTarget.h"
#include "segue/Target/CPU/LoadedCode.h"

namespace segue {

enum class KernelIsa { V3, V4 };

/// Returns "x86-64-v3" and so on, as the option `--target` calls it.
llvm::StringRef nameOf(KernelIsa isa);

/// Returns the sets that this machine can run, the least first.
llvm::SmallVector<KernelIsa> runnableIsas();

/// Maps an object of `compileKernels` as long as it lives. Calls may come from
/// any thread.
class LoadedKernels {
public:
  /// A kernel: its arguments are the buffers of operands, then of results; then the range.
  /// It returns 0, or 1 + the operand that holds a bad index.
  using Function = int64_t (*)(void *const *, int64_t, int64_t);

  /// Loads the kernels, once. An object without kernels needs no mapping. Fails with the
  /// reason of the system's loader.
  llvm::Error load(CompiledKernels compiled);

  /// Null if there is no such kernel, or none for `isa`.
  Function find(llvm::StringRef kernel, KernelIsa isa) const;
  const CompiledKernels &kernels() const { return compiled; }

private:
  CompiledKernels compiled;
  LoadedCode code;
};

} // namespace segue

#endif // SEGUE_TARGET_CPU_LOADEDKERNELS_H
