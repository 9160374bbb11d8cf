//===- SimMemory.h - the spaces of a simulated device -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// host is this process's heap; host_pinned, device_dram and device_l1 are reserved
// ranges of addresses, the first two a BestFitArena each, the last an L1Arena, whose pages
// come to be when they are touched; disk is an arena over the mapping of a file that
// the device has opened (`cpu` with a disk). Without bytes (`sim:virtual`) the host is an
// arena too, and all lie at addresses that no processor accepts: whoever touches one stops
// there.
//
// In the hands of an adversary, memory is overwritten when the last work that
// may touch it is done, and again when it is handed out: reading either, or
// writing to what was freed, is seen (see take). Whoever sees a fence as done
// may write to what waited for it, from any thread. So an entry's memory is
// overwritten before anybody sees the entry as done (see settle), and what is
// done is what settle was told: a fence that became done halfway through the
// list of what waits would put an older pattern over a newer owner's bytes.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMMEMORY_H
#define SEGUE_LIB_DRIVERS_SIMMEMORY_H

#include "../Memory/BestFitArena.h"
#include "../Memory/CachingAllocator.h"
#include "SimProfile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Disk/SpillFile.h"
#include "segue/runtime/Memory/L1Arena.h"
#include <functional>
#include <mutex>

namespace segue::inline runtime {

class SimMemory {
public:
  /// A function that is asked whether fences are done, unless there is an adversary; it must not change anything.
  using IsDone = std::function<bool(const Fence &)>;

  /// Reserves the ranges. Throws DeviceOom if there are no addresses left.
  SimMemory(const SimProfile &profile, IsDone isDone);
  ~SimMemory();
  SimMemory(const SimMemory &) = delete;
  SimMemory &operator=(const SimMemory &) = delete;

  std::span<const SpaceInfo> spaces() const { return spaces_; }
  /// Returns the free memory of a space that is not the heap's.
  FreeMemory freeMemory(Space space) const;
  bool isHeap(Space space) const { return space == Space::Host && !regions_[uint8_t(space)].arena; }
  uint64_t takenBytes(Space space, uint64_t bytes) const;
  /// Returns, above a disk, the alignment that direct reads and writes want.
  uint32_t leastAlignment(Space space, uint64_t bytes) const;

  std::byte *dramBegin() { return region(Space::DeviceDram).begin; }
  /// Returns null without such a space.
  L1Arena *l1Arena() { return l1_ ? &*l1_ : nullptr; }
  std::byte *l1Begin() { return region(Space::DeviceL1).begin; }

  /// Takes a block; its data is null if no range holds it. With an adversary, throws
  /// UseAfterFree if the block was written after it had been freed.
  MemoryBlock take(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime);
  /// Do what Device::reserveMemory, takeReserved and freeRanges ask, in device_dram.
  const std::byte *reserve(Space space, std::span<const AddressRange> ranges);
  MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset);
  std::vector<AddressRange> freeRanges(Space space, std::span<const HeldBlock> givenBack) const;
  /// Does what Device::giveFreeToSystem asks. The patterns of an adversary are what is free, and stay.
  void giveFreeToSystem() noexcept;
  /// Does what Device::takeMemoryAt asks, in device_dram.
  MemoryBlock takeAt(Space space, uint64_t bytes, std::byte *address);
  void give(Space space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept;

  /// Returns true for addresses in device_dram and device_l1.
  bool isOnDevice(const void *address) const;

  /// Called by the adversary when all before `done` has run: overwrites what that leaves
  /// behind. Comes before anybody may see `done` as done.
  void settle(const Fence &done);

private:
  /// A range of addresses from the system.
  class Mapping {
  public:
    Mapping() = default;
    explicit Mapping(uint64_t bytes);
    Mapping(Mapping &&other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
    Mapping &operator=(Mapping &&) = delete;
    ~Mapping();
    /// Returns the address, or null if there were none.
    void *data() const { return data_; }

  private:
    void *data_ = nullptr;
    uint64_t bytes_ = 0;
  };
  struct Region {
    std::byte *begin = nullptr;
    uint64_t bytes = 0;
    std::optional<BestFitArena> arena;
  };
  /// Memory that waits for its fence: then `data` is overwritten with `pattern`, if any,
  /// and goes back to the heap, if it is the heap's.
  struct Leaving {
    std::byte *data;
    uint64_t bytes;
    Fence after;
    uint16_t pattern;
    uint32_t heapAlignment;
  };

  /// Returns the bytes that a block takes of its arena: on a disk, whole blocks of a file.
  static uint64_t wholeBytes(Space space, uint64_t bytes) {
    return space == Space::Disk ? SpillFile::inBlocks(bytes) : bytes;
  }
  /// Makes a block of what the arena found; throws UseAfterFree as `take` does.
  MemoryBlock finish(Space space, const BestFitArena::Block &found, uint64_t bytes, uint32_t alignment);
  MemoryBlock takeL1(uint64_t bytes, uint32_t alignment, Lifetime lifetime);
  Region &region(Space space) { return regions_[uint8_t(space)]; }
  bool isDone(const Fence &fence) const;
  void settleLocked();
  void forgetPoison(std::byte *data, uint64_t bytes);
  void requireUntouched(Space space, std::byte *data, uint64_t bytes) const;

  std::string device_;
  IsDone isDone_;
  bool poisons_;
  /// The space that a disk is read into and written from.
  std::optional<Space> aboveDisk_;
  /// The spaces that have a capacity.
  std::vector<SpaceInfo> spaces_;
  mutable std::mutex mutex_;
  /// The fence that settle was told of, if there is an adversary.
  Fence settled_;
  Region regions_[spaceCount];
  std::optional<L1Arena> l1_;
  std::vector<Mapping> mappings_;
  CachingAllocator heap_;
  /// Memory that waits for its fences, in the order in which it was freed or moved.
  std::vector<Leaving> leaving_;
  /// Ranges that hold the pattern of freed memory, by address; disjoint.
  std::map<std::byte *, uint64_t> poisoned_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMMEMORY_H
