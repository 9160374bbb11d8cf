//===- Fence.h - points in the work of a device's queues --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A device has a queue for computing, one for each direction of the link, and one for
// each direction of a disk that lies below the host's memory. Work of one queue runs in
// its order; the queues run beside each other. A queue counts its work: position n is done when the
// first n entries are. A fence is one position per queue, so that "after all
// of this" is a maximum per queue and costs no object: storages keep the fence
// of their last write and of their last reads, a freed block the fence of its
// last use, and a new entry of a queue waits for the fences of what it touches.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_FENCE_H
#define SEGUE_RUNTIME_FENCE_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace segue::inline runtime {

/// Network is for what ranks send each other: calls of the host that block until the others have answered.
enum class Queue : uint8_t { Compute = 0, HostToDevice = 1, DeviceToHost = 2, DiskRead = 3, DiskWrite = 4, Network = 5 };
inline constexpr size_t queueCount = 6;
inline constexpr Queue allQueues[] = {Queue::Compute, Queue::HostToDevice, Queue::DeviceToHost, Queue::DiskRead,
                                      Queue::DiskWrite, Queue::Network};

constexpr bool isOfDisk(Queue queue) { return queue == Queue::DiskRead || queue == Queue::DiskWrite; }

/// Returns true for the queues that are used wherever there is a link.
constexpr bool isUsual(Queue queue) { return queue <= Queue::DeviceToHost; }

/// "compute", "h2d", "d2h", "disk_read", "disk_write", "network".
constexpr std::string_view name(Queue queue) {
  constexpr std::string_view names[] = {"compute", "h2d", "d2h", "disk_read", "disk_write", "network"};
  return names[uint8_t(queue)];
}

struct Fence {
  /// The number of entries of each queue that must be done. With 0 there is nothing to wait for.
  std::array<uint64_t, queueCount> at{};

  Fence() = default;
  Fence(Queue queue, uint64_t position) { at[uint8_t(queue)] = position; }

  bool empty() const { return (at[0] | at[1] | at[2] | at[3] | at[4] | at[5]) == 0; }
  uint64_t operator[](Queue queue) const { return at[uint8_t(queue)]; }

  /// Makes this fence wait for `other` too.
  void join(const Fence &other) {
    for (size_t i = 0; i < queueCount; ++i)
      at[i] = std::max(at[i], other.at[i]);
  }
  bool operator==(const Fence &) const = default;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_FENCE_H
