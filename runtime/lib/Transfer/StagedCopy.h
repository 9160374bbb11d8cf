//===- StagedCopy.h - pageable memory over the link -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The link reaches pinned memory only. Pageable memory crosses it in chunks
// through a few pinned buffers: while one chunk is on the link, a helper thread
// copies its neighbours between pageable and pinned memory, as many as there
// are buffers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TRANSFER_STAGEDCOPY_H
#define SEGUE_LIB_TRANSFER_STAGEDCOPY_H

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

namespace segue::inline runtime {

/// A thread that copies memory for one other thread, in order. It is made with
/// the first job.
class HostCopier {
public:
  /// The number of jobs that may wait at a time: the most staging buffers there can be.
  static constexpr size_t maxJobs = 16;

  HostCopier() = default;
  HostCopier(const HostCopier &) = delete;
  HostCopier &operator=(const HostCopier &) = delete;
  ~HostCopier();

  /// Begins to copy. Does not block. Returns the number of the job.
  uint64_t start(void *target, const void *source, uint64_t bytes);
  /// Blocks until that job and those before it are done.
  void wait(uint64_t job);
  void waitAll();

private:
  void work();

  struct Job {
    void *target;
    const void *source;
    uint64_t bytes;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::array<Job, maxJobs> jobs_{};
  uint64_t started_ = 0, finished_ = 0;
  bool stop_ = false;
};

/// Pinned buffers of `chunkBytes` each; at most HostCopier::maxJobs.
struct StagingBuffers {
  std::span<std::byte *const> buffers;
  uint64_t chunkBytes = 0;
};

/// The operations that a staged copy asks of a queue, which does them in the order asked: at once or later.
struct StagingQueue {
  /// Copies one chunk over the link.
  std::function<void(void *target, const void *source, uint64_t bytes)> link;
  /// Runs a function on the host.
  std::function<void(std::function<void()>)> host;
};

/// Each asks for all that brings the bytes; when that is done, they are there and the
/// buffers idle. If something fails in between, the rest may be left out, and
/// HostCopier::waitAll has to be called before anything else uses the buffers. Buffers and
/// copier stay until then. `bytes` is not 0.
void stagedToDevice(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                    HostCopier &copier, const StagingQueue &queue);
void stagedToHost(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                  HostCopier &copier, const StagingQueue &queue);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_TRANSFER_STAGEDCOPY_H
