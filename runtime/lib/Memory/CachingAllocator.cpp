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
#include <sys/mman.h>

namespace segue::inline runtime {

static constexpr uint64_t hugePageBytes = 2 << 20;
static constexpr uint64_t pageBytes = 4096;
static constexpr uint64_t slackBytes = 64 << 20;

/// Blocks come in steps of an eighth of a power of two, so that sizes that
/// differ a little share blocks and at most an eighth is wasted.
static uint64_t sizeClass(uint64_t bytes) {
  uint64_t step = std::max<uint64_t>(std::bit_floor(std::max<uint64_t>(bytes, 1)) / 8, CachingAllocator::alignment);
  if (bytes > UINT64_MAX - step)
    return 0;
  return (std::max<uint64_t>(bytes, 1) + step - 1) / step * step;
}

static uint64_t systemAlignment(uint64_t bytes) {
  return bytes >= hugePageBytes ? hugePageBytes : CachingAllocator::alignment;
}

static void *takeFromSystem(uint64_t bytes, uint64_t alignment) {
  void *data = nullptr;
  if (posix_memalign(&data, std::max(alignment, systemAlignment(bytes)), bytes) != 0)
    return nullptr;
  if (bytes >= hugePageBytes) // advice alone: it may be refused
    (void)madvise(data, bytes / hugePageBytes * hugePageBytes, MADV_HUGEPAGE);
  return data;
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
  for (const Block &block : cached_)
    std::free(block.data);
}

void CachingAllocator::releaseOldest() {
  Block block = cached_.front();
  auto &sameSize = bySize_[block.bytes];
  sameSize.erase(std::ranges::find(sameSize, cached_.begin()));
  cached_.pop_front();
  cachedBytes_ -= block.bytes;
  std::free(block.data);
}

void *CachingAllocator::allocate(uint64_t bytes, uint64_t alignment) {
  if (!isCacheable(alignment))
    return takeFromSystem(std::max<uint64_t>(bytes, 1), alignment);
  uint64_t blockBytes = sizeClass(bytes);
  if (blockBytes == 0)
    return nullptr;
  std::lock_guard lock(mutex_);
  auto found = bySize_.find(blockBytes);
  void *data = nullptr;
  if (found != bySize_.end() && !found->second.empty()) {
    Blocks::iterator block = found->second.back();
    found->second.pop_back();
    data = block->data;
    cachedBytes_ -= blockBytes;
    cached_.erase(block);
  } else {
    uint64_t peak = std::max(peakLiveBytes_, liveBytes_ + blockBytes);
    uint64_t limit = peak + peak / 4 + slackBytes;
    while (!cached_.empty() && liveBytes_ + cachedBytes_ + blockBytes > limit)
      releaseOldest();
    data = takeFromSystem(blockBytes, alignment);
    while (!data && !cached_.empty()) {
      releaseOldest();
      data = takeFromSystem(blockBytes, alignment);
    }
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
  try {
    cached_.push_back({data, blockBytes});
  } catch (...) { // no memory for the note: give the block back
    std::free(data);
    return;
  }
  try {
    bySize_[blockBytes].push_back(std::prev(cached_.end()));
    cachedBytes_ += blockBytes;
  } catch (...) {
    cached_.pop_back();
    std::free(data);
  }
}

uint64_t CachingAllocator::liveBytes() const {
  std::lock_guard lock(mutex_);
  return liveBytes_;
}

uint64_t CachingAllocator::cachedBytes() const {
  std::lock_guard lock(mutex_);
  return cachedBytes_;
}

} // namespace segue::inline runtime
