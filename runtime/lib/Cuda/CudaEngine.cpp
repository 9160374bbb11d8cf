//===- CudaEngine.cpp - what a GPU computes besides kernels ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaEngine.h"

namespace segue::inline runtime::cuda {

void CudaEngine::refuse(const char *what) const {
  throw Error(ErrorCode::Unsupported, "device \"" + device_ + "\" has no " + what + " yet: it runs programs of kernels alone");
}

void CudaEngine::fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) {
  if (!bytes)
    return;
  const Api &api = context_.api();
  auto at = reinterpret_cast<CUdeviceptr>(target);
  auto low = uint32_t(pattern), high = uint32_t(pattern >> 32);
  streams_.give([&](CUstream stream) {
    switch (patternBytes) {
    case 1:
      return context_.check(api.fill8(at, uint8_t(low), bytes, stream), "cuMemsetD8Async");
    case 2:
      return context_.check(api.fill16(at, uint16_t(low), bytes / 2, stream), "cuMemsetD16Async");
    case 4:
      return context_.check(api.fill32(at, low, bytes / 4, stream), "cuMemsetD32Async");
    default:
      if (low == high)
        return context_.check(api.fill32(at, low, bytes / 4, stream), "cuMemsetD32Async");
      // Each half as a column of a matrix with rows of eight bytes.
      context_.check(api.fillRows32(at, 8, low, 1, bytes / 8, stream), "cuMemsetD2D32Async");
      context_.check(api.fillRows32(at + 4, 8, high, 1, bytes / 8, stream), "cuMemsetD2D32Async");
    }
  });
}

} // namespace segue::inline runtime::cuda
