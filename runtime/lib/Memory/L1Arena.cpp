//===- L1Arena.cpp - addresses in a small scratch memory ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two kinds of compaction are weighed against each other by the bytes that
// they move: emptying one window, its blocks going to free ranges elsewhere
// (direct copies), and packing all blocks to the bottom (overlapping copies
// bounce). Packing finds room whenever there is room, emptying a window is
// nearly always cheaper.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/L1Arena.h"
#include <algorithm>

namespace segue::inline runtime {

static uint64_t alignUp(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }
static uint64_t alignDown(uint64_t value, uint64_t alignment) { return value / alignment * alignment; }

L1Arena::L1Arena(uint64_t capacity, uint64_t granularity)
    : capacity_(alignDown(capacity, granularity)), granularity_(granularity) {
  if (capacity_)
    free_[0] = {capacity_, {}};
}

uint64_t L1Arena::takenBytes(uint64_t bytes) const {
  if (bytes > UINT64_MAX - granularity_)
    return alignDown(UINT64_MAX, granularity_); // cannot fit anywhere
  return alignUp(std::max<uint64_t>(bytes, 1), granularity_);
}

FreeMemory L1Arena::free() const {
  FreeMemory free;
  for (const auto &[offset, range] : free_) {
    free.bytes += range.bytes;
    free.largestRange = std::max(free.largestRange, range.bytes);
    ++free.ranges;
  }
  return free;
}

std::vector<uint64_t> L1Arena::offsets() const {
  std::vector<uint64_t> offsets;
  for (const auto &[offset, block] : blocks_)
    offsets.push_back(offset);
  return offsets;
}

//===----------------------------------------------------------------------===//
// Free ranges
//===----------------------------------------------------------------------===//

void L1Arena::addFree(uint64_t offset, uint64_t bytes, const Fence &after) {
  Range range{bytes, after};
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    range.bytes += next->second.bytes;
    range.after.join(next->second.after);
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second.bytes == offset) {
      previous->second.bytes += range.bytes;
      previous->second.after.join(range.after);
      return;
    }
  }
  free_[offset] = range;
}

/// The range is free.
Fence L1Arena::removeFree(uint64_t offset, uint64_t bytes) {
  auto it = std::prev(free_.upper_bound(offset));
  uint64_t begin = it->first, end = begin + it->second.bytes;
  Fence after = it->second.after;
  free_.erase(it);
  if (begin < offset)
    free_[begin] = {offset - begin, after};
  if (offset + bytes < end)
    free_[offset + bytes] = {end - offset - bytes, after};
  return after;
}

Fence L1Arena::fenceOf(uint64_t offset, uint64_t bytes) const {
  Fence fence;
  for (const auto &[begin, range] : free_)
    if (begin < offset + bytes && offset < begin + range.bytes)
      fence.join(range.after);
  return fence;
}

std::optional<L1Arena::Placed> L1Arena::take(uint64_t bytes, uint64_t alignment, Lifetime lifetime) {
  bytes = takenBytes(bytes);
  alignment = std::max(alignment, granularity_);
  auto place = [&](uint64_t begin, const Range &range) -> std::optional<uint64_t> {
    uint64_t end = begin + range.bytes;
    if (range.bytes < bytes)
      return std::nullopt;
    uint64_t offset = lifetime == Lifetime::Long ? alignUp(begin, alignment) : alignDown(end - bytes, alignment);
    return offset >= begin && offset <= end && bytes <= end - offset ? std::optional(offset) : std::nullopt;
  };
  std::optional<uint64_t> offset;
  if (lifetime == Lifetime::Long) {
    for (auto it = free_.begin(); it != free_.end() && !offset; ++it)
      offset = place(it->first, it->second);
  } else {
    for (auto it = free_.rbegin(); it != free_.rend() && !offset; ++it)
      offset = place(it->first, it->second);
  }
  if (!offset)
    return std::nullopt;
  blocks_[*offset] = {bytes, alignment};
  return Placed{*offset, removeFree(*offset, bytes)};
}

void L1Arena::give(uint64_t offset, const Fence &lastUse) {
  auto it = blocks_.find(offset);
  addFree(offset, it->second.bytes, lastUse);
  blocks_.erase(it);
}

//===----------------------------------------------------------------------===//
// Compaction
//===----------------------------------------------------------------------===//

static bool isFixed(uint64_t offset, const std::vector<uint64_t> &fixed) {
  return std::ranges::find(fixed, offset) != fixed.end();
}

