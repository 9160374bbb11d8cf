//===- LoadedKernels.cpp - compiled kernels in this process ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/CPU/LoadedKernels.h"

using namespace segue;
using llvm::StringRef;

StringRef segue::nameOf(KernelIsa isa) { return isa == KernelIsa::V4 ? "x86-64-v4" : "x86-64-v3"; }

llvm::SmallVector<KernelIsa> segue::runnableIsas() {
  llvm::SmallVector<KernelIsa> sets;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(KernelIsa::V3);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    sets.push_back(KernelIsa::V4);
  return sets;
}

llvm::Error LoadedKernels::load(CompiledKernels given) {
  compiled = std::move(given);
  return compiled.elf.empty() ? llvm::Error::success() : code.load(compiled.elf);
}

LoadedKernels::Function LoadedKernels::find(StringRef kernel, KernelIsa isa) const {
  for (const KernelSymbol &known : compiled.kernels)
    if (known.name == kernel) {
      const std::string &symbol = isa == KernelIsa::V4 ? known.v4Symbol : known.v3Symbol;
      return symbol.empty() ? nullptr : reinterpret_cast<Function>(code.find(symbol));
    }
  return nullptr;
}
