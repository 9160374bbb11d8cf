//===- Workspaces.h - memory beside the operands of products ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Device memory that calls of one queue use one after the other: one piece per lane, in the
// books, taken when a call first needs it and as large as the largest has needed. It is
// given back with the device: one that a larger one follows may be in use by queued work and
// by older plans.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_WORKSPACES_H
#define SEGUE_LIB_CUDA_WORKSPACES_H

#include "Streams.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <algorithm>
#include <bit>

namespace segue::inline runtime::cuda {

class Workspaces {
public:
  /// The lanes are the queues, and the stream of what is asked for outside of a body.
  static constexpr size_t laneCount = queueCount + 1, outside = queueCount;

  /// `owner` names it in the books.
  Workspaces(Streams &streams, DeviceMemory &memory, std::string owner)
      : streams_(streams), memory_(memory), owner_(std::move(owner)) {}
  /// All queued work must have ended.
  ~Workspaces();
  Workspaces(const Workspaces &) = delete;

  struct Piece {
    void *data = nullptr;
    uint64_t bytes = 0;
  };

  /// Returns the bytes that are taken for `bytes`: a power of two, so that all that a lane ever
  /// takes is less than twice the last.
  static uint64_t bytesFor(uint64_t bytes) { return bytes ? std::max(std::bit_ceil(bytes), leastBytes) : 0; }
  /// Returns the lane of the body that runs on this thread, or `outside`.
  size_t lane() const { return streams_.inBody() ? size_t(streams_.openQueue()) : outside; }
  /// Returns memory of at least `bytes` for a lane. Displaces nothing: null data if there is no room.
  Piece tryTake(size_t lane, uint64_t bytes) { return take(lane, bytes, /*makesRoom=*/false); }
  /// Takes memory for the queue that computes, makes room if it must, and throws OutOfMemory: then bytesToTake() knows
  /// of it. Not in a body.
  void takeForPlans(uint64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      if (uint64_t wanted = bytesFor(bytes); wanted > (wanted_.empty() ? 0 : wanted_.back()))
        wanted_.push_back(wanted);
    }
    take(size_t(Queue::Compute), bytes, /*makesRoom=*/true);
  }
  /// Returns the bytes that plans have wanted for the queue that computes, and not got. Another process whose plans
  /// are made in this order takes them one after the other, the smaller ones, too.
  uint64_t bytesToTake() const {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (uint64_t wanted : wanted_)
      bytes += wanted > pieces_[size_t(Queue::Compute)].bytes ? wanted : 0;
    return bytes;
  }
  bool hasSome() const {
    std::lock_guard lock(mutex_);
    return !taken_.empty();
  }
  /// Calls `use` with memory of at least `bytes` for what it gives to the stream of this thread: several calls, which
  /// nobody's come between. Throws DeviceOom, with `what` the memory is for, where there is no room.
  template <typename Use> void use(uint64_t bytes, std::string_view what, Use use) {
    size_t lane = this->lane();
    std::unique_lock<std::mutex> lock;
    if (lane == outside) // in a body, nobody else gives to the stream
      lock = std::unique_lock(outsideMutex_);
    void *memory = tryTake(lane, bytes).data;
    if (!memory)
      throw Error(ErrorCode::DeviceOom, "there is no device memory for " + std::string(what) + ", of " +
                                            std::to_string(bytes) + " bytes");
    use(static_cast<std::byte *>(memory));
  }

private:
  static constexpr uint64_t leastBytes = 64 << 10;

  Piece take(size_t lane, uint64_t bytes, bool makesRoom);

  Streams &streams_;
  DeviceMemory &memory_;
  std::string owner_;
  std::mutex outsideMutex_;
  mutable std::mutex mutex_; // guards what follows
  Piece pieces_[laneCount];
  std::vector<uint64_t> wanted_; // each greater than the one before
  std::vector<std::pair<MemoryBlock, uint64_t>> taken_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_WORKSPACES_H
