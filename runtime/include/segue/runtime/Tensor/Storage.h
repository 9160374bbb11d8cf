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
// What queued work does to it is kept as two fences: a reader waits for the
// last write, a writer for the last reads too. Only the thread that submits to
// the device looks at them or moves them. Queued work does not keep a storage
// alive: its bytes go back when the last handle goes, with the fence of their
// last use, so that memory in use depends on the order of submission and not on
// the speed of queues. A storage whose write failed keeps the error, and
// everything that would read it fails with it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_STORAGE_H
#define SEGUE_RUNTIME_TENSOR_STORAGE_H

#include "segue/runtime/Error.h"
#include "segue/runtime/Fence.h"
#include "segue/runtime/Layout/Layout.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <atomic>
#include <functional>
#include <memory>

namespace segue::inline runtime {

class Device;
using DeviceRef = std::shared_ptr<Device>;

/// PENDING means that queued work will fill it; FAILED that this work failed; FREED that
/// its bytes are gone though handles are left.
enum class StorageState : uint8_t { Pending, Ready, Failed, Freed };

std::string_view name(StorageState state);

/// An Outcome says whether the queued writes of a storage went well. Queued work
/// keeps the outcome and not the storage, so that dropping the last handle gives the
/// bytes back in the order of submission, whatever the queues have done by then.
class Outcome {
public:
  Outcome() = default;
  Outcome(const Outcome &) = delete;
  Outcome &operator=(const Outcome &) = delete;
  ~Outcome() { delete error_.load(); }

  /// Keeps the first error. Any thread may call.
  void fail(const Error &error);
  /// Returns null, or why the bytes were never written.
  const Error *error() const { return error_.load(std::memory_order_acquire); }

private:
  std::atomic<const Error *> error_{nullptr};
};

/// Keeps converted copies of storages, and is told when one of these is freed or begins a
/// new life.
class DerivedCopies {
public:
  /// Forgets the copies of a storage. Any thread may call.
  virtual void forget(uint64_t storageId) noexcept = 0;

protected:
  ~DerivedCopies() = default;
};

class Storage {
public:
  /// Takes `bytes` of `space` from the device; not initialised. Blocks until
  /// the memory is there. Throws DeviceOom.
  static std::shared_ptr<Storage> allocate(DeviceRef device, Space space, uint64_t bytes, uint32_t alignment,
                                           OwnerId owner = 0, Lifetime lifetime = Lifetime::Long);

  /// Refers to memory of the caller without a copy. `release` is called once, on the thread
  /// that drops the last handle, and must not throw; until then the memory stays valid. If
  /// it is not `writable`, no program writes it in place. In device_dram the memory is lent to
  /// the device (Device::lendMemory throws), and who wraps it says by addWrite what it waits for.
  static std::shared_ptr<Storage> wrap(DeviceRef device, void *data, uint64_t bytes, std::function<void()> release,
                                       bool writable = true, Space space = Space::Host);

  Storage(const Storage &) = delete;
  Storage &operator=(const Storage &) = delete;
  ~Storage();

  /// Returns an id that is unique in the process and is never used again.
  uint64_t id() const { return id_; }
  const DeviceRef &device() const { return device_; }
  Space space() const { return space_; }
  uint64_t bytes() const { return bytes_; }
  /// Returns the address, or null once freed. On a device it may change with every
  /// allocation there (see Compactor): ask again, keep none. It is an address of the space:
  /// the host reads it only if the space is the host's, or the device's memory is unified.
  std::byte *data() const { return data_; }

  /// When memory of somebody else is let go, `stream`, which is its owner's, waits for the queued work on it
  /// (Device::letStreamWait), and not the host.
  void letGoBehind(void *stream) { ownerStream_ = stream; }

  /// Returns true if the memory belongs to somebody else.
  bool isExternal() const { return external_; }
  bool isWritable() const { return writable_; }

  /// Returns the version, which grows by one with each in-place write by a program.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

  /// Makes it a storage that nobody has seen, with a new id and version 0, for its only
  /// holder to give out again.
  void renew();

  /// Return the fences that a reader (writes) and a writer (uses) of the storage waits for.
  const Fence &writes() const { return writes_; }
  const Fence &uses() const { return uses_; }
  /// Notes that queued work at `fence` reads, or writes, the storage.
  void addRead(const Fence &fence) { uses_.join(fence); }
  void addWrite(const Fence &fence) {
    writes_.join(fence);
    uses_.join(fence);
  }

  /// Returns false if handles that are left do not need the bytes after the
  /// next program that reads them; it frees the storage. See setRetain.
  bool isRetained() const { return retained_.load(std::memory_order_relaxed); }
  void setRetained(bool retained) { retained_.store(retained, std::memory_order_relaxed); }
  /// Returns true if the next program that takes the storage
  /// may write it, whoever holds a handle. See donate.
  bool isDonated() const { return donated_.load(std::memory_order_relaxed); }
  void setDonated(bool donated) { donated_.store(donated, std::memory_order_relaxed); }

  /// Notes that `copies`, which lives as long as the device, has copies of this storage from now on.
  void setDerived(DerivedCopies &copies) { derived_.store(&copies, std::memory_order_release); }

  StorageState state() const;
  /// Notes that work queued from now on writes all of the storage anew:
  /// what became of earlier writes does not matter to its readers any more.
  void forgetOutcome() { outcome_ = nullptr; }
  /// Returns the outcome, which is made on first use and kept by work that writes the storage.
  const std::shared_ptr<Outcome> &outcome();
  /// Returns the outcome, or null if nothing that can fail has written the storage.
  const std::shared_ptr<Outcome> &outcomeIfAny() const { return outcome_; }
  /// Returns null, or why its bytes were never written.
  const Error *failure() const { return outcome_ ? outcome_->error() : nullptr; }
  /// Returns false if requireUsable would throw.
  bool isUsable() const { return !freed_ && !failure(); }
  /// Throws that error, or UseAfterFree, if there is one; `what` names the
  /// tensor.
  void requireUsable(std::string_view what) const;

  /// Gives the bytes back now, whoever still holds a handle: once queued work
  /// is done with them they serve others.
  void free() noexcept;

private:
  friend class Compactor;
  Storage() = default;

  void awaitUses() noexcept;

  /// Notes that queued work at `moved` has brought the bytes to another address.
  void moveTo(std::byte *data, const Fence &moved) {
    data_ = data;
    addWrite(moved);
  }

  uint64_t id_ = 0;
  DeviceRef device_;
  Space space_ = Space::Host;
  uint64_t bytes_ = 0;
  uint32_t alignment_ = 1;
  uint32_t account_ = 0;
  std::byte *data_ = nullptr;
  bool external_ = false;
  bool writable_ = true;
  bool freed_ = false;
  std::atomic<bool> retained_{true}, donated_{false};
  std::atomic<DerivedCopies *> derived_{nullptr};
  std::function<void()> release_;
  void *ownerStream_ = nullptr;
  std::atomic<uint64_t> version_{0};
  Fence writes_, uses_;
  std::shared_ptr<Outcome> outcome_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_STORAGE_H
