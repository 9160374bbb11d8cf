//===- SpillMap.h - where the bytes of a spill file lie ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An offset that callers know stays what it is while the bytes behind it move to other
// blocks of the file: blocks that a seal names are not written any more, and a write to
// their offset gets fresh ones. A SpillMap is the account of that, without any input or
// output:
//
//   map.addSpare(64 << 20, 8 << 20);     // the blocks of a range that nobody uses
//   map.seal({{0, 1 << 20}});            // what lies at 0 to 1 MiB stays as it is
//   for (const SpillMap::Move &move : map.movesFor(0, 4096)) ...
//   map.renew(moves);                    // offset 0 has another block from now on
//
// Offsets and sizes count bytes and are multiples of SpillFile::block. Not synchronised.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_DISK_SPILLMAP_H
#define SEGUE_RUNTIME_LIB_DISK_SPILLMAP_H

#include "segue/runtime/Disk/SpillFile.h"
#include <map>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class SpillMap {
public:
  /// Makes a map in which every offset lies where its number says.
  explicit SpillMap(uint64_t capacity);

  /// Makes the blocks behind a range, which nobody uses from now on, spare ones. None of
  /// them may be sealed.
  void addSpare(uint64_t offset, uint64_t bytes);
  uint64_t spareBytes() const { return spareBytes_; }

  /// A part of a range that lies in one piece.
  struct Piece {
    uint64_t offset = 0, fileOffset = 0, bytes = 0;
    bool isSealed = false;
  };
  /// Returns the pieces of a range, in its order.
  std::vector<Piece> piecesOf(uint64_t offset, uint64_t bytes) const;

  /// A part of a range that is to lie elsewhere.
  struct Move {
    uint64_t offset = 0, from = 0, to = 0, bytes = 0;
  };
  /// Returns where the sealed parts of a range would go; nothing if there are too few spare
  /// blocks. The new places are the longest that fit, so that a range is read in long
  /// pieces.
  std::optional<std::vector<Move>> movesFor(uint64_t offset, uint64_t bytes) const;
  /// Makes the moves that movesFor gave last.
  void renew(const std::vector<Move> &moves);

  /// Seals the bytes of these ranges, in the place of those that were sealed before: blocks of
  /// the old seal which have moved become spare. Ranges are disjoint, in any order.
  void seal(const std::vector<SpillExtent> &ranges);

  /// Returns the parts of the file that the seal names, in the order of the file.
  std::vector<SpillExtent> sealedExtents() const;

private:
  struct Run {
    uint64_t fileOffset = 0, bytes = 0;
    bool isSealed = false;
  };
  using Runs = std::map<uint64_t, Run>;

  /// Makes a run begin at `offset`.
  void cutAt(uint64_t offset);
  Runs::const_iterator runAt(uint64_t offset) const;
  void giveSpare(uint64_t fileOffset, uint64_t bytes);
  void join();

  /// The runs of all of the capacity, by offset.
  Runs runs_;
  /// The bytes of spare parts by their offset in the file; no two of them touch.
  std::map<uint64_t, uint64_t> spare_;
  uint64_t spareBytes_ = 0;
  /// Sealed blocks that no offset leads to any more.
  std::vector<SpillExtent> left_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_DISK_SPILLMAP_H
