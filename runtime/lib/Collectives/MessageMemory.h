//===- MessageMemory.h - memory of messages under way -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Messages lie in the host's memory until they have arrived, and a host that submits a
// whole backward ahead would have all gradients of a step there. So they share a bounded
// part of it: where it is full, a message gets the memory of an older one, and its first
// copy waits for the end of that one on the device's queues; the host does not. Which
// message lies where is settled by their sizes alone and not by when they arrive, so that
// a twin in virtual time takes as much as the device.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_COLLECTIVES_MESSAGEMEMORY_H
#define SEGUE_LIB_COLLECTIVES_MESSAGEMEMORY_H

#include "segue/runtime/Tensor/Storage.h"
#include <deque>
#include <span>

namespace segue::inline runtime {

/// The thread that submits to the device calls this.
class MessageMemory {
public:
  /// Messages, and the tensors in them, begin at multiples of this.
  static constexpr uint32_t alignment = 64;

  /// `mostBytes`: what is held at most, but for a message that is larger; that one has no other beside it.
  MessageMemory(DeviceRef device, uint64_t mostBytes) : device_(std::move(device)), mostBytes_(mostBytes) {}

  /// Takes memory for a message, page-locked where there is some. Whoever writes it waits for its uses(). Blocks for
  /// the end of older messages only in memory that the system manages, and if none of them is large enough.
  std::shared_ptr<Storage> take(uint64_t bytes);
  /// Notes that all work on the memory of a message has been queued.
  void given(const std::shared_ptr<Storage> &storage);
  /// Gives everything back, in the order of the queues.
  void clear();

  uint64_t mostBytes() const { return mostBytes_; }
  /// Returns what messages of these sizes hold at most, if nothing is given back in between.
  uint64_t mostFor(std::span<const uint64_t> messages) const;
  /// Returns the most bytes that were held at once.
  uint64_t peakBytes() const { return peakBytes_; }

private:
  struct Run {
    std::shared_ptr<Storage> storage;
    /// False while work on it is still to be queued.
    bool isGiven = false;
  };
  std::shared_ptr<Storage> allocate(uint64_t bytes);
  void setHeld(uint64_t bytes);
  bool fits(uint64_t bytes) const { return heldBytes_ + bytes <= mostBytes_; }

  DeviceRef device_;
  uint64_t mostBytes_, heldBytes_ = 0, peakBytes_ = 0;
  /// The oldest message comes first.
  std::deque<Run> runs_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_COLLECTIVES_MESSAGEMEMORY_H
