//===- FuzzSafetensors.cpp - hostile weights ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Opens bytes as a safetensors file and reads every byte of every tensor.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Runtime.h"
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const DeviceRef device = Device::open("cpu:threads=1");
  // The reader maps a file: one in memory.
  static const int descriptor = memfd_create("fuzz.safetensors", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, data, size, 0) != ssize_t(size))
    std::abort();
  try {
    SafetensorsFile file = SafetensorsFile::open(path);
    uint64_t sum = 0;
    for (const SafetensorsEntry &entry : file.entries()) {
      for (std::byte byte : file.bytes(entry))
        sum += uint64_t(byte);
      if (entry.element)
        sum += file.tensor(device, entry.name).elementCount();
    }
    static volatile uint64_t sink;
    sink = sum;
  } catch (const Error &) {
  }
  return 0;
}
