//===- LentMemory.cpp - memory of other libraries on a GPU ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LentMemory.h"

namespace segue::inline runtime::cuda {

void LentMemory::lend(const void *data, uint64_t bytes) {
  if (!bytes)
    return;
  context_.use();
  auto ask = [&](void *value, int attribute, uint64_t offset) {
    auto address = reinterpret_cast<CUdeviceptr>(data) + offset;
    return context_.succeeded(context_.api().pointerAttribute(value, attribute, address), "cuPointerGetAttribute");
  };
  for (uint64_t offset : {uint64_t(0), bytes - 1}) {
    unsigned type = 0;
    int gpu = -1;
    bool isMemory = ask(&type, pointerMemoryType, offset) && ask(&gpu, pointerDeviceOrdinal, offset);
    context_.throwIfLost();
    if (!isMemory || int(type) != memoryOfDevice || gpu != context_.number())
      throw Error(ErrorCode::InvalidArgument,
                  "device \"cuda:" + std::to_string(context_.number()) + "\": a tensor that lies in " +
                      (isMemory && int(type) == memoryOfDevice ? "the memory of cuda:" + std::to_string(gpu)
                                                               : std::string("no memory of a GPU")) +
                      " was given as one of its own");
  }
  ranges_.lend(data, bytes);
}

} // namespace segue::inline runtime::cuda
