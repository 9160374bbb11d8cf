//===- GpuDisk.h - a disk below the host's memory of a GPU ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The space `disk` of `cuda:N,...,disk=FOLDER`: addresses in the mapping of a SpillFile, and
// calls that read and write it in the order of a queue.
//
// The driver has one thread for the host functions of all streams, which a read of a disk
// would hold for milliseconds, and the writes beside it. So each queue of the disk has a
// thread here. It waits for an event in the stream, and the stream for a word in page-locked
// memory, which the thread writes when the call has ended. To everybody else that is a stream
// as any other.
//
// What is called on other queues, or outside of a body, runs as host functions do.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_GPUDISK_H
#define SEGUE_LIB_CUDA_GPUDISK_H

#include "../Drivers/DiskSpace.h"
#include "../Memory/BestFitArena.h"
#include "Streams.h"

namespace segue::inline runtime::cuda {

class GpuDisk {
public:
  /// Reserves the file. Throws what SpillFile::open throws, and DeviceOom without page-locked memory.
  GpuDisk(const Context &context, Streams &streams, const DiskOptions &options);
  /// Ends the threads; all work must have ended.
  ~GpuDisk();
  GpuDisk(const GpuDisk &) = delete;
  GpuDisk &operator=(const GpuDisk &) = delete;

  const DiskSpace &space() const { return space_; }
  const LinkSpeed &speed() const { return speed_; }

  /// Take and give whole blocks of the file. Any thread.
  MemoryBlock take(uint64_t bytes, uint64_t alignment);
  void give(void *data, uint64_t bytes, const Fence &lastUse) noexcept;
  FreeMemory freeMemory() const;

  /// Calls `function`, which reads or writes the file, in the order of the queue; at once outside of a body.
  void call(std::function<void()> function);

private:
  class Call;
  /// The thread of a queue.
  struct Lane {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Call *> calls;
    bool isEnding = false;
    /// In page-locked memory: the number of calls that have ended, of those that were given.
    uint32_t *ended = nullptr;
    uint32_t given = 0;
    std::thread thread;
  };
  void work(Lane &lane);
  /// Ends the threads behind their calls, and gives back what they count in.
  void end() noexcept;

  const Context &context_;
  Streams &streams_;
  /// Of the turns of calls.
  EventPool begins_;
  DiskSpace space_;
  LinkSpeed speed_;
  mutable std::mutex mutex_;
  BestFitArena arena_;
  Lane reads_, writes_;
  uint32_t *words_ = nullptr;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_GPUDISK_H
