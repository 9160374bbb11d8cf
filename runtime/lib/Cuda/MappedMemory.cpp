//===- MappedMemory.cpp - device memory mapped by chunks ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MappedMemory.h"
#include <algorithm>
#include <bit>
#include <map>
#include <ranges>

namespace segue::inline runtime::cuda {

/// Returns the properties of CU_MEM_ALLOCATION_TYPE_PINNED on CU_MEM_LOCATION_TYPE_DEVICE, read and written.
static MemProperties propertiesOf(int device) {
  MemProperties properties{};
  properties.type = 1;
  properties.location = {1, device};
  return properties;
}
static MemAccess accessOf(int device) { return {{1, device}, 3}; }

static CUdeviceptr addressOf(const std::byte *at) { return reinterpret_cast<CUdeviceptr>(at); }

MappedMemory::MappedMemory(const Context &context, uint64_t capacityBytes, IsPast isPast)
    : context_(context), isPast_(std::move(isPast)), capacity_(capacityBytes),
      addressBytes_(3 * capacityBytes), limitChunks_(capacityBytes / chunkBytes) {
  context_.use();
  const Api &api = context_.api();
  MemProperties properties = propertiesOf(context_.number());
  size_t granularity = 0;
  context_.check(api.granularity(&granularity, &properties, 0), "cuMemGetAllocationGranularity");
  if (granularity == 0 || chunkBytes % granularity)
    throw Error(ErrorCode::Unsupported, "the CUDA driver maps memory in chunks of " + std::to_string(granularity) +
                                            " bytes, Segue in chunks of 2 MiB");
  CUdeviceptr base = 0;
  context_.check(api.reserve(&base, addressBytes_ + capacity_, chunkBytes, 0, 0), "cuMemAddressReserve",
                 ErrorCode::DeviceOom);
  base_ = reinterpret_cast<std::byte *>(base);
  arena_.emplace(addressBytes_, base);
  forDriver_.emplace(capacity_, base + addressBytes_);
  chunks_.resize(addressBytes_ / chunkBytes);
  idle_.resize((chunks_.size() + 63) / 64);
}

MappedMemory::~MappedMemory() {
  context_.use();
  for (uint64_t index = 0; index < chunks_.size(); ++index)
    if (CUmemHandle handle = chunks_[index].handle) {
      unmap(index);
      (void)context_.succeeded(context_.api().release(handle), "cuMemRelease");
    }
  for (const Leaving &leaving : leaving_)
    unmap(leaving.index);
  (void)context_.succeeded(context_.api().addressFree(addressOf(base_), addressBytes_ + capacity_), "cuMemAddressFree");
}

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

void MappedMemory::setIdle(uint64_t index, bool isIdle) noexcept {
  uint64_t &word = idle_[index / 64], bit = uint64_t(1) << index % 64;
  if (((word & bit) != 0) == isIdle)
    return;
  word ^= bit;
  idleCount_ += isIdle ? 1 : -1;
}

void MappedMemory::unmap(uint64_t index) noexcept {
  (void)context_.succeeded(context_.api().unmap(addressOf(base_ + index * chunkBytes), chunkBytes), "cuMemUnmap");
}

CUmemHandle MappedMemory::makeChunk() {
  if (made_ + driverChunks_ >= limitChunks_)
    return 0;
  MemProperties properties = propertiesOf(context_.number());
  CUmemHandle handle = 0;
  CUresult result = context_.api().create(&handle, chunkBytes, &properties, 0);
  if (result == outOfMemory) // others of this GPU have it
    return 0;
  context_.check(result, "cuMemCreate", ErrorCode::DeviceOom);
  ++made_;
  return handle;
}

std::optional<CUmemHandle> MappedMemory::takeIdle(Fence &after) {
  // Chunks are taken from the end, so that what lies low stays.
  for (uint64_t word = idleCount_ ? idle_.size() : 0; word-- > 0;)
    for (uint64_t bits = idle_[word]; bits;) {
      uint64_t bit = 63 - uint64_t(std::countl_zero(bits)), index = word * 64 + bit;
      bits &= ~(uint64_t(1) << bit);
      // A chunk is not taken where somebody is about to lie, nor in what is set aside.
      auto place = arena_->takeAt(index * chunkBytes, chunkBytes);
      if (!place)
        continue;
      Chunk &chunk = chunks_[index];
      Fence last = place->after;
      last.join(chunk.after);
      CUmemHandle handle = std::exchange(chunk.handle, 0);
      chunk.after = {};
      setIdle(index, false);
      if (isPast_(last)) {
        unmap(index);
        arena_->give(index * chunkBytes, chunkBytes, {});
      } else {
        leaving_.push_back({index, last});
        after.join(last);
      }
      return handle;
    }
  return std::nullopt;
}

bool MappedMemory::mapChunk(uint64_t index) {
  Fence after;
  CUmemHandle handle = makeChunk();
  if (!handle)
    handle = takeIdle(after).value_or(0);
  if (!handle)
    return false;
  const Api &api = context_.api();
  CUdeviceptr address = addressOf(base_ + index * chunkBytes);
  MemAccess access = accessOf(context_.number());
  const char *call = "cuMemMap";
  CUresult result = api.map(address, chunkBytes, 0, handle, 0);
  if (!result) {
    call = "cuMemSetAccess";
    result = api.setAccess(address, chunkBytes, &access, 1);
    if (result)
      unmap(index);
  }
  if (result) {
    (void)api.release(handle);
    --made_;
    if (result == outOfMemory)
      return false;
    context_.check(result, call, ErrorCode::DeviceOom);
  }
  chunks_[index].handle = handle;
  chunks_[index].after = after;
  if (!chunks_[index].usedBytes)
    setIdle(index, true);
  return true;
}

bool MappedMemory::mapAll(uint64_t first, uint64_t end) {
  for (uint64_t index = first; index < end; ++index)
    if (!chunks_[index].handle && !mapChunk(index))
      return false;
  return true;
}

uint64_t MappedMemory::chunksInUse() const { return made_ - idleCount_ + driverChunks_; }

void MappedMemory::dropSurplus() {
  while (made_ + driverChunks_ > limitChunks_) {
    Fence after;
    auto handle = takeIdle(after);
    if (!handle)
      return;
    // Memory that is still mapped somewhere goes back when it is unmapped.
    (void)context_.succeeded(context_.api().release(*handle), "cuMemRelease");
    --made_;
  }
}

void MappedMemory::settleLocked() {
  if (!leaving_.empty())
    std::erase_if(leaving_, [&](const Leaving &leaving) {
      if (!isPast_(leaving.after))
        return false;
      unmap(leaving.index);
      arena_->give(leaving.index * chunkBytes, chunkBytes, {});
      return true;
    });
  if (made_ + driverChunks_ > limitChunks_)
    dropSurplus();
}

void MappedMemory::settle() {
  if (isInHostFunction())
    return;
  std::lock_guard lock(mutex_);
  if (leaving_.empty() && made_ + driverChunks_ <= limitChunks_)
    return;
  context_.use();
  settleLocked();
}

void MappedMemory::limit(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  limitChunks_ = (std::min(bytes, capacity_) + chunkBytes - 1) / chunkBytes;
  if (isInHostFunction())
    return;
  context_.use();
  settleLocked();
}

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

MemoryBlock MappedMemory::finish(const BestFitArena::Block &found, uint64_t bytes, uint64_t alignment) {
  MemoryBlock block;
  std::byte *data = base_ + found.offset;
  block.after = found.after;
  if (bytes == 0) { // lies anywhere that is aligned
    block.data = data + (-reinterpret_cast<uintptr_t>(data) & (alignment - 1));
    return block;
  }
  uint64_t first = firstChunk(found.offset), end = endChunk(found.offset, bytes);
  auto giveUp = [&] { arena_->give(found.offset, bytes, found.after); };
  try {
    if (!mapAll(first, end)) {
      giveUp();
      return {};
    }
  } catch (...) {
    giveUp();
    throw;
  }
  bool isAliased = false;
  for (uint64_t index = first; index < end; ++index) {
    Chunk &chunk = chunks_[index];
    isAliased = isAliased || !chunk.after.empty();
    block.after.join(chunk.after);
    chunk.usedBytes += bytesIn(index, found.offset, bytes);
    setIdle(index, false);
  }
  if (isAliased && isPast_(block.after)) // nothing to remember any more
    for (uint64_t index = first; index < end; ++index)
      chunks_[index].after = {};
  liveBytes_ += bytes;
  block.data = data;
  return block;
}

MemoryBlock MappedMemory::take(uint64_t bytes, uint64_t alignment) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  context_.use();
  settleLocked();
  auto found = arena_->take(bytes, alignment);
  return found ? finish(*found, bytes, alignment) : MemoryBlock();
}

