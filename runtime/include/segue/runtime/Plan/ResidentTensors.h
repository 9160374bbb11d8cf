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
// by flush(). The device's bytes are given up when the copy is known to have
// arrived, or earlier where their room is needed: then it is waited for. A copy
// home that fails, after the engine's second try, loses nothing: the device's copy
// stays, serves who asks, and goes home with the next that leaves. What a program
// failed to write makes its home FAILED, and no stale value is ever used.
//
// One thread, that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H
#define SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class TransferChecksum;

class ResidentTensors {
public:
  explicit ResidentTensors(DeviceRef device);
  ResidentTensors(const ResidentTensors &) = delete;
  ResidentTensors &operator=(const ResidentTensors &) = delete;
  ~ResidentTensors();

  /// Gets a sentence for what could not be copied home, once until it could.
  void setWarn(std::function<void(const std::string &)> warn) { warn_ = std::move(warn); }

  /// By the storage of the home.
  using Id = uint64_t;
  static Id idOf(const Tensor &home) { return home.storage()->id(); }

  /// A device with memory of its own and a tensor in the host's.
  bool isHome(const Tensor &tensor) const;
  bool knows(Id id) const { return entries_.contains(id); }
  bool isOnDevice(Id id) const;

  /// The copy on the device, in the layout of `value`, the input of a program;
  /// fetches it if there is none. `isWritten`: what is queued next changes it.
  /// `mustArrive`: blocks until it is there, and fetches again what did not
  /// arrive; throws TransferFailed after eight times. For programs that write in
  /// place, which must not begin without all they read.
  Tensor bring(const Tensor &home, const Value &value, bool isWritten, bool mustArrive = false);
  /// Fetches what was brought before and has left; nothing if it is there, or
  /// unknown.
  void fetch(Id id);
  /// The copy on the device is given up, its changes queued for home. Nothing if
  /// there is none.
  void leave(Id id);
  /// Everything does.
  void leaveAll();
  /// What could not be copied home leaves again.
  void leaveAgain();
  /// True if the device has a value that its home lacks, or may lack.
  bool holdsValueOf(Id id) const;
  /// Blocks until what leaves has arrived, or stays.
  void settle();
  /// Blocks until one more has; false if nothing is leaving.
  bool awaitDeparture();
  /// A plan says at which address each copy lies: what is needed again while it is
  /// on its way home gets a new one there, as if it had left.
  void setPlaced(bool isPlaced) { isPlaced_ = isPlaced; }
  /// Sends a tensor of the device home; returns its home.
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
    /// Copies home that failed, so that the device's stayed.
    uint64_t kept = 0;
  };
  const Counts &counts() const { return counts_; }

private:
  struct Entry {
    Tensor home, device;
    std::shared_ptr<const TensorDesc> there;
    OwnerId owner = 0;
    /// The device has what the home lacks.
    bool isChanged = false;
    /// Its copy home is under way; `stays`: it was asked for meanwhile.
    bool isLeaving = false, stays = false;
    /// Its last copy home failed.
    bool isKept = false;
    /// What became of the program that wrote what is on its way home.
    std::shared_ptr<Outcome> program;
  };

  void fetch(Entry &entry);
  void dropUnlessArriving(Entry &entry);
  void stay(Entry &entry);
  void copyHome(Entry &entry);
  std::optional<Error> finish(Entry &entry);
  void arrive(Entry &entry);
  void poll();
  void awaitOldest();
  uint64_t makeRoom(uint64_t wanted);

  DeviceRef device_;
  std::map<Id, Entry> entries_;
  /// Those whose copy home is under way, the oldest first; some are it no more.
  std::deque<Id> leaving_;
  std::function<void(const std::string &)> warn_;
  Counts counts_;
  bool isPlaced_ = false;
  DeviceMemory::RoomMakerHandle roomMaker_;
};

/// A copy of `tensor` in page-locked memory of the host, or in other memory of it
/// where there is none left, which counts in `unpinned`. Queued. `checksum`: is set
/// by the copy.
Tensor copyToHost(const DeviceRef &device, const Tensor &tensor, uint64_t &unpinned,
                  std::shared_ptr<TransferChecksum> checksum = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_RESIDENTTENSORS_H
