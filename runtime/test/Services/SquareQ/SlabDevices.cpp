//===- SlabDevices.cpp - the processor and sim serve slabs ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/SquareQ/SlabDevices.h"

std::vector<std::string> slabDevices() {
  return {"cpu:threads=2", "sim:dram=64MiB,adversarial=5", "sim:dram=64MiB,link=16GB/s,latency=10us"};
}
