//===- L1Compactor.h - moves tensors together in L1 -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// If an allocation in L1 finds no free range that is long enough, the fewest
// bytes move to other places. Copies onto occupied places bounce through DRAM.
//
// Belongs to a device with an L1 arena.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_L1COMPACTOR_H
#define SEGUE_RUNTIME_TENSOR_L1COMPACTOR_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Memory/L1Arena.h"
#include "segue/runtime/Tensor/Compactor.h"

namespace segue::inline runtime {

class Device;

class L1Compactor final : public Compactor {
public:
  /// Makes the compactor of `arena`. `base` is the address of offset 0.
  L1Compactor(Device &device, L1Arena &arena, std::byte *base);

  /// Makes a free range of `bytes`. Returns false if no order of the storages has one, or
  /// if a bounce is needed and is forbidden or finds no DRAM.
  bool makeRoom(uint64_t bytes, uint64_t alignment);

  /// Sets the config key `l1_bounce`.
  void setBounceAllowed(bool allowed) { bounceAllowed_ = allowed; }

  /// Return figures for telemetry: calls that moved something, bounced moves, bytes moved,
  /// and bytes copied for that, those of bounced moves twice.
  uint64_t compactions() const { return compactions_; }
  uint64_t bounces() const { return bounces_; }
  uint64_t movedBytes() const { return movedBytes_; }
  uint64_t copiedBytes() const { return copiedBytes_; }

private:
  Device &device_;
  L1Arena &arena_;
  std::byte *base_;
  bool bounceAllowed_ = true;
  uint64_t compactions_ = 0, bounces_ = 0, movedBytes_ = 0, copiedBytes_ = 0;
  DeviceMemory::RoomMakerHandle roomMaker_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_L1COMPACTOR_H
