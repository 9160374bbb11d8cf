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
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  ranges_.emplace(begin + bytes, begin);
}

void LentMemory::takeBack(const void *data, uint64_t bytes) noexcept {
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  auto [first, last] = ranges_.equal_range(begin + bytes);
  for (auto range = first; range != last; ++range)
    if (range->second == begin) {
      ranges_.erase(range);
      return;
    }
}

bool LentMemory::holds(const void *address) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(mutex_);
  for (auto range = ranges_.upper_bound(at); range != ranges_.end(); ++range)
    if (range->second <= at)
      return true;
  return false;
}

} // namespace segue::inline runtime::cuda