MemoryBlock MappedMemory::takeReserved(uint64_t bytes, uint64_t alignment, std::optional<uint64_t> offset) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  context_.use();
  auto found = arena_->takeReserved(bytes, alignment, offset);
  return found ? finish(*found, bytes, alignment) : MemoryBlock();
}

MemoryBlock MappedMemory::takeAt(uint64_t bytes, void *address) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  context_.use();
  settleLocked();
  auto found = arena_->takeAt(uint64_t(static_cast<std::byte *>(address) - base_), bytes);
  return found ? finish(*found, bytes, /*alignment=*/1) : MemoryBlock();
}

const std::byte *MappedMemory::reserve(std::span<const AddressRange> ranges) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  context_.use();
  settleLocked();
  if (!arena_->reserve({ranges.begin(), ranges.end()}))
    return nullptr;
  bool isMapped = true;
  try {
    for (const AddressRange &range : ranges)
      isMapped = isMapped && (!range.bytes || mapAll(firstChunk(range.begin), endChunk(range.begin, range.bytes)));
  } catch (...) {
    arena_->reserve(reserved_);
    throw;
  }
  if (!isMapped) {
    arena_->reserve(reserved_); // they are as free as they were
    return nullptr;
  }
  reserved_.assign(ranges.begin(), ranges.end());
  return base_;
}

