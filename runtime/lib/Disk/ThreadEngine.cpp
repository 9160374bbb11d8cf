//===- ThreadEngine.cpp - operations on threads that wait for them --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SpillEngine.h"
#include "../StartThread.h"
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

namespace segue::inline runtime {

int performSpillOperation(const SpillDescriptors &descriptors, const SpillOperation &operation) {
  int descriptor = descriptors.of(operation);
  off_t offset = off_t(operation.offset);
  ssize_t result = 0;
  switch (operation.kind) {
  case SpillOperation::Kind::Read:
    result = ::pread(descriptor, operation.memory, operation.bytes, offset);
    break;
  case SpillOperation::Kind::Write:
    result = ::pwrite(descriptor, operation.memory, operation.bytes, offset);
    break;
  case SpillOperation::Kind::Settle:
    result = ::sync_file_range(descriptor, offset, operation.bytes,
                               SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    break;
  }
  return result < 0 ? -errno : int(result);
}

namespace {
class ThreadEngine : public SpillEngine {
public:
  ThreadEngine(const SpillDescriptors &descriptors, uint32_t depth);
  ~ThreadEngine() override;

  std::string_view name() const override { return "threads"; }
  uint32_t depth() const override { return depth_; }
  void begin(const SpillOperation &operation) override;
  SpillEnd waitForOne() override;

private:
  /// The most threads: more gained nothing, and each costs a stack.
  static constexpr uint32_t mostThreads = 8;

  void work();

  SpillDescriptors descriptors_;
  uint32_t depth_;
  std::mutex mutex_;
  std::condition_variable hasWork_, hasEnd_;
  std::deque<SpillOperation> waiting_;
  std::deque<SpillEnd> ended_;
  bool isStopping_ = false;
  std::vector<std::thread> threads_;
};
} // namespace

ThreadEngine::ThreadEngine(const SpillDescriptors &descriptors, uint32_t depth)
    : descriptors_(descriptors), depth_(depth) {
  // The handlers of the program run on its own threads.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr refusal;
  try {
    for (uint32_t i = 0; i < std::min(depth, mostThreads); ++i)
      threads_.push_back(startThread("read and write a spill file", [this] { work(); }));
  } catch (const Error &) { // those that were started do it all
    refusal = std::current_exception();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (threads_.empty())
    std::rethrow_exception(refusal);
}

ThreadEngine::~ThreadEngine() {
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  hasWork_.notify_all();
  for (std::thread &thread : threads_)
    thread.join();
}

void ThreadEngine::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    hasWork_.wait(lock, [&] { return isStopping_ || !waiting_.empty(); });
    if (waiting_.empty())
      return;
    SpillOperation operation = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    SpillEnd end{operation.tag, performSpillOperation(descriptors_, operation)};
    lock.lock();
    ended_.push_back(end);
    hasEnd_.notify_one();
  }
}

void ThreadEngine::begin(const SpillOperation &operation) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(operation);
  }
  hasWork_.notify_one();
}

SpillEnd ThreadEngine::waitForOne() {
  std::unique_lock lock(mutex_);
  hasEnd_.wait(lock, [&] { return !ended_.empty(); });
  SpillEnd end = ended_.front();
  ended_.pop_front();
  return end;
}

std::unique_ptr<SpillEngine> makeThreadEngine(const SpillDescriptors &descriptors, uint32_t depth) {
  return std::make_unique<ThreadEngine>(descriptors, depth);
}

} // namespace segue::inline runtime
