//===- SpillMap.cpp - where the bytes of a spill file lie -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SpillMap.h"
#include <algorithm>
#include <iterator>

namespace segue::inline runtime {

SpillMap::SpillMap(uint64_t capacity) { runs_[0] = {0, capacity, false}; }

SpillMap::Runs::const_iterator SpillMap::runAt(uint64_t offset) const { return std::prev(runs_.upper_bound(offset)); }

void SpillMap::cutAt(uint64_t offset) {
  auto run = std::prev(runs_.upper_bound(offset));
  uint64_t head = offset - run->first;
  if (head == 0 || head >= run->second.bytes)
    return;
  Run tail{run->second.fileOffset + head, run->second.bytes - head, run->second.isSealed};
  run->second.bytes = head;
  runs_[offset] = tail;
}

void SpillMap::giveSpare(uint64_t fileOffset, uint64_t bytes) {
  spareBytes_ += bytes;
  auto next = spare_.lower_bound(fileOffset);
  if (next != spare_.end() && fileOffset + bytes == next->first) {
    bytes += next->second;
    next = spare_.erase(next);
  }
  if (next != spare_.begin())
    if (auto before = std::prev(next); before->first + before->second == fileOffset) {
      before->second += bytes;
      return;
    }
  spare_[fileOffset] = bytes;
}

void SpillMap::addSpare(uint64_t offset, uint64_t bytes) {
  for (const Piece &piece : piecesOf(offset, bytes))
    giveSpare(piece.fileOffset, piece.bytes);
}

std::vector<SpillMap::Piece> SpillMap::piecesOf(uint64_t offset, uint64_t bytes) const {
  std::vector<Piece> pieces;
  for (auto run = runAt(offset); bytes != 0; ++run) {
    uint64_t head = offset - run->first, size = std::min(bytes, run->second.bytes - head);
    pieces.push_back({offset, run->second.fileOffset + head, size, run->second.isSealed});
    offset += size;
    bytes -= size;
  }
  return pieces;
}

std::optional<std::vector<SpillMap::Move>> SpillMap::movesFor(uint64_t offset, uint64_t bytes) const {
  std::vector<Move> moves;
  // Spare blocks as they would be left; copied only where something moves.
  std::optional<std::map<uint64_t, uint64_t>> spare;
  for (Piece piece : piecesOf(offset, bytes)) {
    if (!piece.isSealed)
      continue;
    if (!spare)
      spare = spare_;
    while (piece.bytes != 0) {
      // The shortest that holds all of it, or the longest.
      auto found = spare->end();
      for (auto each = spare->begin(); each != spare->end(); ++each) {
        bool isBetter = found == spare->end() || (each->second >= piece.bytes
                                                      ? found->second < piece.bytes || each->second < found->second
                                                      : found->second < each->second);
        if (isBetter)
          found = each;
      }
      if (found == spare->end())
        return std::nullopt;
      auto [at, length] = *found;
      uint64_t size = std::min(length, piece.bytes);
      moves.push_back({piece.offset, piece.fileOffset, at, size});
      spare->erase(found);
      if (length != size)
        (*spare)[at + size] = length - size;
      piece.offset += size;
      piece.fileOffset += size;
      piece.bytes -= size;
    }
  }
  return moves;
}

void SpillMap::renew(const std::vector<Move> &moves) {
  for (const Move &move : moves) {
    auto found = std::prev(spare_.upper_bound(move.to));
    auto [at, length] = *found;
    spare_.erase(found);
    if (at != move.to)
      spare_[at] = move.to - at;
    if (at + length != move.to + move.bytes)
      spare_[move.to + move.bytes] = at + length - move.to - move.bytes;
    spareBytes_ -= move.bytes;
    left_.push_back({move.from, move.bytes});
    cutAt(move.offset);
    cutAt(move.offset + move.bytes);
    runs_[move.offset] = {move.to, move.bytes, false};
  }
}

/// Makes one run of neighbours that lie beside each other in the file, too.
void SpillMap::join() {
  for (auto run = runs_.begin(), next = std::next(run); next != runs_.end(); next = std::next(run)) {
    const Run &after = next->second;
    if (run->second.fileOffset + run->second.bytes == after.fileOffset && run->second.isSealed == after.isSealed) {
      run->second.bytes += after.bytes;
      runs_.erase(next);
    } else {
      run = next;
    }
  }
}

void SpillMap::seal(const std::vector<SpillExtent> &ranges) {
  for (auto &[offset, run] : runs_)
    run.isSealed = false;
  for (const SpillExtent &range : ranges) {
    if (range.bytes == 0)
      continue;
    cutAt(range.offset);
    cutAt(range.offset + range.bytes);
    for (auto run = runs_.find(range.offset); run != runs_.end() && run->first < range.offset + range.bytes; ++run)
      run->second.isSealed = true;
  }
  for (const SpillExtent &extent : left_)
    giveSpare(extent.offset, extent.bytes);
  left_.clear();
  join();
}

std::vector<SpillExtent> SpillMap::sealedExtents() const {
  std::vector<SpillExtent> extents = left_;
  for (const auto &[offset, run] : runs_)
    if (run.isSealed)
      extents.push_back({run.fileOffset, run.bytes});
  std::ranges::sort(extents, {}, &SpillExtent::offset);
  return extents;
}

} // namespace segue::inline runtime
