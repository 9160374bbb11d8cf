//===- L1Compactor.h - moves tensors together in L1 -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Addresses in L1 are dynamic: when an allocation finds no free range that is
// long enough, live storages are moved by copies on the compute queue, behind
// all queued work that touches them, and get their new addresses at once.
// Whoever captured an address has queued the work that needs it before; whoever
// asks later gets the new one. Copies onto occupied places bounce through DRAM.
//
// Belongs to a device with an L1 arena. Storages enter and leave on any thread;
// compaction runs on the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_L1COMPACTOR_H
#define SEGUE_RUNTIME_MEMORY_L1COMPACTOR_H

#include "segue/runtime/Memory/L1Arena.h"
#include <map>
#include <mutex>

namespace segue::inline runtime {

class Storage;

class L1Compactor {
public:
  /// `base` is the address of offset 0.
  L1Compactor(Device &device, L1Arena &arena, std::byte *base);
  L1Compactor(const L1Compactor &) = delete;
  L1Compactor &operator=(const L1Compactor &) = delete;

  /// Held while a storage takes its memory and enters, or leaves and gives
  /// it back.
  std::recursive_mutex &mutex() { return mutex_; }
  void enter(Storage &storage);
  /// Before its memory is given back.
  void leave(Storage &storage);

  /// Makes a free range of `bytes`. False if no order of the storages has one,
  /// or a bounce is needed and forbidden or finds no DRAM.
  bool makeRoom(uint64_t bytes, uint64_t alignment);

  /// Config `l1_bounce`.
  void setBounceAllowed(bool allowed) { bounceAllowed_ = allowed; }

  /// Telemetry: calls that moved something, bounced moves, and bytes moved.
  uint64_t compactions() const { return compactions_; }
  uint64_t bounces() const { return bounces_; }
  uint64_t movedBytes() const { return movedBytes_; }

private:
  Device &device_;
  L1Arena &arena_;
  std::byte *base_;
  std::recursive_mutex mutex_;
  std::map<uint64_t, Storage *> storages_;
  bool bounceAllowed_ = true;
  uint64_t compactions_ = 0, bounces_ = 0, movedBytes_ = 0;
  DeviceMemory::RoomMakerHandle roomMaker_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_L1COMPACTOR_H
