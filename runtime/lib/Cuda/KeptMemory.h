//===- KeptMemory.h - device_l1 on a GPU ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A piece of the GPU's memory that its L2 cache keeps lines of, whatever else passes
// through: a window of the streams on which kernels run. Blocks in it are placed by an
// L1Arena, as on devices with a memory of that kind.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_KEPTMEMORY_H
#define SEGUE_LIB_CUDA_KEPTMEMORY_H

#include "MappedMemory.h"
#include "Streams.h"
#include "segue/runtime/Memory/L1Arena.h"

namespace segue::inline runtime::cuda {

/// Any thread.
class KeptMemory {
public:
  /// Takes the memory and sets the window. Throws InvalidArgument if the cache keeps less than
  /// `bytes`, DeviceOom if there is no such memory.
  KeptMemory(const Context &context, Streams &streams, const std::string &device, uint64_t bytes);
  /// Gives the cache back. Everything that touched the memory must have ended.
  ~KeptMemory();

  MemoryBlock take(uint64_t bytes, uint32_t alignment, Lifetime lifetime);
  void give(void *data, const Fence &lastUse) noexcept;
  FreeMemory freeMemory() const;
  uint64_t takenBytes(uint64_t bytes) const { return arena_.takenBytes(bytes); }
  bool holds(const void *address) const { return memory_.holds(address); }

  uint64_t bytes() const { return arena_.capacity(); }
  L1Arena &arena() { return arena_; }
  std::byte *begin() const { return begin_; }

private:
  const Context &context_;
  size_t limitBefore_ = 0;
  MappedMemory memory_;
  std::byte *begin_ = nullptr;
  mutable std::mutex mutex_;
  L1Arena arena_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_KEPTMEMORY_H
