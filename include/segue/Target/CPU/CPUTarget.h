//===- CPUTarget.h - kernels to native code ---------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Turns the module `@kernels` that `segue-outline-kernels` makes into one ELF
// shared object, in process: our math -> LLVM dialect -> LLVM O3 -> object ->
// lld. Every kernel is there once per instruction set, as the symbols
// `<name>.v3` (x86-64-v3: AVX2, FMA) and `<name>.v4` (AVX-512), of type
//
//   int64_t f(void *const *args, int64_t begin, int64_t end)
//
// which is what schemas/binary.fbs says of `KernelVariant`. The object needs
// no other library. The same module gives the same bytes.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_CPU_CPUTARGET_H
#define SEGUE_TARGET_CPU_CPUTARGET_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/SmallVector.h"
#include <string>

namespace segue {

struct CPUTargetOptions {
  /// The instruction sets to emit.
  bool v3 = true;
  bool v4 = true;
  /// Threads that run LLVM, 1 or more; the bytes do not depend on it.
  unsigned threads = 2;
};

/// A kernel and its symbols in the object; a symbol is empty if its
/// instruction set was not asked for.
struct KernelSymbol {
  std::string name;
  std::string v3Symbol;
  std::string v4Symbol;
};

struct CompiledKernels {
  /// The bytes of an ELF shared object; empty if there are no kernels.
  std::string elf;
  /// The kernels, sorted by name.
  llvm::SmallVector<KernelSymbol> kernels;
};

/// Compiles all kernels of `module`, which stays as it is. Errors are emitted
/// as diagnostics at the kernel.
llvm::FailureOr<CompiledKernels> compileKernels(mlir::ModuleOp module, const CPUTargetOptions &options = {});

/// The optimised LLVM IR of all kernels, as text.
llvm::FailureOr<std::string> kernelsToLLVM(mlir::ModuleOp module, const CPUTargetOptions &options = {});

/// Returns the assembly of the kernels, as text.
llvm::FailureOr<std::string> kernelsToAssembly(mlir::ModuleOp module, const CPUTargetOptions &options = {});

} // namespace segue

#endif // SEGUE_TARGET_CPU_CPUTARGET_H
