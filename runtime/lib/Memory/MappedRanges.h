//===- MappedRanges.h - large blocks of mapped memory -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Hands out blocks of pages that the system has mapped, and takes them back. Free
// neighbours merge, so that a gradient is made of the activations that were freed before
// it, which are smaller: blocks kept by size would add up. A block comes from the upper
// end of the smallest free range that holds it. New memory is asked for below the lowest
// free range, as the system maps downwards, so that the two merge.
//
//   MappedRanges ranges;
//   void *block = ranges.take(bytes);              // null: no free range holds it
//   if (!block)
//     block = ranges.map(bytes);                   // null: the system has no more
//   ranges.give(block, bytes);
//
// Not thread-safe.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_MEMORY_MAPPEDRANGES_H
#define SEGUE_LIB_MEMORY_MAPPEDRANGES_H

#include <cstdint>
#include <vector>

namespace segue::inline runtime {

class MappedRanges {
public:
  /// The bytes of a block are a multiple of this; blocks begin at multiples of it.
  static constexpr uint64_t pageBytes = 4096;

  MappedRanges() = default;
  MappedRanges(const MappedRanges &) = delete;
  MappedRanges &operator=(const MappedRanges &) = delete;
  /// Gives free ranges back to the system. Blocks that were not given back stay mapped.
  ~MappedRanges();

  /// Returns a block of a free range, which is not initialised, or null.
  void *take(uint64_t bytes);
  /// Returns a block that is new at least in part, or null if the system has no memory.
  void *map(uint64_t bytes);
  /// Takes a block back.
  void give(void *data, uint64_t bytes) noexcept;
  /// Gives the largest free range back to the system. Returns false if there is none.
  bool release() noexcept;

  uint64_t freeBytes() const { return freeBytes_; }

private:
  void insert(uintptr_t begin, uint64_t bytes);

  struct Range {
    uintptr_t begin;
    uint64_t bytes;
  };
  /// The free ranges by address, each as long as possible: some hundreds at most, as each lies between two blocks.
  std::vector<Range> ranges_;
  uint64_t freeBytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_MEMORY_MAPPEDRANGES_H
