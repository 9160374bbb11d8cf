//===- LoadedCode.cpp - a shared object in this process -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/CPU/LoadedCode.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace segue;

LoadedCode::~LoadedCode() {
  if (library)
    dlclose(library);
  if (descriptor >= 0)
    close(descriptor);
}

llvm::Error LoadedCode::load(llvm::StringRef elf) {
  // The descriptor stays open: glibc knows libraries by path.
  descriptor = memfd_create("segue-kernels", MFD_CLOEXEC);
  if (descriptor < 0 || write(descriptor, elf.data(), elf.size()) != static_cast<ssize_t>(elf.size()))
    return llvm::createStringError("no memory file for " + llvm::Twine(elf.size()) + " bytes of kernels");
  library = dlopen(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return llvm::createStringError(llvm::Twine("kernels cannot be loaded: ") + dlerror());
  return llvm::Error::success();
}

void *LoadedCode::find(const std::string &symbol) const { return library ? dlsym(library, symbol.c_str()) : nullptr; }
