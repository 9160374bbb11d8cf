//===- Device.h - what a device can do --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The narrow interface behind which devices differ: spaces with capacities,
// memory, copies, kernel launches and a clock. Library calls (matmul,
// attention) are plans of the Engine, made once per command. `cpu` is here;
// a simulated accelerator and CUDA are further entries of the list of drivers
// in Device.cpp.
//
//   auto device = Device::open("cpu");            // all threads of OpenMP
//   auto two = Device::open("cpu:threads=2");
//
// One thread submits to a device; any thread may allocate and free.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_DEVICE_H
#define SEGUE_RUNTIME_DEVICE_DEVICE_H

#include "segue/runtime/Tensor/Layout.h"
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace segue::inline runtime {

class Engine;
class Device;
using DeviceRef = std::shared_ptr<Device>;

/// A compiled kernel: 0 on success, else 1 + the argument that holds an index
/// outside of its table. May be called at the same time for disjoint ranges.
using KernelFunction = int64_t (*)(void *const *args, int64_t begin, int64_t end);

struct SpaceInfo {
  Space space;
  /// Bytes; for memory shared with other programs, what the machine has.
  uint64_t capacityBytes;
};

class Device {
public:
  /// Opens a device by its spec: a driver name, then `:key=value,...`. Throws
  /// InvalidArgument naming the unknown driver or key and the known ones.
  static DeviceRef open(std::string_view spec);

  virtual ~Device() = default;

  /// The spec that opens this device again.
  virtual std::string name() const = 0;

  virtual std::span<const SpaceInfo> spaces() const = 0;
  bool hasSpace(Space space) const;

  /// True if host, host_pinned and device_dram are the same memory here, so
  /// that a tensor in one of them is in all.
  virtual bool hasUnifiedMemory() const = 0;

  /// Threads that a launch is split over.
  virtual int threads() const = 0;

  /// Memory of `space`, not initialised; null if there is none left. `bytes`
  /// may be 0. Freed by `free` with the same arguments.
  virtual void *allocate(Space space, uint64_t bytes, uint32_t alignment) = 0;
  virtual void free(Space space, void *data, uint64_t bytes, uint32_t alignment) noexcept = 0;

  /// Copies bytes between its spaces; the ranges do not overlap. Blocks.
  virtual void copy(void *target, const void *source, uint64_t bytes) = 0;

  /// Library calls: plans are made when a program is prepared, and run in
  /// between launches by the thread that submits.
  virtual Engine &engine() = 0;

  /// Runs `kernel` over [0, range) in pieces that are multiples of `grain`, on
  /// up to `threads` threads of the pool (1: inline, on the calling thread).
  /// Blocks. Returns the first non-zero result by position, or 0.
  virtual int64_t launch(KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) = 0;

  /// Seconds of a monotonic clock.
  virtual double seconds() const = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_DEVICE_H
