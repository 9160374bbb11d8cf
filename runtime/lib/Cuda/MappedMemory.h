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
  /// Whether all work that a fence names has ended on the device; runs no callbacks.
  using IsPast = std::function<bool(const Fence &)>;

  /// `capacityBytes`: a multiple of chunkBytes. Throws Unsupported if the driver maps in
  /// other chunks, DeviceOom if there are no addresses.
  MappedMemory(const Context &context, uint64_t capacityBytes, IsPast isPast);
  /// Everything that touched the memory has ended.
  ~MappedMemory();

  static constexpr uint64_t chunkBytes = 2 << 20;

  /// These do what the functions of Device do. Null data where there are neither free chunks nor more
  /// memory of the driver.
  MemoryBlock take(uint64_t bytes, uint64_t alignment);
  const std::byte *reserve(std::span<const AddressRange> ranges);
  MemoryBlock takeReserved(uint64_t bytes, uint64_t alignment, std::optional<uint64_t> offset);
  void give(void *data, uint64_t bytes, const Fence &lastUse) noexcept;
  std::vector<AddressRange> freeRanges() const;
  FreeMemory freeMemory() const;

  /// At most `bytes` of chunks from now on; what is free above that goes back to the driver
  /// now, or with settle() when it is no longer in use.
  void limit(uint64_t bytes);
  /// Unmaps what was waiting for a fence that has passed. Cheap where nothing does.
  void settle();

  /// Addresses without memory for `bytes` that the driver takes by itself; as many chunks
  /// fewer are made. A multiple of chunkBytes. Null data if that many are not to be had now:
  /// queued work must have ended.
  MemoryBlock takeForDriver(uint64_t bytes);
  void giveForDriver(void *data, uint64_t bytes) noexcept;

  bool holds(const void *address) const {
    auto *at = static_cast<const std::byte *>(address);
    return at >= base_ && at < base_ + addressBytes_;
  }
  /// Chunks that the driver has given and not got back.
  uint64_t madeBytes() const;

private:
  struct Chunk {
    CUmemHandle handle = 0;
    /// Blocks that lie in it, in part or whole.
    uint32_t blocks = 0;
    /// The memory behind it came from elsewhere and was in use until then.
    Fence after;
  };
  /// The old place of a chunk that has moved: mapped, and out of the arena.
  struct Leaving {
    uint64_t index;
    Fence after;
  };

  uint64_t firstChunk(uint64_t offset) const { return offset / chunkBytes; }
  uint64_t endChunk(uint64_t offset, uint64_t bytes) const { return (offset + bytes + chunkBytes - 1) / chunkBytes; }
  MemoryBlock finish(const BestFitArena::Block &found, uint64_t bytes, uint64_t alignment);
  bool mapAll(uint64_t first, uint64_t end);
  bool mapChunk(uint64_t index);
  CUmemHandle makeChunk();
  /// Takes a chunk from where nothing lies: its handle, and what its new owner waits for.
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
  std::optional<BestFitArena> arena_;
  std::vector<Chunk> chunks_;
  /// A bit per chunk that is mapped and in which no block lies.
  std::vector<uint64_t> idle_;
  uint64_t idleCount_ = 0, made_ = 0, limitChunks_ = 0, driverChunks_ = 0, liveBytes_ = 0;
  std::vector<Leaving> leaving_;
  std::vector<AddressRange> reserved_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_MAPPEDMEMORY_H
