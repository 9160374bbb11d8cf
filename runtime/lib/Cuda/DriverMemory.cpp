//===- DriverMemory.cpp - what the driver says of a GPU's memory ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Context.h"
#include "segue/runtime/Cuda/CudaDriver.h"

namespace segue::inline runtime {

GpuMemory gpuMemory(int number) {
  std::string device = "cuda:" + std::to_string(number);
  cuda::Context context(device, cuda::Api::open(device), number);
  context.use();
  size_t free = 0, total = 0;
  context.check(context.api().memInfo(&free, &total), "cuMemGetInfo");
  return {total, free};
}

} // namespace segue::inline runtime