/// Empties [begin, end): its blocks, greatest first, go to the smallest free
/// range outside that holds them.
std::optional<std::vector<L1Arena::Move>> L1Arena::evacuate(uint64_t begin, uint64_t end,
                                                            const std::vector<uint64_t> &fixed) const {
  std::vector<std::pair<uint64_t, uint64_t>> holes; // begin, end
  for (const auto &[offset, range] : free_) {
    uint64_t rangeEnd = offset + range.bytes;
    if (offset < begin)
      holes.push_back({offset, std::min(rangeEnd, begin)});
    if (rangeEnd > end)
      holes.push_back({std::max(offset, end), rangeEnd});
  }
  std::vector<Move> moves;
  for (const auto &[offset, block] : blocks_) {
    if (offset + block.bytes <= begin || offset >= end)
      continue;
    if (isFixed(offset, fixed))
      return std::nullopt;
    moves.push_back({offset, 0, block.bytes, false});
  }
  std::ranges::stable_sort(moves, std::ranges::greater(), &Move::bytes);
  for (Move &move : moves) {
    uint64_t alignment = blocks_.at(move.from).alignment;
    auto best = holes.end();
    for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
      uint64_t target = alignUp(hole->first, alignment);
      if (target > hole->second || hole->second - target < move.bytes)
        continue;
      if (best == holes.end() || hole->second - hole->first < best->second - best->first)
        best = hole;
    }
    if (best == holes.end())
      return std::nullopt;
    move.to = alignUp(best->first, alignment);
    auto rest = std::pair(move.to + move.bytes, best->second);
    auto before = std::pair(best->first, move.to);
    *best = rest;
    if (before.first < before.second)
      holes.push_back(before);
  }
  return moves;
}

/// Slides every movable block as far down as those below it allow. Copies onto
/// what was another block's place, or its own, bounce.
std::optional<std::vector<L1Arena::Move>> L1Arena::pack(uint64_t bytes, uint64_t alignment,
                                                        const std::vector<uint64_t> &fixed) const {
  std::vector<Move> moves;
  uint64_t bottom = 0, longest = 0;
  auto endGap = [&](uint64_t end) {
    uint64_t begin = alignUp(bottom, alignment);
    longest = std::max(longest, end > begin ? end - begin : 0);
  };
  for (const auto &[offset, block] : blocks_) {
    uint64_t target = alignUp(bottom, block.alignment);
    if (isFixed(offset, fixed) || target >= offset) {
      endGap(offset);
      bottom = offset + block.bytes;
      continue;
    }
    bool bounces = std::ranges::any_of(blocks_, [&](const auto &other) {
      return other.first < target + block.bytes && target < other.first + other.second.bytes;
    });
    moves.push_back({offset, target, block.bytes, bounces});
    bottom = target + block.bytes;
  }
  endGap(capacity_);
  return longest >= bytes ? std::optional(moves) : std::nullopt;
}

std::vector<L1Arena::Move> L1Arena::planCompaction(uint64_t bytes, uint64_t alignment,
                                                   const std::vector<uint64_t> &fixed) const {
  bytes = takenBytes(bytes);
  alignment = std::max(alignment, granularity_);
  if (bytes > free().bytes)
    return {};
  auto cost = [](const std::vector<Move> &moves) {
    uint64_t total = 0;
    for (const Move &move : moves)
      total += move.bounces ? 2 * move.bytes : move.bytes;
    return total;
  };
  std::optional<std::vector<Move>> best = pack(bytes, alignment, fixed);
  // A window worth emptying begins where a free range or a block begins, or
  // ends where one ends.
  std::vector<uint64_t> begins;
  auto consider = [&](uint64_t begin, uint64_t end) {
    begins.push_back(alignUp(begin, alignment));
    if (end >= bytes)
      begins.push_back(alignDown(end - bytes, alignment));
  };
  for (const auto &[offset, range] : free_)
    consider(offset, offset + range.bytes);
  for (const auto &[offset, block] : blocks_)
    consider(offset, offset + block.bytes);
  for (uint64_t begin : begins) {
    if (begin > capacity_ || bytes > capacity_ - begin)
      continue;
    auto moves = evacuate(begin, begin + bytes, fixed);
    if (moves && (!best || cost(*moves) < cost(*best)))
      best = std::move(moves);
  }
  return best ? *best : std::vector<Move>{};
}

void L1Arena::apply(const std::vector<Move> &moves, const Fence &moved) {
  std::vector<Block> blocks;
  for (const Move &move : moves) {
    Block block = blocks_.at(move.from);
    blocks.push_back(block);
    addFree(move.from, block.bytes, moved);
    blocks_.erase(move.from);
  }
  for (size_t i = 0; i < moves.size(); ++i) {
    removeFree(moves[i].to, blocks[i].bytes);
    blocks_[moves[i].to] = blocks[i];
  }
}

} // namespace segue::inline runtime
