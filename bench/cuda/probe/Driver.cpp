//===- Driver.cpp - open the CUDA driver ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <dlfcn.h>

using namespace probe;

const char *Driver::open() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    return "libcuda.so.1";
#define SEGUE_CUDA_LOOK_UP(name, symbol, ...)                                                                          \
  name = reinterpret_cast<name##_t *>(dlsym(library, symbol));                                                         \
  if (!name)                                                                                                           \
    return symbol;
  SEGUE_CUDA_CALLS(SEGUE_CUDA_LOOK_UP)
#undef SEGUE_CUDA_LOOK_UP
  return nullptr;
}
