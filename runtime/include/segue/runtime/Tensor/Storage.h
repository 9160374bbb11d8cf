//===- Storage.h - the bytes behind tensors ---------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A storage is a run of bytes on a device with an id and a version number,
// shared by the tensors that lie in it and freed with the last of them. It is
// either allocated from a device or wraps memory that somebody else owns (a
// numpy array, a torch tensor), kept alive by a callback. Handles may be
// copied and dropped on any thread.
//
// On `cpu`, a storage is READY from its creation. Devices with queues will add
// the other states of the stitching contract here.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_STORAGE_H
#define SEGUE_RUNTIME_TENSOR_STORAGE_H

#include "segue/runtime/Tensor/Layout.h"
#include <atomic>
#include <functional>
#include <memory>

namespace segue::inline runtime {

class Device;
using DeviceRef = std::shared_ptr<Device>;

class Storage {
public:
  /// Takes `bytes` of `space` from the device; not initialised. Blocks until
  /// the memory is there. Throws DeviceOom.
  static std::shared_ptr<Storage> allocate(DeviceRef device, Space space, uint64_t bytes, uint32_t alignment);

  /// Refers to memory of the caller without a copy. `release` is called once,
  /// on the thread that drops the last handle, and must not throw; until then
  /// the memory stays valid. Not `writable`: no program writes it in place.
  static std::shared_ptr<Storage> wrap(DeviceRef device, void *data, uint64_t bytes, std::function<void()> release,
                                       bool writable = true);

  Storage(const Storage &) = delete;
  Storage &operator=(const Storage &) = delete;
  ~Storage();

  /// Unique in the process while it runs; never used again.
  uint64_t id() const { return id_; }
  const DeviceRef &device() const { return device_; }
  Space space() const { return space_; }
  uint64_t bytes() const { return bytes_; }
  std::byte *data() const { return data_; }

  /// True if the memory belongs to somebody else.
  bool isExternal() const { return external_; }
  bool isWritable() const { return writable_; }

  /// Grows by one with each in-place write by a program.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

private:
  Storage() = default;

  uint64_t id_ = 0;
  DeviceRef device_;
  Space space_ = Space::Host;
  uint64_t bytes_ = 0;
  uint32_t alignment_ = 1;
  std::byte *data_ = nullptr;
  bool external_ = false;
  bool writable_ = true;
  std::function<void()> release_;
  std::atomic<uint64_t> version_{0};
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_STORAGE_H
