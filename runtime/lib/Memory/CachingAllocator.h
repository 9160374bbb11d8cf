//===- CachingAllocator.h - host memory kept for the next step --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every step allocates and frees the same blocks. The system would hand out
// fresh pages each time, and clearing them costs more than most kernels; so
// freed blocks are kept and handed out again: small ones by size, large ones as ranges
// of which blocks of any size are made. What is kept never raises the footprint by more
// than a quarter (and 64 MiB) over the peak of live bytes. Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_MEMORY_CACHINGALLOCATOR_H
#define SEGUE_LIB_MEMORY_CACHINGALLOCATOR_H

#include "MappedRanges.h"
#include <cstdint>
#include <map>
#include <mutex>

namespace segue::inline runtime {

class CachingAllocator {
public:
  /// The least alignment of any block, in bytes.
  static constexpr uint64_t alignment = 64;

  CachingAllocator() = default;
  CachingAllocator(const CachingAllocator &) = delete;
  CachingAllocator &operator=(const CachingAllocator &) = delete;
  ~CachingAllocator();

  /// Returns memory, which is not initialised, or null if the system has none.
  void *allocate(uint64_t bytes, uint64_t alignment);
  /// Takes a block back, with the arguments of allocate.
  void free(void *data, uint64_t bytes, uint64_t alignment) noexcept;

  uint64_t liveBytes() const;
  uint64_t cachedBytes() const;

private:
  bool releaseSome();
  void *takeKept(uint64_t blockBytes);
  uint64_t keptBytes() const { return smallBytes_ + mapped_.freeBytes(); }

  mutable std::mutex mutex_;
  /// The large blocks.
  MappedRanges mapped_;
  /// The small blocks that are kept, by size.
  std::multimap<uint64_t, void *> small_;
  uint64_t liveBytes_ = 0, peakLiveBytes_ = 0, smallBytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_MEMORY_CACHINGALLOCATOR_H
