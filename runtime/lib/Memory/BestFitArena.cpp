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
#include <algorithm>
#include <cassert>

namespace segue::inline runtime {

BestFitArena::BestFitArena(uint64_t capacityBytes, uint64_t origin) : capacity_(capacityBytes), origin_(origin) {
  keepSpareNodes();
  if (capacity_)
    insert(free_, 0, capacity_, {});
}

BestFitArena::Zone &BestFitArena::zoneOf(uint64_t offset) {
  auto after = std::ranges::upper_bound(reservedRanges_, offset, {}, &AddressRange::begin);
  return after != reservedRanges_.begin() && offset < std::prev(after)->end() ? reserved_ : free_;
}

void BestFitArena::keepSpareNodes() {
  size_t wanted = liveBlocks_ + 2 + 2 * reservedRanges_.size(), used = free_.ranges.size() + reserved_.ranges.size();
  spareRanges_.reserve(wanted);
  spareSizes_.reserve(wanted);
  while (used + spareRanges_.size() < wanted) {
    Ranges one;
    one.emplace(0, Range{});
    spareRanges_.push_back(one.extract(one.begin()));
  }
  while (used + spareSizes_.size() < wanted) {
    Sizes one;
    one.emplace(0, 0);
    spareSizes_.push_back(one.extract(one.begin()));
  }
}

void BestFitArena::insert(Zone &zone, uint64_t offset, uint64_t bytes, const Fence &after) noexcept {
  assert(!spareRanges_.empty() && !spareSizes_.empty());
  Ranges::node_type range = std::move(spareRanges_.back());
  spareRanges_.pop_back();
  range.key() = offset;
  range.mapped() = {bytes, after};
  zone.ranges.insert(std::move(range));
  Sizes::node_type size = std::move(spareSizes_.back());
  spareSizes_.pop_back();
  size.value() = {bytes, offset};
  zone.sizes.insert(std::move(size));
  freeBytes_ += bytes;
}

void BestFitArena::remove(Zone &zone, Ranges::iterator range) noexcept {
  freeBytes_ -= range->second.bytes;
  spareSizes_.push_back(zone.sizes.extract({range->second.bytes, range->first}));
  spareRanges_.push_back(zone.ranges.extract(range));
}

BestFitArena::Block BestFitArena::carve(Zone &zone, Ranges::iterator range, uint64_t offset, uint64_t bytes) {
  keepSpareNodes();
  AddressRange whole{range->first, range->second.bytes};
  Fence after = range->second.after;
  remove(zone, range);
  if (offset > whole.begin)
    insert(zone, whole.begin, offset - whole.begin, after);
  if (uint64_t behind = whole.end() - (offset + bytes))
    insert(zone, offset + bytes, behind, after);
  ++liveBlocks_;
  return {offset, after};
}

std::optional<BestFitArena::Block> BestFitArena::takeFrom(Zone &zone, uint64_t bytes, uint64_t alignment) {
  assert(alignment && (alignment & (alignment - 1)) == 0);
  if (bytes == 0)
    return Block{0, {}};
  std::optional<uint64_t> last; // the range at the end of all
  for (auto size = zone.sizes.lower_bound({bytes, 0}); size != zone.sizes.end(); ++size) {
    uint64_t rangeBytes = size->first, begin = size->second;
    uint64_t before = -(origin_ + begin) & (alignment - 1);
    if (before > rangeBytes || bytes > rangeBytes - before)
      continue;
    if (begin + rangeBytes != capacity_)
      return carve(zone, zone.ranges.find(begin), begin + before, bytes);
    last = begin;
  }
  if (!last)
    return std::nullopt;
  uint64_t before = -(origin_ + *last) & (alignment - 1);
  return carve(zone, zone.ranges.find(*last), *last + before, bytes);
}

std::optional<BestFitArena::Block> BestFitArena::take(uint64_t bytes, uint64_t alignment) {
  return takeFrom(free_, bytes, alignment);
}

std::optional<BestFitArena::Block> BestFitArena::takeReserved(uint64_t bytes, uint64_t alignment,
                                                              std::optional<uint64_t> offset) {
  if (!offset || bytes == 0)
    return takeFrom(reserved_, bytes, alignment);
  return takeFromAt(reserved_, bytes, alignment, *offset);
}

std::optional<BestFitArena::Block> BestFitArena::takeAt(uint64_t offset, uint64_t bytes) {
  return bytes ? takeFromAt(free_, bytes, 1, offset) : Block{offset, {}};
}

std::optional<BestFitArena::Block> BestFitArena::takeFromAt(Zone &zone, uint64_t bytes, uint64_t alignment,
                                                            uint64_t offset) {
  auto range = zone.ranges.upper_bound(offset);
  if (range == zone.ranges.begin())
    return std::nullopt;
  --range;
  uint64_t end = range->first + range->second.bytes;
  if (offset > end || bytes > end - offset || ((origin_ + offset) & (alignment - 1)))
    return std::nullopt;
  return carve(zone, range, offset, bytes);
}

std::vector<AddressRange> BestFitArena::freeRanges(std::vector<AddressRange> givenBack) const {
  std::vector<AddressRange> ranges = std::move(givenBack);
  for (const Zone *zone : {&free_, &reserved_})
    for (const auto &[offset, range] : zone->ranges)
      ranges.push_back({offset, range.bytes});
  std::ranges::sort(ranges, {}, &AddressRange::begin);
  size_t kept = 0;
  for (size_t i = 0; i < ranges.size(); ++i)
    if (kept && ranges[kept - 1].end() == ranges[i].begin)
      ranges[kept - 1].bytes += ranges[i].bytes;
    else
      ranges[kept++] = ranges[i];
  ranges.resize(kept);
  return ranges;
}

bool BestFitArena::reserve(std::vector<AddressRange> ranges) {
  std::vector<AddressRange> free = freeRanges();
  for (const AddressRange &range : ranges) {
    auto holder = std::ranges::upper_bound(free, range.begin, {}, &AddressRange::begin);
    if (holder == free.begin() || range.end() > std::prev(holder)->end())
      return false;
  }
  // All ranges become anybody's, then what is set aside is cut out of them.
  while (!reserved_.ranges.empty()) {
    auto [offset, range] = *reserved_.ranges.begin();
    remove(reserved_, reserved_.ranges.begin());
    insert(free_, offset, range.bytes, range.after);
  }
  for (auto range = free_.ranges.begin(); range != free_.ranges.end();) {
    auto next = std::next(range);
    if (next == free_.ranges.end() || range->first + range->second.bytes != next->first) {
      range = next;
      continue;
    }
    uint64_t offset = range->first, bytes = range->second.bytes + next->second.bytes;
    Fence after = range->second.after;
    after.join(next->second.after);
    remove(free_, next);
    remove(free_, range);
    insert(free_, offset, bytes, after);
    range = free_.ranges.find(offset);
  }
  reservedRanges_ = std::move(ranges);
  for (const AddressRange &range : reservedRanges_) {
    auto holder = std::prev(free_.ranges.upper_bound(range.begin));
    Block block = carve(free_, holder, range.begin, range.bytes);
    keepSpareNodes();
    --liveBlocks_; // it is no block
    insert(reserved_, range.begin, range.bytes, block.after);
  }
  return true;
}

void BestFitArena::give(uint64_t offset, uint64_t bytes, const Fence &lastUse) noexcept {
  if (bytes == 0)
    return;
  assert(liveBlocks_ && bytes <= capacity_ && offset <= capacity_ - bytes);
  Zone &zone = zoneOf(offset);
  Fence after = lastUse;
  auto next = zone.ranges.lower_bound(offset);
  assert(next == zone.ranges.end() || offset + bytes <= next->first);
  if (next != zone.ranges.begin()) {
    auto previous = std::prev(next);
    assert(previous->first + previous->second.bytes <= offset);
    if (previous->first + previous->second.bytes == offset) {
      offset = previous->first;
      bytes += previous->second.bytes;
      after.join(previous->second.after);
      remove(zone, previous);
    }
  }
  if (next != zone.ranges.end() && offset + bytes == next->first) {
    bytes += next->second.bytes;
    after.join(next->second.after);
    remove(zone, next);
  }
  insert(zone, offset, bytes, after);
  --liveBlocks_;
}

FreeMemory BestFitArena::freeMemory() const {
  FreeMemory memory{freeBytes_, 0, free_.ranges.size() + reserved_.ranges.size()};
  for (const Zone *zone : {&free_, &reserved_})
    if (!zone->sizes.empty())
      memory.largestRange = std::max(memory.largestRange, zone->sizes.rbegin()->first);
  return memory;
}

} // namespace segue::inline runtime
