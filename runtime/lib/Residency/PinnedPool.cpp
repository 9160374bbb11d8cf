//===- PinnedPool.cpp - page-locked slabs in size classes -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Residency/PinnedPool.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

/// The alignment of slabs, which DMA engines like and which is also the default of the configuration.
static constexpr uint32_t slabAlignment = 512;

PinnedPool::PinnedPool(DeviceRef device, std::span<const uint64_t> classBytes, std::span<const uint32_t> counts,
                       Use use)
    : device_(std::move(device)), use_(use), owner_(device_->memory().intern({.value = "(pinned pool)"})) {
  if (classBytes.size() != counts.size())
    throw Error(ErrorCode::InvalidArgument, "pinned pool: " + std::to_string(classBytes.size()) + " classes, " +
                                                std::to_string(counts.size()) + " counts");
  for (size_t i = 0; i < classBytes.size(); ++i) {
    if (classBytes[i] <= (i ? classBytes[i - 1] : 0))
      throw Error(ErrorCode::InvalidArgument, "pinned pool: the size of class " + std::to_string(i) + " (" +
                                                  std::to_string(classBytes[i]) +
                                                  " bytes) is not above that of the class before it");
    classes_.push_back({classBytes[i], counts[i], {}});
    classes_.back().free.reserve(counts[i]);
    for (uint32_t slab = 0; slab < counts[i]; ++slab)
      classes_.back().free.push_back(makeSlab(classBytes[i]));
  }
}

std::shared_ptr<Storage> PinnedPool::makeSlab(uint64_t bytes) {
  Space space = use_ == Use::Buffers ? Space::HostPinned : device_->transfer().homeFor(bytes);
  // Memory that is pageable is no slab.
  return Storage::allocate(device_, space == Space::Host ? Space::HostPinned : space, bytes, slabAlignment, owner_);
}

uint64_t PinnedPool::totalBytes() const {
  uint64_t total = 0;
  for (const Class &each : classes_)
    total += each.slabBytes * each.slabs;
  return total;
}

std::optional<uint32_t> PinnedPool::naturalClass(uint64_t bytes) const {
  for (uint32_t i = 0; i < classes_.size(); ++i)
    if (bytes <= classes_[i].slabBytes)
      return i;
  return std::nullopt;
}

std::optional<uint32_t> PinnedPool::find(uint64_t bytes) const {
  for (uint32_t i = naturalClass(bytes).value_or(uint32_t(classes_.size())); i < classes_.size(); ++i)
    if (!classes_[i].free.empty())
      return i;
  return std::nullopt;
}

std::optional<PinnedSlab> PinnedPool::tryTake(uint32_t classIndex) {
  Class &from = classes_.at(classIndex);
  if (from.free.empty())
    return std::nullopt;
  PinnedSlab slab{std::move(from.free.back()), classIndex};
  from.free.pop_back();
  return slab;
}

void PinnedPool::give(PinnedSlab slab) {
  Class &home = classes_.at(slab.classIndex);
  if (!slab.storage || home.free.size() >= home.slabs)
    throw Error(ErrorCode::InvalidArgument,
                "pinned pool: a slab of class " + std::to_string(slab.classIndex) + " was given back twice");
  home.free.push_back(std::move(slab.storage));
}

uint32_t PinnedPool::grow(uint32_t classIndex, uint32_t count) {
  Class &grown = classes_.at(classIndex);
  for (uint32_t added = 0; added < count; ++added) {
    try {
      grown.free.push_back(makeSlab(grown.slabBytes));
    } catch (const OutOfMemory &) {
      return added;
    }
    ++grown.slabs;
  }
  return count;
}

} // namespace segue::inline runtime
