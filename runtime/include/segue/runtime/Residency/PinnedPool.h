//===- PinnedPool.h - page-locked slabs in size classes ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Page-locking memory stalls a device, so it is done once, ahead: a pool holds
// slabs of a few sizes and hands them out and back without touching the system.
// Which class serves which bytes is the caller's decision (a policy's, mostly);
// `find` is the usual one. A slab keeps the fence of its last use, so that it
// can be given back while a copy from it is still queued.
//
//   PinnedPool pool(device, {1 << 20, 4 << 20}, {512, 2});   // all or nothing
//   if (auto index = pool.find(bytes))
//     PinnedSlab slab = *pool.tryTake(*index);
//
// The thread that submits takes, gives and grows.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RESIDENCY_PINNEDPOOL_H
#define SEGUE_RUNTIME_RESIDENCY_PINNEDPOOL_H

#include "segue/runtime/Tensor/Storage.h"
#include <optional>
#include <span>
#include <vector>

namespace segue::inline runtime {

struct PinnedSlab {
  std::shared_ptr<Storage> storage;
  uint32_t classIndex = 0;
};

class PinnedPool {
public:
  /// The use of slabs: copies pass through Buffers, which are page-locked; Homes are kept, and lie
  /// in the tier that has room (TransferEngine::homeFor), some of them on a disk where there is one.
  enum class Use : uint8_t { Buffers, Homes };

  /// One count per class; class sizes in bytes, strictly ascending. Takes all
  /// memory at once. Throws OutOfMemory, or InvalidArgument naming the
  /// class, with nothing held.
  PinnedPool(DeviceRef device, std::span<const uint64_t> classBytes, std::span<const uint32_t> counts,
             Use use = Use::Buffers);

  size_t classes() const { return classes_.size(); }
  uint64_t classBytes(size_t index) const { return classes_[index].slabBytes; }
  uint32_t slabs(size_t index) const { return classes_[index].slabs; }
  uint32_t freeSlabs(size_t index) const { return uint32_t(classes_[index].free.size()); }
  /// Returns the page-locked bytes of all slabs.
  uint64_t totalBytes() const;

  /// Returns the smallest class whose slabs hold `bytes`, whether any is free or not.
  std::optional<uint32_t> naturalClass(uint64_t bytes) const;
  /// Returns the natural class if it has a free slab, else the next larger that has one.
  std::optional<uint32_t> find(uint64_t bytes) const;

  /// Takes a slab, or returns nothing if the class has no free one.
  std::optional<PinnedSlab> tryTake(uint32_t classIndex);
  /// Gives a slab back; the fences of its storage say what still uses it.
  void give(PinnedSlab slab);

  /// Adds up to `count` slabs; returns how many there was memory for.
  uint32_t grow(uint32_t classIndex, uint32_t count);

private:
  struct Class {
    uint64_t slabBytes = 0;
    uint32_t slabs = 0;
    /// The free slabs. The one given back last is taken first.
    std::vector<std::shared_ptr<Storage>> free;
  };

  std::shared_ptr<Storage> makeSlab(uint64_t bytes);

  DeviceRef device_;
  Use use_;
  OwnerId owner_;
  std::vector<Class> classes_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_RESIDENCY_PINNEDPOOL_H