void MappedMemory::give(void *data, uint64_t bytes, const Fence &lastUse) noexcept {
  if (!bytes)
    return;
  std::lock_guard lock(mutex_);
  uint64_t offset = uint64_t(static_cast<std::byte *>(data) - base_);
  arena_->give(offset, bytes, lastUse);
  liveBytes_ -= bytes;
  for (uint64_t index = firstChunk(offset); index < endChunk(offset, bytes); ++index)
    if ((chunks_[index].usedBytes -= bytesIn(index, offset, bytes)) == 0)
      setIdle(index, true);
}

std::vector<AddressRange> MappedMemory::freeRanges(std::span<const HeldBlock> givenBack) const {
  std::lock_guard lock(mutex_);
  std::vector<AddressRange> besides;
  std::map<uint64_t, uint64_t> usedBytes; // of the chunks in which blocks are given back
  for (const HeldBlock &block : givenBack) {
    uint64_t offset = uint64_t(static_cast<const std::byte *>(block.data) - base_);
    if (block.bytes)
      besides.push_back({offset, block.bytes});
    for (uint64_t index = firstChunk(offset); block.bytes && index < endChunk(offset, block.bytes); ++index)
      usedBytes.try_emplace(index, chunks_[index].usedBytes).first->second -= bytesIn(index, offset, block.bytes);
  }
  auto isIdle = [&](uint64_t index) {
    auto changed = usedBytes.find(index);
    return changed == usedBytes.end() ? !chunks_[index].usedBytes : !changed->second;
  };
  // Ranges count no further than there are chunks for: addresses are not short.
  uint64_t inUse = chunksInUse() - uint64_t(std::ranges::count(usedBytes | std::views::values, 0u));
  uint64_t chunks = limitChunks_ > inUse ? limitChunks_ - inUse : 0;
  uint64_t counted = UINT64_MAX; // the chunk of a range's end is shared with the next
  std::vector<AddressRange> ranges;
  for (AddressRange range : arena_->freeRanges(std::move(besides))) {
    uint64_t end = range.begin;
    for (uint64_t index = firstChunk(range.begin); index * chunkBytes < range.end(); ++index) {
      if (isIdle(index) && index != counted) {
        if (!chunks)
          break;
        --chunks;
        counted = index;
      }
      end = std::min(range.end(), (index + 1) * chunkBytes);
    }
    if (end > range.begin)
      ranges.push_back({range.begin, end - range.begin});
  }
  return ranges;
}

FreeMemory MappedMemory::freeMemory() const {
  FreeMemory free;
  for (const AddressRange &range : freeRanges()) {
    free.largestRange = std::max(free.largestRange, range.bytes);
    ++free.ranges;
  }
  std::lock_guard lock(mutex_);
  free.bytes = capacity_ - std::min(capacity_, liveBytes_ + driverChunks_ * chunkBytes);
  return free;
}

MemoryBlock MappedMemory::takeForDriver(uint64_t bytes) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  context_.use();
  settleLocked();
  auto found = forDriver_->take(bytes, chunkBytes);
  if (!found)
    return {};
  uint64_t chunks = bytes / chunkBytes;
  driverChunks_ += chunks;
  dropSurplus();
  if (made_ + driverChunks_ > limitChunks_) {
    driverChunks_ -= chunks;
    forDriver_->give(found->offset, bytes, {});
    return {};
  }
  MemoryBlock block;
  block.data = base_ + addressBytes_ + found->offset;
  return block;
}

void MappedMemory::giveForDriver(void *data, uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  forDriver_->give(uint64_t(static_cast<std::byte *>(data) - base_) - addressBytes_, bytes, {});
  driverChunks_ -= bytes / chunkBytes;
}

uint64_t MappedMemory::madeBytes() const {
  std::lock_guard lock(mutex_);
  return made_ * chunkBytes;
}

} // namespace segue::inline runtime::cuda
