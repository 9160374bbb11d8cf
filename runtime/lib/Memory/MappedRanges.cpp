//===- MappedRanges.cpp - large blocks of mapped memory -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MappedRanges.h"
#include <algorithm>
#include <iterator>
#include <sys/mman.h>
#include <utility>

namespace segue::inline runtime {

/// Memory is mapped in multiples of this, so that the system can back it with huge pages.
static constexpr uint64_t hugePageBytes = 2 << 20;

static uint64_t roundedUp(uint64_t bytes) { return (bytes + hugePageBytes - 1) / hugePageBytes * hugePageBytes; }

static void unmap(uintptr_t begin, uint64_t bytes) {
  if (bytes)
    (void)munmap(reinterpret_cast<void *>(begin), bytes);
}

/// Maps fresh memory, at `wanted` if that is free and not 0. Returns 0 if the system has none.
static uintptr_t mapAt(uintptr_t wanted, uint64_t bytes) {
  void *data = mmap(reinterpret_cast<void *>(wanted), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    /*fd=*/-1, /*offset=*/0);
  return data == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(data);
}

/// Maps fresh memory that begins at a multiple of hugePageBytes, as its length is one. Returns 0 if the system has
/// none.
static uintptr_t mapAligned(uint64_t bytes) {
  uintptr_t data = mapAt(0, bytes);
  if (data == 0 || data % hugePageBytes == 0)
    return data;
  unmap(data, bytes);
  data = mapAt(0, bytes + hugePageBytes);
  if (data == 0)
    return 0;
  uintptr_t begin = (data + hugePageBytes - 1) / hugePageBytes * hugePageBytes;
  unmap(data, begin - data);
  unmap(begin + bytes, data + hugePageBytes - begin);
  return begin;
}

MappedRanges::~MappedRanges() {
  while (release())
    ;
}

/// Notes a free range, merged with its neighbours. Throws std::bad_alloc, with nothing changed, where it has none.
void MappedRanges::insert(uintptr_t begin, uint64_t bytes) {
  auto next = std::ranges::lower_bound(ranges_, begin, {}, &Range::begin);
  auto before = next == ranges_.begin() ? ranges_.end() : std::prev(next);
  bool joinsNext = next != ranges_.end() && begin + bytes == next->begin;
  bool joinsBefore = before != ranges_.end() && before->begin + before->bytes == begin;
  if (joinsBefore) {
    before->bytes += bytes;
    if (joinsNext) {
      before->bytes += next->bytes;
      ranges_.erase(next);
    }
  } else if (joinsNext) {
    *next = {begin, bytes + next->bytes};
  } else {
    ranges_.insert(next, {begin, bytes});
  }
  freeBytes_ += bytes;
}

void *MappedRanges::take(uint64_t bytes) {
  auto best = ranges_.end();
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->bytes >= bytes && (best == ranges_.end() || range->bytes < best->bytes))
      best = range;
  if (best == ranges_.end())
    return nullptr;
  freeBytes_ -= bytes;
  best->bytes -= bytes;
  uintptr_t begin = best->begin + best->bytes;
  if (best->bytes == 0)
    ranges_.erase(best);
  return reinterpret_cast<void *>(begin);
}

void *MappedRanges::map(uint64_t bytes) {
  if (bytes > UINT64_MAX - 2 * hugePageBytes)
    return nullptr;
  uintptr_t begin = 0;
  uint64_t fresh = roundedUp(bytes);
  // The lowest free range may reach down to where the system maps next.
  if (!ranges_.empty() && ranges_[0].bytes < bytes && ranges_[0].begin % hugePageBytes == 0) {
    uint64_t missing = roundedUp(bytes - ranges_[0].bytes);
    uintptr_t wanted = ranges_[0].begin - missing;
    begin = mapAt(wanted, missing);
    if (begin == wanted)
      fresh = missing;
    else if (begin != 0)
      unmap(std::exchange(begin, 0), missing);
  }
  if (begin == 0)
    begin = mapAligned(fresh);
  if (begin == 0)
    return nullptr;
  (void)madvise(reinterpret_cast<void *>(begin), fresh, MADV_HUGEPAGE); // may be refused
  give(reinterpret_cast<void *>(begin), fresh);
  return take(bytes);
}

void MappedRanges::give(void *data, uint64_t bytes) noexcept {
  auto begin = reinterpret_cast<uintptr_t>(data);
  try {
    insert(begin, bytes);
  } catch (...) { // no memory for the note
    unmap(begin, bytes);
  }
}

bool MappedRanges::release() noexcept {
  if (ranges_.empty())
    return false;
  auto largest = std::ranges::max_element(ranges_, {}, &Range::bytes);
  unmap(largest->begin, largest->bytes);
  freeBytes_ -= largest->bytes;
  ranges_.erase(largest);
  return true;
}

} // namespace segue::inline runtime
