//===- GpuDisk.cpp - a disk below the host's memory of a GPU --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GpuDisk.h"
#include "../StartThread.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <chrono>

namespace segue::inline runtime::cuda {

/// Words that two threads write do not share a cache line.
static constexpr size_t wordsPerLine = 16;

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// A call of a lane, for which the stream waits once it has come there.
class GpuDisk::Call final : public Given {
public:
  Call(const Context &context, Lane &lane, EventRef begin, std::function<void()> function)
      : context_(context), lane_(lane), begin_(std::move(begin)), function_(std::move(function)) {}

  /// Runs on the thread of the lane.
  void run(uint32_t number) {
    if (waitForTurn())
      try {
        function_();
      } catch (...) {
        error_ = std::current_exception();
      }
    // Whoever settles may destroy this; the stream goes on with the word.
    uint32_t *ended = lane_.ended;
    isDone_.store(true, std::memory_order_release);
    std::atomic_ref(*ended).store(number, std::memory_order_release);
  }

  void settle() override {
    waitForEnd();
    if (error_)
      std::rethrow_exception(error_);
  }
  void abandon(std::unique_ptr<Given>) noexcept override { waitForEnd(); } // a disk always answers

private:
  /// Returns false if the device is lost.
  bool waitForTurn() {
    while (!context_.isLost()) {
      if (context_.succeeded(context_.api().eventSynchronize(begin_.get()), "cuEventSynchronize"))
        return true;
      // A call that failed for another reason has not waited.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
  void waitForEnd() {
    while (!isDone_.load(std::memory_order_acquire))
      std::this_thread::yield(); // the stream has come past it, or is lost
  }

  const Context &context_;
  Lane &lane_;
  EventRef begin_;
  std::function<void()> function_;
  std::exception_ptr error_;
  std::atomic<bool> isDone_{false};
};

void GpuDisk::work(Lane &lane) {
  isInHostFunction() = true; // what runs here may ask for nothing of the device
  context_.use();
  std::unique_lock lock(lane.mutex);
  for (uint32_t number = 1;; ++number) {
    lane.changed.wait(lock, [&] { return lane.isEnding || !lane.calls.empty(); });
    if (lane.calls.empty())
      return;
    Call *call = lane.calls.front();
    lane.calls.pop_front();
    lock.unlock();
    call->run(number);
    lock.lock();
  }
}

void GpuDisk::call(std::function<void()> function) {
  if (!streams_.inBody() || !isOfDisk(streams_.openQueue()))
    return streams_.call(std::move(function));
  context_.throwIfLost();
  Lane &lane = streams_.openQueue() == Queue::DiskRead ? reads_ : writes_;
  EventRef begin = begins_.take();
  auto call = std::make_unique<Call>(context_, lane, begin, std::move(function));
  streams_.give([&](CUstream stream) {
    context_.check(context_.api().eventRecord(begin.get(), stream), "cuEventRecord");
    context_.check(context_.api().streamWaitValue(stream, reinterpret_cast<CUdeviceptr>(lane.ended), lane.given + 1,
                                                  waitValueGreaterEqual),
                   "cuStreamWaitValue32");
    ++lane.given;
    {
      std::lock_guard lock(lane.mutex);
      lane.calls.push_back(call.get());
      lane.changed.notify_one();
    }
    streams_.keep(std::move(call));
  });
}

//===----------------------------------------------------------------------===//
// The space
//===----------------------------------------------------------------------===//

GpuDisk::GpuDisk(const Context &context, Streams &streams, const DiskOptions &options)
    : context_(context), streams_(streams), begins_(context, eventNoTiming | eventBlockingSync), space_(options),
      speed_(options.speed),
      arena_(space_.file().capacity(), reinterpret_cast<uintptr_t>(space_.file().data())) {
  context_.use();
  void *words = nullptr;
  context_.check(context_.api().hostAlloc(&words, 2 * wordsPerLine * sizeof(uint32_t), 0), "cuMemHostAlloc",
                 ErrorCode::DeviceOom);
  words_ = static_cast<uint32_t *>(words);
  std::fill_n(words_, 2 * wordsPerLine, 0u);
  reads_.ended = words_;
  writes_.ended = words_ + wordsPerLine;
  try {
    for (Lane *lane : {&reads_, &writes_})
      lane->thread = startThread("read and write below the host of a GPU", [this, lane] { work(*lane); });
  } catch (...) {
    end();
    throw;
  }
}

GpuDisk::~GpuDisk() { end(); }

void GpuDisk::end() noexcept {
  for (Lane *lane : {&reads_, &writes_}) {
    if (!lane->thread.joinable()) // it could not be started
      continue;
    {
      std::lock_guard lock(lane->mutex);
      lane->isEnding = true;
      lane->changed.notify_one();
    }
    lane->thread.join();
  }
  context_.use();
  (void)context_.succeeded(context_.api().hostFree(words_), "cuMemFreeHost");
}

MemoryBlock GpuDisk::take(uint64_t bytes, uint64_t alignment) {
  std::lock_guard lock(mutex_);
  auto found = arena_.take(SpillFile::inBlocks(bytes), std::max(alignment, SpillFile::block));
  if (!found)
    return {};
  std::byte *data = space_.file().data() + found->offset;
  if (bytes == 0) // lies anywhere that is aligned
    data += -reinterpret_cast<uintptr_t>(data) & (alignment - 1);
  return {data, found->after};
}

void GpuDisk::give(void *data, uint64_t bytes, const Fence &lastUse) noexcept {
  if (!bytes)
    return;
  std::lock_guard lock(mutex_);
  arena_.give(space_.offsetOf(data), SpillFile::inBlocks(bytes), lastUse);
}

FreeMemory GpuDisk::freeMemory() const {
  std::lock_guard lock(mutex_);
  return arena_.freeMemory();
}

} // namespace segue::inline runtime::cuda
