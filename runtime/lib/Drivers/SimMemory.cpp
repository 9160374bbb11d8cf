//===- SimMemory.cpp - the spaces of a simulated device -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimMemory.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace segue::inline runtime {

/// The alignment of regions, so that large ones get large pages.
static constexpr uint64_t regionAlignment = 2 << 20;

/// The patterns of memory that was freed and of memory that nobody has written yet:
/// signalling NaNs in f32 and bf16, a NaN in f16, and no index into anything.
static constexpr uint16_t freedPattern = 0x7fa0, newPattern = 0xffa1;

/// The pattern goes by address, so that parts of a block hold the same bytes as the whole.
static std::byte patternAt(const std::byte *address, uint16_t pattern) {
  return std::byte(reinterpret_cast<uintptr_t>(address) % 2 ? pattern >> 8 : pattern);
}

static void overwrite(std::byte *data, uint64_t bytes, uint16_t pattern) {
  uint64_t written = std::min<uint64_t>(bytes, 2);
  for (uint64_t i = 0; i < written; ++i)
    data[i] = patternAt(data + i, pattern);
  while (written < bytes) { // what is written so far is as long as a multiple of the pattern
    uint64_t more = std::min(written, bytes - written);
    std::memcpy(data + written, data, more);
    written += more;
  }
}

/// The first byte of [begin, end) that does not hold the pattern; not below `end` if there is none.
static const std::byte *firstWithout(const std::byte *begin, const std::byte *end, uint16_t pattern) {
  auto isWrong = [&](const std::byte *byte) { return *byte != patternAt(byte, pattern); };
  // If the first two bytes hold the pattern, each other byte does if it equals the one two before it.
  if (end - begin > 2 && !isWrong(begin) && !isWrong(begin + 1) &&
      std::memcmp(begin, begin + 2, end - begin - 2) == 0)
    return end;
  while (begin < end && !isWrong(begin))
    ++begin;
  return begin;
}

SimMemory::Mapping::Mapping(uint64_t bytes) : bytes_(bytes) {
  void *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = data == MAP_FAILED ? nullptr : data;
}

SimMemory::Mapping::~Mapping() {
  if (data_)
    munmap(data_, bytes_);
}

SimMemory::SimMemory(const SimProfile &profile, IsDone isDone)
    : device_(profile.name), isDone_(std::move(isDone)), poisons_(profile.adversary.has_value()) {
  if (profile.diskBytes)
    aboveDisk_ = profile.diskLink ? Space::HostPinned : Space::DeviceDram;
  const SpaceInfo all[] = {{Space::Host, profile.hostBytes},
                           {Space::HostPinned, profile.pinnedBytes},
                           {Space::DeviceDram, profile.dramBytes},
                           {Space::DeviceL1, profile.l1Bytes},
                           {Space::Disk, profile.diskBytes}};
  for (SpaceInfo info : all) {
    if (info.space == Space::DeviceL1) // in whole units
      info.capacityBytes = L1Arena(info.capacityBytes).capacity();
    if (info.capacityBytes)
      spaces_.push_back(info);
    Region &region = this->region(info.space);
    region.bytes = info.capacityBytes;
    if (profile.isVirtual) {
      // Bits 60 and up: not canonical on any x86-64 or AArch64.
      region.begin = reinterpret_cast<std::byte *>((uintptr_t(info.space) + 1) << 60);
    } else if (info.space == Space::Disk) {
      region.begin = profile.diskBegin;
    } else if (info.space != Space::Host) {
      const Mapping &mapping = mappings_.emplace_back(region.bytes + regionAlignment);
      if (!mapping.data())
        throw Error(ErrorCode::DeviceOom, "device \"" + device_ + "\": the system has no " +
                                              std::to_string(region.bytes) + " bytes of addresses for " +
                                              std::string(name(info.space)) + "; ask for less");
      auto address = reinterpret_cast<uintptr_t>(mapping.data());
      region.begin = static_cast<std::byte *>(mapping.data()) + (-address & (regionAlignment - 1));
#ifdef MADV_HUGEPAGE
      (void)madvise(region.begin, region.bytes, MADV_HUGEPAGE); // advice alone
#endif
    } else {
      continue;
    }
    if (info.space != Space::DeviceL1)
      region.arena.emplace(region.bytes, reinterpret_cast<uintptr_t>(region.begin));
    else if (region.bytes)
      l1_.emplace(region.bytes);
  }
}

