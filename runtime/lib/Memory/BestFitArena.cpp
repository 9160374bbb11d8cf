//===- BestFitArena.cpp - an address range in blocks ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Free ranges are kept twice, by offset for merging and by size for finding.
// Nodes of both trees are used again: after the first step nothing here asks
// the system for memory.
//
//===----------------------------------------------------------------------===//

#include "BestFitArena.h"
#include <cassert>

namespace segue::inline runtime {

BestFitArena::BestFitArena(uint64_t capacityBytes, uint64_t origin) : capacity_(capacityBytes), origin_(origin) {
  keepSpareNodes();
  if (capacity_)
    insert(0, capacity_, {});
}

void BestFitArena::keepSpareNodes() {
  size_t wanted = liveBlocks_ + 2;
  spareRanges_.reserve(wanted);
  spareSizes_.reserve(wanted);
  while (ranges_.size() + spareRanges_.size() < wanted) {
    Ranges one;
    one.emplace(0, Range{});
    spareRanges_.push_back(one.extract(one.begin()));
  }
  while (sizes_.size() + spareSizes_.size() < wanted) {
    Sizes one;
    one.emplace(0, 0);
    spareSizes_.push_back(one.extract(one.begin()));
  }
}

void BestFitArena::insert(uint64_t offset, uint64_t bytes, const Fence &after) noexcept {
  assert(!spareRanges_.empty() && !spareSizes_.empty());
  Ranges::node_type range = std::move(spareRanges_.back());
  spareRanges_.pop_back();
  range.key() = offset;
  range.mapped() = {bytes, after};
  ranges_.insert(std::move(range));
  Sizes::node_type size = std::move(spareSizes_.back());
  spareSizes_.pop_back();
  size.value() = {bytes, offset};
  sizes_.insert(std::move(size));
  freeBytes_ += bytes;
}

void BestFitArena::remove(Ranges::iterator range) noexcept {
  freeBytes_ -= range->second.bytes;
  spareSizes_.push_back(sizes_.extract({range->second.bytes, range->first}));
  spareRanges_.push_back(ranges_.extract(range));
}

std::optional<BestFitArena::Block> BestFitArena::take(uint64_t bytes, uint64_t alignment) {
  assert(alignment && (alignment & (alignment - 1)) == 0);
  if (bytes == 0)
    return Block{0, {}};
  for (auto size = sizes_.lower_bound({bytes, 0}); size != sizes_.end(); ++size) {
    uint64_t rangeBytes = size->first, begin = size->second;
    uint64_t before = -(origin_ + begin) & (alignment - 1);
    if (before > rangeBytes || bytes > rangeBytes - before)
      continue;
    keepSpareNodes();
    auto range = ranges_.find(begin);
    Fence after = range->second.after;
    remove(range);
    if (before)
      insert(begin, before, after);
    if (uint64_t behind = rangeBytes - before - bytes)
      insert(begin + before + bytes, behind, after);
    ++liveBlocks_;
    return Block{begin + before, after};
  }
  return std::nullopt;
}

void BestFitArena::give(uint64_t offset, uint64_t bytes, const Fence &lastUse) noexcept {
  if (bytes == 0)
    return;
  assert(liveBlocks_ && bytes <= capacity_ && offset <= capacity_ - bytes);
  Fence after = lastUse;
  auto next = ranges_.lower_bound(offset);
  assert(next == ranges_.end() || offset + bytes <= next->first);
  if (next != ranges_.begin()) {
    auto previous = std::prev(next);
    assert(previous->first + previous->second.bytes <= offset);
    if (previous->first + previous->second.bytes == offset) {
      offset = previous->first;
      bytes += previous->second.bytes;
      after.join(previous->second.after);
      remove(previous);
    }
  }
  if (next != ranges_.end() && offset + bytes == next->first) {
    bytes += next->second.bytes;
    after.join(next->second.after);
    remove(next);
  }
  insert(offset, bytes, after);
  --liveBlocks_;
}

FreeMemory BestFitArena::freeMemory() const {
  return {freeBytes_, sizes_.empty() ? 0 : sizes_.rbegin()->first, ranges_.size()};
}

} // namespace segue::inline runtime
