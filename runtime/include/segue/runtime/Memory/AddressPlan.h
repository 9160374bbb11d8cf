//===- AddressPlan.h - where each allocation of a step lies -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Memory is taken in the order of submits, which is the same in every step, so an
// allocation is known by its owner and by how many the owner has made before it in
// the step. A plan says at which address each of them lies, such that no two that
// live at once overlap: a step that keeps to it cannot be stopped by fragmentation.
//
//   AddressPlan plan = *packAddresses(trace, freeRanges, goal);
//   memory.followAddresses(std::move(plan));
//
// A device that maps pages of physical memory into ranges of addresses could serve
// without one; a plan needs no such help.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_ADDRESSPLAN_H
#define SEGUE_RUNTIME_MEMORY_ADDRESSPLAN_H

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// Names an owner within the DeviceMemory that gave the number; 0 is nobody in
/// particular.
using OwnerId = uint32_t;

/// The holder of some bytes, and what they are for. Texts may be empty.
struct MemoryOwner {
  std::string program;
  /// Name of the tensor; "(arena)" for the temporaries of a program.
  std::string value;
  std::string role;
  std::string block;
  /// The place in the source: "model.py:12:3 (h.0.attn)".
  std::string location;
  auto operator<=>(const MemoryOwner &) const = default;
  /// Returns a text such as `forward: h.0.saved.1 (saved, block h.0, model.py:12:3)`.
  std::string str() const;
};

/// A range of bytes, counted from the beginning of a space.
struct AddressRange {
  uint64_t begin = 0, bytes = 0;
  uint64_t end() const { return begin + bytes; }
  bool operator==(const AddressRange &) const = default;
};

struct AddressPlan {
  struct Block {
    /// Bytes from the beginning of the space.
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  /// The blocks of one owner, by step and, within a step, in the order in which they are
  /// taken.
  struct Line {
    MemoryOwner owner;
    std::vector<std::vector<Block>> steps;
  };
  std::vector<Line> lines;
  /// The number of steps that are told apart, counted from where the plan begins. After the
  /// last one, the last `period` steps repeat again and again.
  uint32_t steps = 1, period = 1;
  /// The ranges that all blocks lie in: ascending, disjoint.
  std::vector<AddressRange> ranges;

  /// Returns the sum over the ranges.
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const AddressRange &range : ranges)
      sum += range.bytes;
    return sum;
  }
};

/// The record of how steps have kept to their addresses.
struct AddressFigures {
  /// The number of allocations of planned steps that got their address; of those that went
  /// elsewhere because it was not free or the plan knows of none; and a text that says what
  /// the last of these was.
  uint64_t placed = 0, displaced = 0;
  std::string lastDisplaced;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_ADDRESSPLAN_H
