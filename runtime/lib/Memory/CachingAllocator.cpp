//===- CachingAllocator.cpp - host memory kept for the next step ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CachingAllocator.h"
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>

namespace segue::inline runtime {

static constexpr uint64_t slackBytes = 64 << 20;

/// Blocks of at least this come from MappedRanges.
static constexpr uint64_t leastMappedBytes = 256 << 10;

/// Small blocks come in steps of an eighth of a power of two, so that sizes that differ a little share blocks and at
/// most an eighth is wasted; large ones in pages. Returns 0 for what no machine has.
static uint64_t sizeClass(uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  uint64_t step = bytes >= leastMappedBytes
                      ? MappedRanges::pageBytes
                      : std::max<uint64_t>(std::bit_floor(bytes) / 8, CachingAllocator::alignment);
  if (bytes > UINT64_MAX - step)
    return 0;
  return (bytes + step - 1) / step * step;
}

static void *takeFromSystem(uint64_t bytes, uint64_t alignment) {
  void *data = nullptr;
  return posix_memalign(&data, alignment, bytes) == 0 ? data : nullptr;
}

/// Returns true if blocks are kept. Under the address sanitizer every block goes back at
/// once, so that a use after free is seen; blocks of unusual alignment are not kept either.
static bool isCacheable(uint64_t alignment) {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  return alignment <= CachingAllocator::alignment;
#endif
}

CachingAllocator::~CachingAllocator() {
  while (releaseSome())
    ;
}

/// Gives the largest that is kept, mapped ranges first, back to the system. Returns false if there is nothing.
bool CachingAllocator::releaseSome() {
  if (mapped_.release())
    return true;
  if (small_.empty())
    return false;
  auto largest = std::prev(small_.end());
  smallBytes_ -= largest->first;
  std::free(largest->second);
  small_.erase(largest);
  return true;
}

/// Returns a block that is kept, or null.
void *CachingAllocator::takeKept(uint64_t blockBytes) {
  if (blockBytes >= leastMappedBytes)
    return mapped_.take(blockBytes);
  auto block = small_.find(blockBytes);
  if (block == small_.end())
    return nullptr;
  void *data = block->second;
  smallBytes_ -= blockBytes;
  small_.erase(block);
  return data;
}

void *CachingAllocator::allocate(uint64_t bytes, uint64_t alignment) {
  if (!isCacheable(alignment))
    return takeFromSystem(std::max<uint64_t>(bytes, 1), std::max(alignment, CachingAllocator::alignment));
  uint64_t blockBytes = sizeClass(bytes);
  if (blockBytes == 0)
    return nullptr;
  std::lock_guard lock(mutex_);
  void *data = takeKept(blockBytes);
  if (!data) {
    auto takeNew = [&] {
      return blockBytes >= leastMappedBytes ? mapped_.map(blockBytes)
                                            : takeFromSystem(blockBytes, CachingAllocator::alignment);
    };
    uint64_t peak = std::max(peakLiveBytes_, liveBytes_ + blockBytes);
    uint64_t limit = peak + peak / 4 + slackBytes;
    while (liveBytes_ + keptBytes() + blockBytes > limit && releaseSome())
      ;
    data = takeNew();
    while (!data && releaseSome())
      data = takeNew();
    if (!data)
      return nullptr;
  }
  liveBytes_ += blockBytes;
  peakLiveBytes_ = std::max(peakLiveBytes_, liveBytes_);
  return data;
}

void CachingAllocator::free(void *data, uint64_t bytes, uint64_t alignment) noexcept {
  if (!isCacheable(alignment)) {
    std::free(data);
    return;
  }
  uint64_t blockBytes = sizeClass(bytes);
  std::lock_guard lock(mutex_);
  liveBytes_ -= blockBytes;
  if (blockBytes >= leastMappedBytes)
    return mapped_.give(data, blockBytes);
  try {
    small_.emplace(blockBytes, data);
    smallBytes_ += blockBytes;
  } catch (...) { // no memory for the note: give the block back
    std::free(data);
  }
}

uint64_t CachingAllocator::liveBytes() const {
  std::lock_guard lock(mutex_);
  return liveBytes_;
}

uint64_t CachingAllocator::cachedBytes() const {
  std::lock_guard lock(mutex_);
  return keptBytes();
}

} // namespace segue::inline runtime
