//===- KeptMemory.cpp - device_l1 on a GPU --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KeptMemory.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

KeptMemory::KeptMemory(const Context &context, Streams &streams, const std::string &device, uint64_t bytes)
    : context_(context),
      memory_(context, MappedMemory::inChunks(bytes), [&streams](const Fence &fence) { return streams.isPast(fence); }),
      arena_(bytes) {
  context_.use();
  auto most = uint64_t(std::min(context_.attribute(attributeMostKeptCache), context_.attribute(attributeMostCacheWindow)));
  if (bytes > most)
    throw Error(ErrorCode::InvalidArgument, "device \"" + device + "\": l1=" + std::to_string(bytes) +
                                                " is more than the L2 cache of " + context_.model() + " keeps, " +
                                                std::to_string(most) + " bytes");
  const Api &api = context_.api();
  context_.check(api.ctxGetLimit(&limitBefore_, limitKeptCache), "cuCtxGetLimit");
  begin_ = static_cast<std::byte *>(memory_.take(MappedMemory::inChunks(bytes), MappedMemory::chunkBytes).data);
  if (!begin_)
    throw Error(ErrorCode::DeviceOom, "device \"" + device + "\": " + context_.model() + " has no " +
                                          std::to_string(MappedMemory::inChunks(bytes)) + " bytes free for l1=");
  // Other devices of the process share the context, and with it the limit.
  context_.check(api.ctxSetLimit(limitKeptCache, std::max<size_t>(limitBefore_, bytes)), "cuCtxSetLimit");
  streams.keepInCache(begin_, bytes);
}

KeptMemory::~KeptMemory() {
  context_.use();
  (void)context_.succeeded(context_.api().ctxSetLimit(limitKeptCache, limitBefore_), "cuCtxSetLimit");
}

MemoryBlock KeptMemory::take(uint64_t bytes, uint32_t alignment, Lifetime lifetime) {
  std::lock_guard lock(mutex_);
  // Offsets are aligned, and the memory as far as a chunk.
  auto placed = alignment <= MappedMemory::chunkBytes ? arena_.take(bytes, alignment, lifetime) : std::nullopt;
  return placed ? MemoryBlock{begin_ + placed->offset, placed->after} : MemoryBlock();
}

void KeptMemory::give(void *data, const Fence &lastUse) noexcept {
  std::lock_guard lock(mutex_);
  arena_.give(uint64_t(static_cast<std::byte *>(data) - begin_), lastUse);
}

FreeMemory KeptMemory::freeMemory() const {
  std::lock_guard lock(mutex_);
  return arena_.free();
}

} // namespace segue::inline runtime::cuda
