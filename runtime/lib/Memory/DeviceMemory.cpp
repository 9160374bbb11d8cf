//===- DeviceMemory.cpp - who holds a device's memory ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

MemoryBlock DeviceMemory::allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId) {
  if (!device_.hasSpace(space))
    throw Error(ErrorCode::Unsupported,
                "device \"" + device_.name() + "\" has no space " + std::string(segue::name(space)));
  MemoryBlock block = device_.takeMemory(space, bytes, alignment);
  if (!block.data)
    throw Error(ErrorCode::DeviceOom, "device \"" + device_.name() + "\" has no " + std::to_string(bytes) +
                                          " bytes left in " + std::string(segue::name(space)));
  std::lock_guard lock(mutex_);
  Usage &usage = usage_[uint8_t(space)];
  usage.live += bytes;
  usage.peak = std::max(usage.peak, usage.live);
  return block;
}

void DeviceMemory::free(Space space, void *data, uint64_t bytes, uint32_t alignment, OwnerId,
                        const Fence &lastUse) noexcept {
  device_.giveMemory(space, data, bytes, alignment, lastUse);
  std::lock_guard lock(mutex_);
  usage_[uint8_t(space)].live -= bytes;
}

uint64_t DeviceMemory::liveBytes(Space space) const {
  std::lock_guard lock(mutex_);
  return usage_[uint8_t(space)].live;
}

uint64_t DeviceMemory::peakBytes(Space space) const {
  std::lock_guard lock(mutex_);
  return usage_[uint8_t(space)].peak;
}

void DeviceMemory::resetPeak() {
  std::lock_guard lock(mutex_);
  for (Usage &usage : usage_)
    usage.peak = usage.live;
}

} // namespace segue::inline runtime
