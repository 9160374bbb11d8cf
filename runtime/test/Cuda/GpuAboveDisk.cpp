//===- GpuAboveDisk.cpp - a fake GPU above a disk -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/CudaDevice.h"
#include "../Residency/AboveDisk.h"

using namespace segue;

DeviceRef segue::test::openAboveDisk(const std::string &options, const std::string &way, const SpillSeam *seam) {
  return cuda::openCudaDevice(DeviceOptions("cuda", (way.empty() ? "7" : way) + "," + options), seam);
}

// GPUs of the fake, each with orders of its own.
std::vector<std::string> segue::test::waysAboveDisk() { return {"", "0", "1", "2", "3", "10"}; }
