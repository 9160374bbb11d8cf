//===- HostMemory.cpp - the host's side of a GPU --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HostMemory.h"
#include <algorithm>
#include <sys/mman.h>
#include <system_error>
#include <thread>

namespace segue::inline runtime::cuda {

/// The alignment of huge pages, and the size of a usual page, in bytes.
static constexpr uint64_t hugePage = 2 << 20, page = 4096;
/// The number of threads that touch pages: four are twice as fast as the driver, more gain little.
static constexpr int touchingThreads = 4;

PinnedMemory::PinnedMemory(const Context &context, uint64_t capacityBytes)
    : context_(context), capacity_(capacityBytes), mappingBytes_((capacityBytes + 2 * hugePage) / hugePage * hugePage) {
  void *mapping = mmap(nullptr, mappingBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    throw Error(ErrorCode::DeviceOom, "the system has no " + std::to_string(capacity_) +
                                          " bytes of addresses for page-locked memory; ask for less (pinned=SIZE)");
  mapping_ = mapping;
  auto address = reinterpret_cast<uintptr_t>(mapping);
  base_ = static_cast<std::byte *>(mapping) + (-address & (hugePage - 1));
#ifdef MADV_HUGEPAGE
  (void)madvise(base_, capacity_, MADV_HUGEPAGE); // advice alone
#endif
  arena_.emplace(capacity_, reinterpret_cast<uintptr_t>(base_));
  isLocked_.resize((capacity_ + segmentBytes - 1) / segmentBytes);
}

PinnedMemory::~PinnedMemory() {
  context_.use();
  for (size_t segment = 0; segment < isLocked_.size(); ++segment)
    if (isLocked_[segment])
      (void)context_.succeeded(context_.api().hostUnregister(base_ + segment * segmentBytes), "cuMemHostUnregister");
  munmap(mapping_, mappingBytes_);
}

bool PinnedMemory::lockPages(uint64_t offset, uint64_t bytes) {
  for (uint64_t segment = offset / segmentBytes; segment * segmentBytes < offset + bytes; ++segment) {
    if (isLocked_[segment])
      continue;
    std::byte *begin = base_ + segment * segmentBytes;
    uint64_t length = (std::min(segmentBytes, capacity_ - segment * segmentBytes) + page - 1) / page * page;
    std::vector<std::thread> threads;
    uint64_t part = (length / touchingThreads + hugePage - 1) / hugePage * hugePage;
    auto touch = [=](uint64_t from) {
      for (uint64_t at = from; at < std::min(length, from + part); at += page)
        *reinterpret_cast<volatile char *>(begin + at) = 0;
    };
    for (uint64_t from = 0; from < length; from += part) {
      try {
        threads.emplace_back(touch, from);
      } catch (const std::system_error &) { // the system has no thread left
        touch(from);
      }
    }
    for (std::thread &thread : threads)
      thread.join();
    context_.use();
    if (!context_.succeeded(context_.api().hostRegister(begin, length, 0), "cuMemHostRegister")) {
      context_.throwIfLost();
      return false;
    }
    isLocked_[segment] = true;
  }
  return true;
}

MemoryBlock PinnedMemory::take(uint64_t bytes, uint64_t alignment) {
  context_.throwIfLost();
  std::lock_guard lock(mutex_);
  auto found = arena_->take(bytes, alignment);
  if (!found)
    return {};
  MemoryBlock block;
  std::byte *data = base_ + found->offset;
  if (bytes == 0) { // lies anywhere that is aligned
    block.data = data + (-reinterpret_cast<uintptr_t>(data) & (alignment - 1));
    return block;
  }
  bool isLocked = false;
  try {
    isLocked = lockPages(found->offset, bytes);
  } catch (...) {
    arena_->give(found->offset, bytes, found->after);
    throw;
  }
  if (!isLocked) {
    arena_->give(found->offset, bytes, found->after);
    return {};
  }
  block.data = data;
  block.after = found->after;
  return block;
}

void PinnedMemory::give(void *data, uint64_t bytes, const Fence &lastUse) noexcept {
  if (!bytes)
    return;
  std::lock_guard lock(mutex_);
  arena_->give(uint64_t(static_cast<std::byte *>(data) - base_), bytes, lastUse);
}

FreeMemory PinnedMemory::freeMemory() const {
  std::lock_guard lock(mutex_);
  return arena_->freeMemory();
}

HostHeap::~HostHeap() {
  for (const Leaving &leaving : leaving_)
    heap_.free(leaving.data, leaving.bytes, leaving.alignment);
}

void HostHeap::settle() noexcept {
  std::erase_if(leaving_, [&](const Leaving &leaving) {
    if (!isPast_(leaving.after))
      return false;
    heap_.free(leaving.data, leaving.bytes, leaving.alignment);
    return true;
  });
}

MemoryBlock HostHeap::take(uint64_t bytes, uint32_t alignment) {
  MemoryBlock block;
  {
    std::lock_guard lock(mutex_);
    settle();
  }
  block.data = heap_.allocate(bytes, alignment);
  return block;
}

void HostHeap::give(void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept {
  if (isPast_(lastUse))
    return heap_.free(data, bytes, alignment);
  std::lock_guard lock(mutex_);
  settle();
  leaving_.push_back({data, bytes, alignment, lastUse});
}

} // namespace segue::inline runtime::cuda
