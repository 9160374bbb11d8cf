//===- DeviceMemory.h - who holds a device's memory -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every byte of every space of a device is taken and given back through this
// class. It keeps a budget per space (at most the capacity), counts live bytes
// and their high-water mark, by owner, and asks for room before it fails. The
// bytes themselves come from the device, which knows where they lie.
//
// Any thread may allocate and free. Budgets and make-room callbacks are set by
// the thread that submits, and the callbacks run on the thread that allocates.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
#define SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H

#include "segue/runtime/Device/Fence.h"
#include "segue/runtime/Tensor/Layout.h"
#include <functional>
#include <mutex>

namespace segue::inline runtime {

class Device;

/// A block of raw memory; `after`: done with its former contents. Whoever
/// writes it first, on whatever queue, waits for that fence.
struct MemoryBlock {
  void *data = nullptr;
  Fence after;
};

/// Names an owner within the DeviceMemory that gave the number; 0 is nobody in
/// particular.
using OwnerId = uint32_t;

class DeviceMemory {
public:
  explicit DeviceMemory(Device &device) : device_(device) {}
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;

  /// Not initialised. Asks for room (see addMakeRoom) before it throws
  /// DeviceOom. Throws Unsupported where the device lacks the space.
  MemoryBlock allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0);

  /// The same arguments as allocate. `lastUse`: queued work that still touches
  /// the block; it may be given out again at once, with that fence.
  void free(Space space, void *data, uint64_t bytes, uint32_t alignment, OwnerId owner, const Fence &lastUse) noexcept;

  /// Bytes allocated now, and the most there ever were since resetPeak.
  uint64_t liveBytes(Space space) const;
  uint64_t peakBytes(Space space) const;
  void resetPeak();

private:
  struct Usage {
    uint64_t live = 0, peak = 0;
  };

  Device &device_;
  mutable std::mutex mutex_;
  Usage usage_[4];
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
