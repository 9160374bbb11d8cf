//===- DramCompactor.cpp - moves tensors together in DRAM -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A storage that slides by less than its length overlaps its new place. It takes
// what is new of that, and gives back what is over of the old one; the bytes go in
// pieces as long as the way, so that no copy overlaps itself. Short ways make many
// pieces, which is why the choice of what slides counts them.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/DramCompactor.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Tensor/Storage.h"
#include <algorithm>

namespace segue::inline runtime {

/// The bytes whose move costs as much as starting a copy.
static constexpr uint64_t bytesPerCopy = 64 << 10;

static uint64_t alignedUp(uint64_t offset, uint64_t alignment) { return (offset + alignment - 1) & -alignment; }
static uint64_t alignedDown(uint64_t offset, uint64_t alignment) { return offset & -alignment; }

DramCompactor::DramCompactor(Device &device, std::byte *base, std::optional<uint64_t> seed)
    : device_(device), base_(base) {
  if (seed)
    random_.emplace(*seed);
  device.memory().setRangeMaker(this);
}

DramCompactor::~DramCompactor() { device_.memory().setRangeMaker(nullptr); }

std::vector<DramCompactor::Piece> DramCompactor::survey() const {
  std::vector<Piece> pieces;
  for (const AddressRange &range : device_.freeRanges(Space::DeviceDram))
    pieces.push_back({Piece::Kind::Free, range.begin, range.bytes});
  for (const auto &[data, storage] : storages_)
    pieces.push_back({Piece::Kind::Storage, uint64_t(data - base_), storage->bytes(), storage});
  std::ranges::sort(pieces, {}, &Piece::begin);
  std::vector<Piece> all;
  uint64_t end = 0;
  for (const Piece &piece : pieces) {
    if (piece.begin > end)
      all.push_back({Piece::Kind::Fixed, end, piece.begin - end});
    all.push_back(piece);
    end = piece.end();
  }
  return all;
}

/// Returns the cost of a window; nothing if the free range that comes of it is too short.
std::optional<uint64_t> DramCompactor::costOf(const std::vector<Piece> &pieces, size_t first, size_t last, Side side,
                                              uint64_t bytes, uint64_t alignment) const {
  uint64_t cost = 0, begin = pieces[first].begin, end = pieces[last].end();
  auto add = [&](const Piece &piece, uint64_t to) {
    uint64_t way = std::max(piece.begin, to) - std::min(piece.begin, to);
    if (way)
      cost += piece.bytes + (piece.bytes + way - 1) / way * bytesPerCopy;
  };
  for (size_t i = first; i <= last; ++i)
    if (const Piece &piece = side == Side::Down ? pieces[i] : pieces[last - (i - first)]; piece.storage) {
      uint64_t grain = alignmentOf(*piece.storage);
      uint64_t to = side == Side::Down ? alignedUp(begin, grain) : alignedDown(end - piece.bytes, grain);
      add(piece, to);
      (side == Side::Down ? begin : end) = side == Side::Down ? to + piece.bytes : to;
    }
  if (begin > end || alignedUp(begin, alignment) > end || bytes > end - alignedUp(begin, alignment))
    return std::nullopt;
  return cost;
}

std::optional<DramCompactor::Window> DramCompactor::choose(const std::vector<Piece> &pieces, uint64_t bytes,
                                                           uint64_t alignment) const {
  std::optional<Window> best;
  for (size_t first = 0; first < pieces.size(); ++first) {
    if (pieces[first].kind != Piece::Kind::Free)
      continue;
    uint64_t free = 0, moved = 0;
    bool isFound = false;
    for (size_t last = first; last < pieces.size() && pieces[last].kind != Piece::Kind::Fixed && !isFound; ++last) {
      if (pieces[last].storage) {
        moved += pieces[last].bytes;
        if (best && moved >= best->cost)
          break;
        continue;
      }
      free += pieces[last].bytes;
      if (free < bytes)
        continue;
      for (Side side : {Side::Down, Side::Up})
        if (auto cost = costOf(pieces, first, last, side, bytes, alignment)) {
          isFound = true;
          if (!best || *cost < best->cost)
            best = {first, last, side, *cost};
        }
    }
  }
  return best;
}

bool DramCompactor::slide(Storage &storage, uint64_t from, uint64_t to) {
  uint64_t bytes = storage.bytes(), way = std::max(from, to) - std::min(from, to), part = std::min(way, bytes);
  bool down = to < from;
  MemoryBlock taken =
      device_.takeMemoryAt(Space::DeviceDram, part, base_ + (down || way >= bytes ? to : to + bytes - part));
  if (!taken.data)
    return false;
  Fence after = storage.uses();
  after.join(taken.after);
  Work work{[&device = device_, target = base_ + to, source = base_ + from, bytes, part, down] {
              for (uint64_t done = 0; done < bytes;) {
                uint64_t now = std::min(part, bytes - done), at = down ? done : bytes - done - now;
                device.copy(target + at, source + at, now);
                done += now;
              }
            },
            {.memoryBytes = 2 * bytes},
            "compaction"};
  if (const auto &outcome = storage.outcomeIfAny())
    work.mayBegin = [outcome] { return !outcome->error(); }; // else there is nothing to be kept
  Fence moved(Queue::Compute, device_.enqueue(Queue::Compute, after, std::move(work)));
  device_.giveMemory(Space::DeviceDram, base_ + (down && way < bytes ? from + bytes - part : from), part,
                     /*alignment=*/1, moved);
  storages_.erase(base_ + from);
  storages_[base_ + to] = &storage;
  move(storage, base_ + to, moved);
  movedBytes_ += bytes;
  return true;
}

bool DramCompactor::makeRange(uint64_t bytes, uint32_t alignment) {
  std::lock_guard lock(mutex_);
  std::vector<Piece> pieces = survey();
  std::optional<Window> window = choose(pieces, bytes, alignment);
  if (!window || !window->cost) // it is not for want of a range
    return false;
  uint64_t begin = pieces[window->first].begin, end = pieces[window->last].end();
  for (size_t i = window->first; i <= window->last; ++i) {
    bool down = window->side == Side::Down;
    const Piece &piece = down ? pieces[i] : pieces[window->last - (i - window->first)];
    if (!piece.storage)
      continue;
    uint64_t grain = alignmentOf(*piece.storage);
    uint64_t to = down ? alignedUp(begin, grain) : alignedDown(end - piece.bytes, grain);
    if (to != piece.begin && !slide(*piece.storage, piece.begin, to))
      return false;
    (down ? begin : end) = down ? to + piece.bytes : to;
  }
  ++compactions_;
  return true;
}

void DramCompactor::stir() {
  std::lock_guard lock(mutex_);
  if (!random_ || (*random_)() % 4)
    return;
  std::vector<Piece> pieces = survey();
  std::vector<size_t> movable, free;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].storage)
      movable.push_back(i);
    if (pieces[i].kind == Piece::Kind::Free)
      free.push_back(i);
  }
  if (movable.empty() || free.empty())
    return;
  const Piece &piece = pieces[movable[(*random_)() % movable.size()]];
  const Piece &place = pieces[free[(*random_)() % free.size()]];
  uint64_t grain = alignmentOf(*piece.storage);
  bool isNext = place.end() == piece.begin; // it may slide
  uint64_t end = isNext ? piece.end() : place.end();
  uint64_t to = isNext || (*random_)() % 2 ? alignedUp(place.begin, grain)
                                           : alignedDown(std::max(end, piece.bytes) - piece.bytes, grain);
  if (to >= place.begin && to <= end && piece.bytes <= end - to && to != piece.begin)
    slide(*piece.storage, piece.begin, to);
}

} // namespace segue::inline runtime