SimMemory::~SimMemory() {
  // Whoever waited has gone: nothing touches these any more.
  for (const Leaving &leaving : leaving_)
    if (leaving.heapAlignment)
      heap_.free(leaving.data, leaving.bytes, leaving.heapAlignment);
}

FreeMemory SimMemory::freeMemory(Space space) const {
  std::lock_guard lock(mutex_);
  return space == Space::DeviceL1 ? l1_->free() : regions_[uint8_t(space)].arena->freeMemory();
}

uint64_t SimMemory::takenBytes(Space space, uint64_t bytes) const {
  return space == Space::DeviceL1 && l1_ ? l1_->takenBytes(bytes) : wholeBytes(space, bytes);
}

uint32_t SimMemory::leastAlignment(Space space, uint64_t bytes) const {
  return space == aboveDisk_ ? alignmentAboveDisk(bytes) : 1;
}

bool SimMemory::isOnDevice(const void *address) const {
  auto *at = static_cast<const std::byte *>(address);
  for (Space space : {Space::DeviceDram, Space::DeviceL1}) {
    const Region &region = regions_[uint8_t(space)];
    if (at >= region.begin && at < region.begin + region.bytes)
      return true;
  }
  return false;
}

//===----------------------------------------------------------------------===//
// Taking and giving
//===----------------------------------------------------------------------===//

MemoryBlock SimMemory::takeL1(uint64_t bytes, uint32_t alignment, Lifetime lifetime) {
  // Offsets are aligned, and the region as far as this.
  auto placed = alignment <= regionAlignment ? l1_->take(bytes, alignment, lifetime) : std::nullopt;
  if (!placed)
    return {};
  std::byte *data = l1Begin() + placed->offset;
  // This is not checked for late writers: compaction brings live bytes to free places.
  if (poisons_) {
    leaving_.push_back({data, bytes, placed->after, newPattern, 0});
    settleLocked();
  }
  return {data, placed->after};
}

MemoryBlock SimMemory::take(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) {
  std::lock_guard lock(mutex_);
  settleLocked();
  if (space == Space::DeviceL1)
    return takeL1(bytes, alignment, lifetime);
  Region &region = this->region(space);
  MemoryBlock block;
  if (!region.arena) {
    block.data = heap_.allocate(bytes, alignment);
    if (block.data && poisons_)
      overwrite(static_cast<std::byte *>(block.data), bytes, newPattern);
    return block;
  }
  uint64_t aligned = space == Space::Disk ? std::max<uint64_t>(alignment, SpillFile::block) : alignment;
  auto found = region.arena->take(wholeBytes(space, bytes), aligned);
  return found ? finish(space, *found, bytes, alignment) : block;
}

MemoryBlock SimMemory::finish(Space space, const BestFitArena::Block &found, uint64_t bytes, uint32_t alignment) {
  Region &region = this->region(space);
  // Zero bytes lie anywhere that is aligned.
  std::byte *data = region.begin + found.offset;
  if (bytes == 0)
    data += -reinterpret_cast<uintptr_t>(data) & (alignment - 1);
  if (poisons_ && bytes) {
    try {
      requireUntouched(space, data, bytes);
    } catch (...) {
      region.arena->give(found.offset, bytes, found.after);
      throw;
    }
    leaving_.push_back({data, bytes, found.after, newPattern, 0});
    settleLocked();
  }
  MemoryBlock block;
  block.data = data;
  block.after = found.after;
  return block;
}

const std::byte *SimMemory::reserve(Space space, std::span<const AddressRange> ranges) {
  std::lock_guard lock(mutex_);
  Region &region = this->region(space);
  return region.arena && region.arena->reserve({ranges.begin(), ranges.end()}) ? region.begin : nullptr;
}

MemoryBlock SimMemory::takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) {
  std::lock_guard lock(mutex_);
  settleLocked();
  Region &region = this->region(space);
  auto found = region.arena ? region.arena->takeReserved(bytes, alignment, offset) : std::nullopt;
  return found ? finish(space, *found, bytes, alignment) : MemoryBlock();
}

MemoryBlock SimMemory::takeAt(Space space, uint64_t bytes, std::byte *address) {
  std::lock_guard lock(mutex_);
  settleLocked();
  Region &region = this->region(space);
  auto found = region.arena ? region.arena->takeAt(uint64_t(address - region.begin), bytes) : std::nullopt;
  return found ? finish(space, *found, bytes, /*alignment=*/1) : MemoryBlock();
}

