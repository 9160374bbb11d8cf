//===- HostMemory.h - the host's side of a GPU ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// PinnedMemory: one range of addresses whose pages are locked a segment at a time, when a
// block first lies there: huge pages touched by four threads and then registered take a
// fifth of the time of cuMemHostAlloc, and nothing is ever freed, which would wait for all
// work of the GPU (docs/cuda.md). A copy stays within a segment.
//
// HostHeap: pageable memory. A block that queued work still touches goes back later.
//
// Neither calls the driver when memory is given back. Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_HOSTMEMORY_H
#define SEGUE_LIB_CUDA_HOSTMEMORY_H

#include "../Memory/BestFitArena.h"
#include "../Memory/CachingAllocator.h"
#include "Context.h"
#include <functional>
#include <mutex>
#include <vector>

namespace segue::inline runtime::cuda {

class PinnedMemory {
public:
  /// Throws DeviceOom if there are no addresses.
  PinnedMemory(const Context &context, uint64_t capacityBytes);
  /// Frees the memory; everything that touched it must have ended.
  ~PinnedMemory();

  static constexpr uint64_t segmentBytes = 64 << 20;

  /// Takes a block; its data is null if no range is long enough or the system locks no more pages.
  MemoryBlock take(uint64_t bytes, uint64_t alignment);
  void give(void *data, uint64_t bytes, const Fence &lastUse) noexcept;
  FreeMemory freeMemory() const;

  bool holds(const void *address) const {
    auto *at = static_cast<const std::byte *>(address);
    return at >= base_ && at < base_ + capacity_;
  }
  /// Returns how many of the `bytes` from `address` on, which it holds, lie in one segment.
  uint64_t bytesWithinSegment(const void *address, uint64_t bytes) const {
    uint64_t offset = uint64_t(static_cast<const std::byte *>(address) - base_);
    return std::min(bytes, segmentBytes - offset % segmentBytes);
  }

private:
  bool lockPages(uint64_t offset, uint64_t bytes);

  const Context &context_;
  uint64_t capacity_;
  std::byte *base_ = nullptr;
  void *mapping_ = nullptr;
  uint64_t mappingBytes_ = 0;
  mutable std::mutex mutex_;
  std::optional<BestFitArena> arena_;
  std::vector<bool> isLocked_;
};

class HostHeap {
public:
  using IsPast = std::function<bool(const Fence &)>;
  explicit HostHeap(IsPast isPast) : isPast_(std::move(isPast)) {}
  /// Frees the heap; all work must have ended.
  ~HostHeap();

  MemoryBlock take(uint64_t bytes, uint32_t alignment);
  void give(void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept;

private:
  struct Leaving {
    void *data;
    uint64_t bytes;
    uint32_t alignment;
    Fence after;
  };
  void settle() noexcept;

  IsPast isPast_;
  CachingAllocator heap_;
  std::mutex mutex_;
  std::vector<Leaving> leaving_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_HOSTMEMORY_H
