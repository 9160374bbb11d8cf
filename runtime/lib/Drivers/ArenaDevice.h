//===- ArenaDevice.h - a device whose spaces are arenas ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The raw memory of `sim`, and of a cpu with a disk: what both ask their SimMemory, and the
// disk that either may have.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_ARENADEVICE_H
#define SEGUE_LIB_DRIVERS_ARENADEVICE_H

#include "DiskTier.h"
#include "SimMemory.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

class ArenaDevice : public Device, public DiskHolder {
public:
  std::span<const SpaceInfo> spaces() const override { return arenas_.spaces(); }
  bool hasUnifiedMemory() const override { return false; }
  bool runsInline() const override { return false; }
  bool computesOn(const void *address) const override { return arenas_.isOnDevice(address); }

  MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) override {
    return arenas_.take(space, bytes, alignment, lifetime);
  }
  void giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept override {
    arenas_.give(space, data, bytes, alignment, lastUse);
  }
  const std::byte *reserveMemory(Space space, std::span<const AddressRange> ranges) override {
    return arenas_.reserve(space, ranges);
  }
  MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) override {
    return arenas_.takeReserved(space, bytes, alignment, offset);
  }
  MemoryBlock takeMemoryAt(Space space, uint64_t bytes, void *address) override {
    return arenas_.takeAt(space, bytes, static_cast<std::byte *>(address));
  }
  std::vector<AddressRange> freeRanges(Space space, std::span<const HeldBlock> givenBack) const override {
    return arenas_.freeRanges(space, givenBack);
  }
  void giveFreeToSystem() noexcept override { arenas_.giveFreeToSystem(); }
  FreeMemory freeMemory(Space space) const override {
    return arenas_.isHeap(space) ? Device::freeMemory(space) : arenas_.freeMemory(space);
  }
  uint64_t takenBytes(Space space, uint64_t bytes, uint32_t) const override { return arenas_.takenBytes(space, bytes); }
  uint32_t leastAlignment(Space space, uint64_t bytes) const override { return arenas_.leastAlignment(space, bytes); }

protected:
  /// Refers to `arenas`, a member of the device, which decides when it is made and when it goes.
  explicit ArenaDevice(SimMemory &arenas) : arenas_(arenas) {}

private:
  SimMemory &arenas_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_ARENADEVICE_H