std::vector<AddressRange> SimMemory::freeRanges(Space space, std::span<const HeldBlock> givenBack) const {
  std::lock_guard lock(mutex_);
  const Region &region = regions_[uint8_t(space)];
  if (!region.arena)
    return {};
  std::vector<AddressRange> besides;
  for (const HeldBlock &block : givenBack)
    if (block.bytes)
      besides.push_back({uint64_t(static_cast<const std::byte *>(block.data) - region.begin),
                         wholeBytes(space, block.bytes)});
  return region.arena->freeRanges(std::move(besides));
}

void SimMemory::giveFreeToSystem() noexcept {
  std::lock_guard lock(mutex_);
  if (poisons_ || mappings_.empty())
    return;
  auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
  for (Space space : {Space::HostPinned, Space::DeviceDram})
    if (Region &region = this->region(space); region.arena)
      for (const AddressRange &range : region.arena->freeRanges()) {
        uintptr_t begin = uintptr_t(region.begin) + range.begin, end = (begin + range.bytes) & ~(page - 1);
        begin = (begin + page - 1) & ~(page - 1);
        if (begin < end)
          ::madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
      }
}

void SimMemory::give(Space space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept {
  std::lock_guard lock(mutex_);
  Region &region = this->region(space);
  auto *begin = static_cast<std::byte *>(data);
  if (space == Space::DeviceL1)
    l1_->give(uint64_t(begin - region.begin), lastUse);
  else if (region.arena && bytes)
    region.arena->give(uint64_t(begin - region.begin), wholeBytes(space, bytes), lastUse);
  bool isHeap = this->isHeap(space);
  if (isHeap && !poisons_ && isDone(lastUse))
    heap_.free(data, bytes, alignment);
  else if (isHeap || (poisons_ && bytes))
    leaving_.push_back({begin, bytes, lastUse, freedPattern, isHeap ? alignment : 0});
  settleLocked();
}

//===----------------------------------------------------------------------===//
// What waits for fences
//===----------------------------------------------------------------------===//

bool SimMemory::isDone(const Fence &fence) const {
  if (!poisons_)
    return isDone_(fence);
  Fence both = settled_;
  both.join(fence);
  return both == settled_;
}

void SimMemory::settle(const Fence &done) {
  std::lock_guard lock(mutex_);
  settled_.join(done);
  settleLocked();
}

void SimMemory::settleLocked() {
  if (leaving_.empty())
    return;
  // Memory is overwritten in the order of calls, so that of several patterns for the same
  // bytes the last one stays: its fence is not earlier than those before.
  std::erase_if(leaving_, [&](const Leaving &leaving) {
    if (!isDone(leaving.after))
      return false;
    if (poisons_)
      overwrite(leaving.data, leaving.bytes, leaving.pattern);
    if (leaving.heapAlignment) {
      heap_.free(leaving.data, leaving.bytes, leaving.heapAlignment);
      return true;
    }
    forgetPoison(leaving.data, leaving.bytes);
    if (leaving.pattern == freedPattern)
      poisoned_[leaving.data] = leaving.bytes;
    return true;
  });
}

void SimMemory::forgetPoison(std::byte *data, uint64_t bytes) {
  auto entry = poisoned_.upper_bound(data);
  if (entry != poisoned_.begin())
    --entry;
  while (entry != poisoned_.end() && entry->first < data + bytes) {
    auto [first, size] = *entry;
    if (first + size <= data) {
      ++entry;
      continue;
    }
    entry = poisoned_.erase(entry);
    if (first < data)
      poisoned_[first] = uint64_t(data - first);
    if (data + bytes < first + size)
      poisoned_[data + bytes] = uint64_t(first + size - (data + bytes));
  }
}

void SimMemory::requireUntouched(Space space, std::byte *data, uint64_t bytes) const {
  auto entry = poisoned_.upper_bound(data);
  if (entry != poisoned_.begin())
    --entry;
  for (; entry != poisoned_.end() && entry->first < data + bytes; ++entry) {
    std::byte *end = std::min(entry->first + entry->second, data + bytes);
    if (const std::byte *byte = firstWithout(std::max(entry->first, data), end, freedPattern); byte < end)
      throw Error(ErrorCode::UseAfterFree,
                  "device \"" + device_ + "\": byte " + std::to_string(byte - regions_[uint8_t(space)].begin) + " of " +
                      std::string(name(space)) +
                      " was written after its block had been freed; the writer missed the fence of the last use");
  }
}

} // namespace segue::inline runtime
