//===- ResidentTensors.h - what lives on the host and comes by block -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Parameters, gradients and states of optimizers that have their home in host
// memory: a copy is on the device while a block touches it, and as long after as
// whoever decides wants. What is changed there is copied back when it leaves, or
// by flush(). Queued work is waited for by what reads its result: a copy out
// that fails, after the engine's second try, makes the home FAILED, so that the
// step that reads it fails, and no stale value is ever used.
//
// One thread, that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H
#define SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <map>
#include <vector>

namespace segue::inline runtime {

class ResidentTensors {
public:
  explicit ResidentTensors(DeviceRef device) : device_(std::move(device)) {}
  ~ResidentTensors();

  /// By the storage of the home.
  using Id = uint64_t;
  static Id idOf(const Tensor &home) { return home.storage()->id(); }

  /// A device with memory of its own and a tensor in the host's.
  bool isHome(const Tensor &tensor) const;
  bool knows(Id id) const { return entries_.contains(id); }
  bool isOnDevice(Id id) const;

  /// The copy on the device, in the layout of `value`, the input of a program;
  /// fetches it if there is none. `isWritten`: what is queued next changes it.
  Tensor bring(const Tensor &home, const Value &value, bool isWritten);
  /// Fetches what was brought before and has left; nothing if it is there, or
  /// unknown.
  void fetch(Id id);
  /// The copy on the device is given up, its changes queued for home. Nothing if
  /// there is none.
  void leave(Id id);
  /// Everything does.
  void leaveAll();
  /// Sends a tensor of the device home; returns its home. Bytes of the device go
  /// back in the order of submits once `tensor` is dropped.
  Tensor sendHome(const Tensor &tensor);
  /// The copy of the device is the caller's own from here on, its home forgotten;
  /// null if there is none.
  Tensor take(Id id);
  /// Forgets a home that nobody else holds any more; false if somebody does.
  bool forgetUnheld(Id id);
  /// All of them.
  void forgetUnheld();

  /// Homes have what the device has when it returns. Throws TransferFailed.
  void flush();
  /// Homes were written: copies on the device are stale and dropped.
  void dropCopies();
  /// Of one home.
  void dropCopy(Id id);

  struct Counts {
    uint64_t fetched = 0, fetchedBytes = 0, sentHome = 0, sentHomeBytes = 0;
    /// Homes of gradients in pageable memory, as there was no pinned memory left.
    uint64_t unpinned = 0;
  };
  const Counts &counts() const { return counts_; }

private:
  struct Entry {
    Tensor home, device;
    std::shared_ptr<const TensorDesc> there;
    OwnerId owner = 0;
    bool isChanged = false;
  };

  void fetch(Entry &entry);
  void copyHome(Entry &entry);

  DeviceRef device_;
  std::map<Id, Entry> entries_;
  Counts counts_;
};

/// A copy of `tensor` in page-locked memory of the host, or in other memory of it
/// where there is none left, which counts in `unpinned`. Queued.
Tensor copyToHost(const DeviceRef &device, const Tensor &tensor, uint64_t &unpinned);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H
