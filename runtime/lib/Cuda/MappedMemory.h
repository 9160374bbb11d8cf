//===- MappedMemory.h - device memory mapped by chunks ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One range of addresses, three times as long as the memory, with chunks of physical
// memory (2 MiB) mapped where blocks lie. A BestFitArena says where that is; chunks are
// made when they are first needed, never more than the limit. Where all are made, a chunk
// in which nothing lies any more moves to where a block wants it: so addresses do not run
// short, and free memory cannot lie in the wrong place but for pieces of a chunk.
//
// Nothing here waits for the device. A chunk that moves while queued work still touches it
// is mapped twice: the new block carries the fence of the last use, and the old mapping
// goes when that fence has passed; until then nobody gets the old addresses. The driver
// itself guards nothing: an unmap under queued work makes that work fail (docs/cuda.md).
//
// `give` calls no driver. Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_MAPPEDMEMORY_H
#define SEGUE_LIB_CUDA_MAPPEDMEMORY_H

#include "../Memory/BestFitArena.h"
#include "Context.h"
#include <functional>
#include <mutex>
#include <vector>

namespace segue::inline runtime::cuda {

class MappedMemory {
public:
  /// A function that returns true if all work that a fence names has ended on the device; it runs no callbacks.
  using IsPast = std::function<bool(const Fence &)>;

  /// Reserves the addresses. `capacityBytes` is a multiple of chunkBytes. Throws
  /// Unsupported if the driver maps in other chunks, DeviceOom if there are no addresses.
  MappedMemory(const Context &context, uint64_t capacityBytes, IsPast isPast);
  /// Unmaps all of it; everything that touched the memory must have ended.
  ~MappedMemory();

  static constexpr uint64_t chunkBytes = 2 << 20;
  /// Returns the bytes of the chunks that hold `bytes`.
  static constexpr uint64_t inChunks(uint64_t bytes) { return (bytes + chunkBytes - 1) / chunkBytes * chunkBytes; }

  /// These do what the functions of Device do. The data is null where there are neither free chunks
  /// nor more memory of the driver.
  MemoryBlock take(uint64_t bytes, uint64_t alignment);
  const std::byte *reserve(std::span<const AddressRange> ranges);
  MemoryBlock takeReserved(uint64_t bytes, uint64_t alignment, std::optional<uint64_t> offset);
  MemoryBlock takeAt(uint64_t bytes, void *address);
  void give(void *data, uint64_t bytes, const Fence &lastUse) noexcept;
  std::vector<AddressRange> freeRanges(std::span<const HeldBlock> givenBack = {}) const;
  FreeMemory freeMemory() const;

  /// Limits the chunks to `bytes` from now on. Free ones above that go back to the driver
  /// now, or with settle() when they are no longer in use.
  void limit(uint64_t bytes);
  /// Unmaps what was waiting for a fence that has passed. Cheap where nothing does.
  void settle();

  /// Sets aside memory that the driver takes by itself: returns addresses without memory for
  /// `bytes`, a multiple of chunkBytes, and makes as many chunks fewer. The data is null if
  /// that many are not to be had now: queued work must have ended.
  MemoryBlock takeForDriver(uint64_t bytes);
  void giveForDriver(void *data, uint64_t bytes) noexcept;

  bool holds(const void *address) const {
    auto *at = static_cast<const std::byte *>(address);
    return at >= base_ && at < base_ + addressBytes_;
  }
  /// Returns the first of the addresses, from which ranges count.
  std::byte *base() const { return base_; }
  /// Returns the bytes of chunks that the driver has given and not got back.
  uint64_t madeBytes() const;

private:
  struct Chunk {
    CUmemHandle handle = 0;
    /// The bytes of blocks that lie in it: parts of a block may be given back by themselves.
    uint64_t usedBytes = 0;
    /// The fence until which the memory behind it, which came from elsewhere, was in use.
    Fence after;
  };
  /// The old place of a chunk that has moved: mapped, and out of the arena.
  struct Leaving {
    uint64_t index;
    Fence after;
  };

  uint64_t firstChunk(uint64_t offset) const { return offset / chunkBytes; }
  uint64_t endChunk(uint64_t offset, uint64_t bytes) const { return (offset + bytes + chunkBytes - 1) / chunkBytes; }
  uint64_t bytesIn(uint64_t index, uint64_t offset, uint64_t bytes) const {
    return std::min((index + 1) * chunkBytes, offset + bytes) - std::max(index * chunkBytes, offset);
  }
  MemoryBlock finish(const BestFitArena::Block &found, uint64_t bytes, uint64_t alignment);
  bool mapAll(uint64_t first, uint64_t end);
  bool mapChunk(uint64_t index);
  CUmemHandle makeChunk();
  /// Takes a chunk in which nothing lies. Returns its handle; `after` becomes the fence that its new owner waits for.
  std::optional<CUmemHandle> takeIdle(Fence &after);
  void unmap(uint64_t index) noexcept;
  void dropSurplus();
  void settleLocked();
  void setIdle(uint64_t index, bool isIdle) noexcept;
  uint64_t chunksInUse() const;

  const Context &context_;
  IsPast isPast_;
  uint64_t capacity_, addressBytes_;
  std::byte *base_ = nullptr;
  mutable std::mutex mutex_;
  /// Where blocks lie, and behind all of those what the driver has, which is to part none of them.
  std::optional<BestFitArena> arena_, forDriver_;
  std::vector<Chunk> chunks_;
  /// A bit per chunk that is mapped and in which no block lies.
  std::vector<uint64_t> idle_;
  uint64_t idleCount_ = 0, made_ = 0, limitChunks_ = 0, driverChunks_ = 0, liveBytes_ = 0;
  std::vector<Leaving> leaving_;
  std::vector<AddressRange> reserved_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_MAPPEDMEMORY_H
