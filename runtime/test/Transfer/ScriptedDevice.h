//===- ScriptedDevice.h - a device that fails when told to ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A `sim` whose copies fail and whose memory runs out at the word of a test,
// and whose queues stand still while the test looks on.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_TRANSFER_SCRIPTEDDEVICE_H
#define SEGUE_RUNTIME_TEST_TRANSFER_SCRIPTEDDEVICE_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <atomic>
#include <condition_variable>
#include <mutex>

class ScriptedDevice final : public segue::Device {
public:
  explicit ScriptedDevice(std::string_view spec) : inner_(segue::Device::open(spec)) {}
  ~ScriptedDevice() override {
    resume();
    inner_->drain(); // queued work refers to this
  }

  // The script.

  /// Copies to fail from now on, each counted down; of any direction.
  std::atomic<int> copiesToFail{0};
  /// Copies tried, and the greatest size of one.
  std::atomic<int> copies{0};
  std::atomic<uint64_t> largestCopy{0};
  std::atomic<bool> noPinned{false};

  /// Work of all queues waits from now on until resume().
  void pause() {
    std::lock_guard lock(mutex_);
    paused_ = true;
  }
  void resume() {
    {
      std::lock_guard lock(mutex_);
      paused_ = false;
    }
    changed_.notify_all();
  }

  // The device.

  std::string name() const override { return inner_->name(); }
  std::span<const segue::SpaceInfo> spaces() const override { return inner_->spaces(); }
  bool hasUnifiedMemory() const override { return inner_->hasUnifiedMemory(); }
  bool runsInline() const override { return inner_->runsInline(); }
  int threads() const override { return inner_->threads(); }
  segue::MemoryBlock takeMemory(segue::Space space, uint64_t bytes, uint32_t alignment,
                                segue::Lifetime lifetime) override {
    if (space == segue::Space::HostPinned && noPinned)
      return {};
    return inner_->takeMemory(space, bytes, alignment, lifetime);
  }
  void giveMemory(segue::Space space, void *data, uint64_t bytes, uint32_t alignment,
                  const segue::Fence &lastUse) noexcept override {
    inner_->giveMemory(space, data, bytes, alignment, lastUse);
  }
  uint64_t takenBytes(segue::Space space, uint64_t bytes, uint32_t alignment) const override {
    return inner_->takenBytes(space, bytes, alignment);
  }
  segue::FreeMemory freeMemory(segue::Space space) const override { return inner_->freeMemory(space); }
  uint64_t enqueue(segue::Queue queue, const segue::Fence &after, segue::Work work) override {
    work.run = [this, run = std::move(work.run)] {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !paused_; });
      }
      run();
    };
    return inner_->enqueue(queue, after, std::move(work));
  }
  uint64_t position(segue::Queue queue) const override { return inner_->position(queue); }
  bool isDone(const segue::Fence &fence) const override { return inner_->isDone(fence); }
  void wait(const segue::Fence &fence) override { inner_->wait(fence); }
  bool waitFor(const segue::Fence &fence, double seconds) override { return inner_->waitFor(fence, seconds); }
  void copy(void *target, const void *source, uint64_t bytes) override {
    ++copies;
    if (bytes > largestCopy)
      largestCopy = bytes;
    if (copiesToFail > 0) {
      --copiesToFail;
      throw segue::Error(segue::ErrorCode::TransferFailed, "the test cut the link");
    }
    inner_->copy(target, source, bytes);
  }
  void relayout(const segue::CopyPlan &plan, const void *source, void *target) override {
    inner_->relayout(plan, source, target);
  }
  segue::Engine &engine() override { return inner_->engine(); }
  int64_t launch(segue::KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) override {
    return inner_->launch(kernel, args, range, grain, threads);
  }
  double seconds() const override { return inner_->seconds(); }

private:
  segue::DeviceRef inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false;
};

#endif // SEGUE_RUNTIME_TEST_TRANSFER_SCRIPTEDDEVICE_H
