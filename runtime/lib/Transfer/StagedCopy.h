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
  /// Jobs that may wait at a time: the most staging buffers there can be.
  static constexpr size_t maxJobs = 16;

  HostCopier() = default;
  HostCopier(const HostCopier &) = delete;
  HostCopier &operator=(const HostCopier &) = delete;
  ~HostCopier();

  /// Copies soon. Does not block. Returns the number of the job.
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

/// Copies one chunk over the link; may throw.
using LinkCopy = std::function<void(void *target, const void *source, uint64_t bytes)>;

/// Each returns when all bytes are there, or throws what `link` threw; the
/// buffers are idle then. `bytes` is not 0.
void stagedToDevice(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                    HostCopier &copier, const LinkCopy &link);
void stagedToHost(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                  HostCopier &copier, const LinkCopy &link);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_TRANSFER_STAGEDCOPY_H
