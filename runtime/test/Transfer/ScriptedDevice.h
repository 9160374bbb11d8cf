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

#include "../../lib/Drivers/RunWork.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <atomic>
#include <chrono>
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
  /// Copies that succeed before those.
  std::atomic<int> copiesToPass{0};
  /// The copy that is tried next fails so many times; others succeed, whenever
  /// its tries come among theirs.
  void failNextCopy(int tries) {
    failingSource_ = nullptr;
    triesToFail_ = tries;
  }
  /// Whether the copy that failNextCopy chose has failed as often as it was to.
  bool hasFailed() const { return triesToFail_ == 0; }
  /// The next copy brings one byte that is wrong, and says nothing.
  std::atomic<bool> corruptsNextCopy{false};
  /// Lets the clock of each thread move by the copies that it makes, at this speed,
  /// by a microsecond per entry of the compute queue, and by nothing else, from now
  /// on.
  void timeCopiesAs(double bytesPerSecond) { copySpeed_ = bytesPerSecond; }
  /// Lets the clock of each thread move by so much whenever it waits for the device,
  /// and by nothing else, from now on.
  void timeWaitsAs(double seconds) { waitSeconds_ = seconds; }
  /// Copies tried, and the greatest size of one.
  std::atomic<int> copies{0};
  std::atomic<uint64_t> largestCopy{0};
  std::atomic<bool> noPinned{false};
  /// The host has no memory left.
  std::atomic<bool> noHost{false};
  /// No memory is one to compute on.
  std::atomic<bool> computesNowhere{false};

  /// Work of all queues waits from now on until resume(), or until the host waits
  /// if it `resumesWhenWaited`.
  void pause(bool resumesWhenWaited = false) {
    resumesWhenWaited_ = resumesWhenWaited;
    stop(/*onlyCopiesIn=*/false);
  }
  /// Copies to the device wait from now on until the host waits for one of them, or
  /// until resume() only.
  void pauseCopiesIn(bool resumesWhenWaited = true) {
    resumesWhenWaited_ = false;
    copiesResumeWhenWaited_ = resumesWhenWaited;
    stop(/*onlyCopiesIn=*/true);
  }
  /// Blocks until the compute queue, since pauseCopiesIn(), has come to a reader of a
  /// copy; false after so many seconds without one.
  bool awaitNeed(int seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] { return needs_ > 0; });
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
  bool computesOn(const void *address) const override { return !computesNowhere && inner_->computesOn(address); }
  int threads() const override { return inner_->threads(); }
  segue::MemoryBlock takeMemory(segue::Space space, uint64_t bytes, uint32_t alignment,
                                segue::Lifetime lifetime) override {
    if ((space == segue::Space::HostPinned && noPinned) || (space == segue::Space::Host && noHost))
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
    work.mayBegin = [this, queue, mayBegin = std::move(work.mayBegin)] {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !paused_ || (onlyCopiesIn_ && queue != segue::Queue::HostToDevice); });
      }
      if (copySpeed_ > 0 && queue == segue::Queue::Compute)
        ownSeconds() += 1e-6;
      return !mayBegin || mayBegin();
    };
    if (queue == segue::Queue::Compute && work.label == "need")
      work.run = [this, run = std::move(work.run)] {
        run();
        {
          std::lock_guard lock(mutex_);
          ++needs_;
        }
        changed_.notify_all();
      };
    return inner_->enqueue(queue, after, std::move(work));
  }
  uint64_t position(segue::Queue queue) const override { return inner_->position(queue); }
  bool isDone(const segue::Fence &fence) const override { return inner_->isDone(fence); }
  void wait(const segue::Fence &fence) override {
    constexpr double longEnough = 0.05; // for what does not wait for a copy
    if (resumesWhenWaited_ || (onlyCopiesIn_ && copiesResumeWhenWaited_ && !inner_->waitFor(fence, longEnough)))
      resume();
    inner_->wait(fence);
    if (waitSeconds_ > 0)
      ownSeconds() += waitSeconds_;
  }
  bool waitFor(const segue::Fence &fence, double seconds) override { return inner_->waitFor(fence, seconds); }
  void copy(void *target, const void *source, uint64_t bytes, segue::CopyTries *tries) override {
    segue::copyWithTries(tries, [&] { copyOnce(target, source, bytes); });
  }
  void copyOnce(void *target, const void *source, uint64_t bytes) {
    ++copies;
    if (bytes > largestCopy)
      largestCopy = bytes;
    if (copiesToFail > 0 && copiesToPass > 0) {
      --copiesToPass;
    } else if (copiesToFail > 0) {
      --copiesToFail;
      cutLink();
    }
    if (const void *none = nullptr; triesToFail_ > 0) {
      failingSource_.compare_exchange_strong(none, source);
      if (failingSource_ == source) {
        --triesToFail_;
        cutLink();
      }
    }
    inner_->copy(target, source, bytes);
    if (copySpeed_ > 0)
      ownSeconds() += double(bytes) / copySpeed_;
    corrupt(target);
  }
  void relayout(const segue::CopyPlan &plan, const void *source, void *target) override {
    inner_->relayout(plan, source, target);
    corrupt(target); // so copies are made where all memory is one
  }
  segue::Engine &engine() override { return inner_->engine(); }
  void launch(const segue::Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain,
              int threads) override {
    inner_->launch(kernel, args, range, grain, threads);
  }
  void call(std::function<void()> function) override { inner_->call(std::move(function)); }
  void stamp(const segue::TimestampRef &stamp) override {
    inner_->call([this, stamp] { stamp->set(seconds()); });
  }
  segue::KernelRef makeKernel(const segue::KernelSource &source) override { return inner_->makeKernel(source); }
  double seconds() const override { return copySpeed_ > 0 || waitSeconds_ > 0 ? ownSeconds() : inner_->seconds(); }

private:
  void stop(bool onlyCopiesIn) {
    std::lock_guard lock(mutex_);
    onlyCopiesIn_ = onlyCopiesIn;
    paused_ = true;
    needs_ = 0;
  }
  static double &ownSeconds() {
    static thread_local double seconds = 0;
    return seconds;
  }
  [[noreturn]] static void cutLink() {
    throw segue::Error(segue::ErrorCode::TransferFailed, "the test cut the link");
  }

  void corrupt(void *target) {
    if (corruptsNextCopy.exchange(false))
      *static_cast<unsigned char *>(target) ^= 1;
  }

  segue::DeviceRef inner_;
  std::atomic<const void *> failingSource_{nullptr};
  std::atomic<int> triesToFail_{0};
  std::atomic<double> copySpeed_{0}, waitSeconds_{0};
  std::atomic<bool> resumesWhenWaited_{false}, onlyCopiesIn_{false}, copiesResumeWhenWaited_{true};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false;
  int needs_ = 0;
};

#endif // SEGUE_RUNTIME_TEST_TRANSFER_SCRIPTEDDEVICE_H
