//===- L1Arena.h - addresses in a small scratch memory ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Places blocks in [0, capacity) from both ends: what lives long (outputs that
// wait for their reader) from the bottom, what lives short (temporaries) from
// the top, so that the two do not riddle each other with holes. When no free
// range is long enough although the bytes are there, `planCompaction` says
// which blocks to move where, moving the fewest bytes. The arena holds numbers
// only; L1Compactor moves the bytes. A free range keeps the fence of whoever
// used it last.
//
// Not thread-safe: DeviceMemory calls it under its lock.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_L1ARENA_H
#define SEGUE_RUNTIME_MEMORY_L1ARENA_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include <map>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class L1Arena {
public:
  /// Makes an empty arena whose blocks are multiples of `granularity`, a power of two.
  explicit L1Arena(uint64_t capacity, uint64_t granularity = 64);

  struct Placed {
    uint64_t offset = 0;
    Fence after;
  };

  /// Places a block, or returns nothing if no free range is long enough.
  std::optional<Placed> take(uint64_t bytes, uint64_t alignment, Lifetime lifetime);
  /// Frees the block at `offset`; the range keeps `lastUse`.
  void give(uint64_t offset, const Fence &lastUse);

  uint64_t capacity() const { return capacity_; }
  /// Returns the bytes that a block of `bytes` takes.
  uint64_t takenBytes(uint64_t bytes) const;
  FreeMemory free() const;
  /// Returns the offsets of all blocks, ascending.
  std::vector<uint64_t> offsets() const;

  struct Move {
    uint64_t from = 0, to = 0, bytes = 0;
    /// True if source and target overlap, or the target is vacated by another move of the
    /// plan: the bytes go through another space.
    bool bounces = false;
  };

  /// Returns moves after which `bytes` fit, preferring those of the fewest bytes; none if
  /// no order of the movable blocks makes room. Blocks at offsets in `fixed` stay. The
  /// moves are done in their order, all bouncing ones out before any in.
  std::vector<Move> planCompaction(uint64_t bytes, uint64_t alignment, const std::vector<uint64_t> &fixed = {}) const;

  /// Books the moves: blocks lie at their new offsets from now on. `moved` is
  /// the fence of the copies: the vacated ranges keep it.
  void apply(const std::vector<Move> &moves, const Fence &moved);

  /// Returns the fence that the first writer of the range waits for, joined over free ranges.
  Fence fenceOf(uint64_t offset, uint64_t bytes) const;

private:
  struct Block {
    uint64_t bytes, alignment;
  };
  struct Range {
    uint64_t bytes;
    Fence after;
  };
  using Blocks = std::map<uint64_t, Block>;

  std::optional<std::vector<Move>> evacuate(uint64_t begin, uint64_t end, const std::vector<uint64_t> &fixed) const;
  std::optional<std::vector<Move>> pack(uint64_t bytes, uint64_t alignment, const std::vector<uint64_t> &fixed) const;
  void addFree(uint64_t offset, uint64_t bytes, const Fence &after);
  Fence removeFree(uint64_t offset, uint64_t bytes);

  uint64_t capacity_, granularity_;
  Blocks blocks_;
  /// Free ranges by offset; neighbours are merged.
  std::map<uint64_t, Range> free_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_L1ARENA_H
