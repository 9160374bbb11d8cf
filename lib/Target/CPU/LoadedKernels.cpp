//===- LoadedKernels.cpp - compiled kernels in this process ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/CPU/LoadedKernels.h"
#include "llvm/Support/Error.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

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

LoadedKernels::~LoadedKernels() {
  if (library)
    dlclose(library);
  if (descriptor >= 0)
    close(descriptor);
}

llvm::Error LoadedKernels::load(CompiledKernels given) {
  compiled = std::move(given);
  if (compiled.elf.empty())
    return llvm::Error::success();
  // The descriptor stays open: glibc knows libraries by path.
  descriptor = memfd_create("segue-kernels", MFD_CLOEXEC);
  if (descriptor < 0 || write(descriptor, compiled.elf.data(), compiled.elf.size()) !=
                            static_cast<ssize_t>(compiled.elf.size()))
    return llvm::createStringError("no memory file for " + llvm::Twine(compiled.elf.size()) + " bytes of kernels");
  library = dlopen(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return llvm::createStringError(llvm::Twine("kernels cannot be loaded: ") + dlerror());
  return llvm::Error::success();
}

LoadedKernels::Function LoadedKernels::find(StringRef kernel, KernelIsa isa) const {
  for (const KernelSymbol &known : compiled.kernels)
    if (known.name == kernel && library) {
      const std::string &symbol = isa == KernelIsa::V4 ? known.v4Symbol : known.v3Symbol;
      return symbol.empty() ? nullptr : reinterpret_cast<Function>(dlsym(library, symbol.c_str()));
    }
  return nullptr;
}
