//===- BestFitArena.h - an address range in blocks --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Hands out blocks of a range [0, capacity), by offsets alone: whether there
// are bytes behind them is not its business. A block comes from the smallest
// free range that holds it, of equal ones from the lowest, and from the end of the
// whole range only where no other holds it: so the same calls give the same offsets
// whatever the capacity, as long as it is reached by none. Freed neighbours merge.
//
// A free range remembers the fence of the work that still touches it. Ranges
// that merge join their fences; a block carries the fence of its range, and
// who writes it first waits for that.
//
//   BestFitArena arena(512 << 20);
//   auto block = arena.take(4096, 512);             // nullopt: no range holds it
//   arena.give(block->offset, 4096, lastUse);
//
// Ranges can be set aside: `take` leaves them alone, and `takeReserved` serves from
// them, also at an offset that the caller has chosen.
//
// Exact: a block takes its bytes and no more; what alignment leaves before it
// stays free. Not thread-safe.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_MEMORY_BESTFITARENA_H
#define SEGUE_LIB_MEMORY_BESTFITARENA_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace segue::inline runtime {

class BestFitArena {
public:
  /// Makes an arena that is free. `origin` is the address of offset 0, for alignment.
  explicit BestFitArena(uint64_t capacityBytes, uint64_t origin = 0);

  struct Block {
    uint64_t offset;
    Fence after;
  };

  /// Takes a block whose address is a multiple of `alignment`, a power of two. Zero bytes
  /// always fit and take nothing.
  std::optional<Block> take(uint64_t bytes, uint64_t alignment);

  /// Sets ranges aside (ascending, disjoint) in the place of those before. Returns false,
  /// with nothing changed, if one of them is not free.
  bool reserve(std::vector<AddressRange> ranges);

  /// Takes a block in what was set aside: at `offset`, or the best fit.
  std::optional<Block> takeReserved(uint64_t bytes, uint64_t alignment, std::optional<uint64_t> offset);

  /// Takes the bytes from `offset` on, if they are free and not set aside.
  std::optional<Block> takeAt(uint64_t offset, uint64_t bytes);

  /// Returns the free ranges, set aside or not, with `givenBack` among them: ascending, each as long as possible.
  std::vector<AddressRange> freeRanges(std::vector<AddressRange> givenBack = {}) const;

  /// Takes a block back: its offset and bytes.
  void give(uint64_t offset, uint64_t bytes, const Fence &lastUse) noexcept;

  uint64_t capacityBytes() const { return capacity_; }
  FreeMemory freeMemory() const;

private:
  struct Range {
    uint64_t bytes;
    Fence after;
  };
  using Ranges = std::map<uint64_t, Range>;              // by offset
  using Sizes = std::set<std::pair<uint64_t, uint64_t>>; // bytes, offset

  /// Free ranges, by offset and by size. There are two zones: what is anybody's, and what
  /// was set aside. Ranges of different zones do not merge.
  struct Zone {
    Ranges ranges;
    Sizes sizes;
  };

  Zone &zoneOf(uint64_t offset);
  void keepSpareNodes();
  void insert(Zone &zone, uint64_t offset, uint64_t bytes, const Fence &after) noexcept;
  void remove(Zone &zone, Ranges::iterator range) noexcept;
  std::optional<Block> takeFrom(Zone &zone, uint64_t bytes, uint64_t alignment);
  std::optional<Block> takeFromAt(Zone &zone, uint64_t bytes, uint64_t alignment, uint64_t offset);
  /// Takes the bytes from `offset` on out of a free range that holds them.
  Block carve(Zone &zone, Ranges::iterator range, uint64_t offset, uint64_t bytes);

  uint64_t capacity_, origin_;
  uint64_t freeBytes_ = 0, liveBlocks_ = 0;
  Zone free_, reserved_;
  std::vector<AddressRange> reservedRanges_;
  /// Nodes for ranges to come, so that giving back never allocates: there are
  /// at most as many free ranges as blocks, and one, and two for each range that
  /// was set aside.
  std::vector<Ranges::node_type> spareRanges_;
  std::vector<Sizes::node_type> spareSizes_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_MEMORY_BESTFITARENA_H
