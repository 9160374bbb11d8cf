//===- FuzzReplay.cpp - hostile logs of events ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// segue-run replay --check on bytes: heads, events and expectations of every
// service. It answers by its exit status and throws nothing.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int descriptor = memfd_create("fuzz.json", 0);
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, data, size, 0) != ssize_t(size))
    std::abort();
  segue::tool::ReplayOptions options;
  options.file = "/proc/self/fd/" + std::to_string(descriptor);
  options.check = true;
  segue::tool::replay(options);
  return 0;
}
