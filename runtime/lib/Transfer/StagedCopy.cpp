//===- StagedCopy.cpp - pageable memory over the link ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StagedCopy.h"
#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

namespace segue::inline runtime {

HostCopier::~HostCopier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

uint64_t HostCopier::start(void *target, const void *source, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  // Callers keep to as many jobs as buffers; this is for one that does not.
  changed_.wait(lock, [this] { return started_ - finished_ < maxJobs; });
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error &) { // the system has no thread left: the caller's does it
      std::memcpy(target, source, bytes);
      return finished_ = ++started_;
    }
  }
  jobs_[started_ % maxJobs] = {target, source, bytes};
  ++started_;
  changed_.notify_all();
  return started_;
}

void HostCopier::wait(uint64_t job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= job; });
}

void HostCopier::waitAll() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_ == started_; });
}

void HostCopier::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return finished_ < started_ || stop_; });
    if (finished_ == started_)
      return;
    Job job = jobs_[finished_ % maxJobs];
    lock.unlock();
    std::memcpy(job.target, job.source, job.bytes);
    lock.lock();
    ++finished_;
    changed_.notify_all();
  }
}

namespace {
/// A transfer cut in chunks, the last of which may be shorter.
struct Chunks {
  uint64_t bytes, chunkBytes;
  uint64_t count() const { return (bytes + chunkBytes - 1) / chunkBytes; }
  uint64_t begin(uint64_t i) const { return i * chunkBytes; }
  uint64_t size(uint64_t i) const { return std::min(chunkBytes, bytes - begin(i)); }
};

/// The jobs of one copy, which the functions on the host share.
struct Jobs {
  /// The job that fills or empties each buffer.
  std::array<uint64_t, HostCopier::maxJobs> number{};
  uint64_t filled = 0;
};
} // namespace

void stagedToDevice(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                    HostCopier &copier, const StagingQueue &queue) {
  Chunks chunks{bytes, staging.chunkBytes};
  uint64_t count = chunks.count();
  if (count == 1) { // no neighbour: no helper
    queue.host([=, buffer = staging.buffers[0]] { std::memcpy(buffer, source, bytes); });
    return queue.link(target, staging.buffers[0], bytes);
  }
  // Chunk i is in its buffer when its job is done; the buffer is free again
  // when the link is done with it.
  auto jobs = std::make_shared<Jobs>();
  for (uint64_t i = 0; i < count; ++i) {
    queue.host([=, &copier, buffers = staging.buffers] {
      for (uint64_t size = buffers.size(); jobs->filled < std::min(count, i + size); ++jobs->filled)
        jobs->number[jobs->filled % size] = copier.start(
            buffers[jobs->filled % size], source + chunks.begin(jobs->filled), chunks.size(jobs->filled));
      copier.wait(jobs->number[i % buffers.size()]);
    });
    queue.link(target + chunks.begin(i), staging.buffers[i % staging.buffers.size()], chunks.size(i));
  }
}

void stagedToHost(std::byte *target, const std::byte *source, uint64_t bytes, const StagingBuffers &staging,
                  HostCopier &copier, const StagingQueue &queue) {
  Chunks chunks{bytes, staging.chunkBytes};
  uint64_t count = chunks.count(), buffers = staging.buffers.size();
  auto jobs = std::make_shared<Jobs>();
  for (uint64_t i = 0; i < count; ++i) {
    std::byte *buffer = staging.buffers[i % buffers];
    queue.host([=, &copier] { copier.wait(jobs->number[i % buffers]); });
    queue.link(buffer, source + chunks.begin(i), chunks.size(i));
    queue.host([=, &copier] {
      if (i + 1 < count) {
        jobs->number[i % buffers] = copier.start(target + chunks.begin(i), buffer, chunks.size(i));
        return;
      }
      std::memcpy(target + chunks.begin(i), buffer, chunks.size(i));
      copier.waitAll();
    });
  }
}

} // namespace segue::inline runtime
