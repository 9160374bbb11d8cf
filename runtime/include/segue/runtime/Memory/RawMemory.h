//===- RawMemory.h - who has the bytes of a device --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The memory that a device has, below the books: spaces with capacities, blocks at
// addresses, ranges set aside for a plan. A driver implements it; DeviceMemory alone
// calls what takes and gives, and compactors, who move what was taken.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_RAWMEMORY_H
#define SEGUE_RUNTIME_MEMORY_RAWMEMORY_H

#include "segue/runtime/Fence.h"
#include "segue/runtime/Layout/Layout.h"
#include "segue/runtime/Memory/AddressPlan.h"
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace segue::inline runtime {

struct SpaceInfo {
  Space space;
  /// The size of the space, in bytes; for memory shared with other programs, what the machine has.
  uint64_t capacityBytes;
};

/// A block that somebody holds.
struct HeldBlock {
  const void *data = nullptr;
  uint64_t bytes = 0;
};

/// A block of raw memory. Its former contents are in use until the fence `after` is done:
/// whoever writes it first, on whatever queue, waits for that fence.
struct MemoryBlock {
  void *data = nullptr;
  Fence after;
  /// The number of the owner that holds it and of the phase in which it was taken. It goes back to `free`.
  uint32_t account = 0;
};

/// A hint for spaces that are filled from both ends: short-lived blocks lie at one end.
enum class Lifetime : uint8_t { Long, Short };

struct FreeMemory {
  uint64_t bytes = 0, largestRange = 0, ranges = 0;
};

class RawMemory {
public:
  virtual ~RawMemory() = default;

  /// Returns the spec that opens the device again.
  virtual std::string name() const = 0;

  virtual std::span<const SpaceInfo> spaces() const = 0;
  bool hasSpace(Space space) const;

  /// Takes memory of `space`, which is not initialised; the data is null if there is none
  /// left. `bytes` may be 0. The block is given back with the same arguments. `lifetime` is
  /// a hint for spaces that are filled from both ends.
  virtual MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) = 0;
  /// Gives a block back. May be called within a host function (see Device::call), in which a driver may refuse all its
  /// calls.
  virtual void giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment,
                          const Fence &lastUse) noexcept = 0;

  /// Tells the device of each budget of a space. Called with the books locked. A device
  /// that takes memory from its driver as it needs it then takes no more than that, and
  /// gives back what it has free.
  virtual void limitMemory(Space space, uint64_t bytes) {}

  /// Sets ranges of addresses aside, in the place of those set aside before: only
  /// takeReserved serves from them. All of them must be free; their blocks are given back
  /// by giveMemory. Returns the address of offset 0; or returns null and changes nothing if
  /// a range is not free or the device cannot do this. A device that maps memory by pages
  /// may back a range by pages that are not contiguous.
  virtual const std::byte *reserveMemory(Space space, std::span<const AddressRange> ranges) { return nullptr; }
  /// Takes a block in what was set aside, at `offset` or, without one, where it fits; the
  /// data is null if that is not free.
  virtual MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) {
    return {};
  }
  /// Takes `bytes` at `address`, for what is to be moved there; the data is null if they
  /// are not free. Any part of such a block may be given back by itself.
  virtual MemoryBlock takeMemoryAt(Space space, uint64_t bytes, void *address) { return {}; }
  /// Returns the free ranges of a space, set aside or not: ascending, each as long as
  /// possible, as they are once `givenBack` are given back. Empty where the device does not say.
  virtual std::vector<AddressRange> freeRanges(Space space, std::span<const HeldBlock> givenBack = {}) const {
    return {};
  }

  /// Gives the system the memory behind what is free; the addresses stay. Called when nothing is queued that reads what
  /// was freed.
  virtual void giveFreeToSystem() noexcept {}

  /// Returns the alignment, a power of two, that copies of a block of `bytes` are fastest
  /// from: the books ask for no less.
  virtual uint32_t leastAlignment(Space space, uint64_t bytes) const { return 1; }
  /// Returns what a block of `bytes` really takes, which the books count.
  virtual uint64_t takenBytes(Space space, uint64_t bytes, uint32_t alignment) const { return bytes; }

  /// Returns what is left of `space`; spaces that the system manages are one range.
  virtual FreeMemory freeMemory(Space space) const = 0;
};

/// Makes one free range of device_dram out of several, by moving what lies between them.
/// Called on the thread that submits.
class RangeMaker {
public:
  /// Makes a free range that holds `bytes` at a multiple of `alignment`. Returns false,
  /// with nothing moved, if what must stay is in the way.
  virtual bool makeRange(uint64_t bytes, uint32_t alignment) = 0;
  /// Moves, at times, something that nobody expects to move, on devices that test their users.
  virtual void stir() = 0;
  virtual bool isRestless() const = 0;

protected:
  ~RangeMaker() = default;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_RAWMEMORY_H
