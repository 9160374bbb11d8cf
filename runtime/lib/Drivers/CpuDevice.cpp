//===- CpuDevice.cpp - this machine's processors --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Memory is unified: host, host_pinned and device_dram are one heap. Launches
// run on the threads that all devices share (Engine/Threads.h).
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"
#include "../Memory/CachingAllocator.h"
#include "DeviceProfile.h"
#include "DiskDevice.h"
#include "HostEngine.h"
#include "HostKernels.h"
#include "KernelLaunch.h"
#include "RunWork.h"
#include "SimThreads.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <unistd.h>
#include <vector>

namespace segue::inline runtime {

namespace {
class CpuDevice final : public Device {
public:
  CpuDevice(int threads, uint64_t dramBytes, std::string name) : engine_(Threads(threads)), name_(std::move(name)) {
    uint64_t capacity = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
    spaces_[0] = {Space::Host, capacity};
    spaces_[1] = {Space::HostPinned, capacity};
    spaces_[2] = {Space::DeviceDram, dramBytes ? dramBytes : capacity};
  }
  ~CpuDevice() override {
    network_.finish();
    giveEnded();
  }

  std::string name() const override { return name_; }
  std::span<const SpaceInfo> spaces() const override { return spaces_; }
  bool hasUnifiedMemory() const override { return true; }
  int threads() const override { return engine_.threads().count(); }

  bool runsInline() const override { return true; }
  MemoryBlock takeMemory(Space, uint64_t bytes, uint32_t alignment, Lifetime) override {
    giveEnded();
    return {raw_.allocate(bytes, alignment), {}};
  }
  void giveMemory(Space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept override {
    if (isDone(lastUse))
      return raw_.free(data, bytes, alignment);
    std::lock_guard lock(givenMutex_);
    given_.push_back({data, bytes, alignment, lastUse});
    hasGiven_.store(true, std::memory_order_release);
  }

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override {
    if (queue == Queue::Network) // all else is done when it has been enqueued
      return network_.enqueue(queue, Fence(queue, after[queue]), std::move(work));
    wait(after);
    uint64_t position = positions_[uint8_t(queue)].fetch_add(1, std::memory_order_relaxed) + 1;
    runWork(work);
    return position;
  }
  uint64_t position(Queue queue) const override {
    return queue == Queue::Network ? network_.position(queue)
                                   : positions_[uint8_t(queue)].load(std::memory_order_relaxed);
  }
  bool isDone(const Fence &fence) const override {
    return !fence[Queue::Network] || network_.isDone(Fence(Queue::Network, fence[Queue::Network]));
  }
  void wait(const Fence &fence) override {
    if (fence[Queue::Network])
      network_.wait(Fence(Queue::Network, fence[Queue::Network]));
  }

  void copy(void *target, const void *source, uint64_t bytes, CopyTries *tries) override {
    if (tries)
      tries->trying();
    if (bytes)
      std::memcpy(target, source, bytes);
  }

  void relayout(const CopyPlan &plan, const void *source, void *target) override {
    relayoutHere(plan, source, target, threads());
  }

  Engine &engine() override { return engine_; }

  void launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) override {
    launchKernel(engine_.threads(), kernel, args, range, grain, threads);
  }
  void call(std::function<void()> function) override { function(); }
  void stamp(const TimestampRef &stamp) override { stamp->set(seconds()); }
  KernelRef makeKernel(const KernelSource &source) override { return makeHostKernel(source); }

  double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

private:
  /// Memory that was given back while it was on its way to other ranks.
  struct Given {
    void *data;
    uint64_t bytes;
    uint32_t alignment;
    Fence lastUse;
  };
  /// Gives memory of `given_` back that nobody uses any more.
  void giveEnded() {
    if (!hasGiven_.load(std::memory_order_acquire))
      return;
    std::lock_guard lock(givenMutex_);
    std::erase_if(given_, [this](const Given &each) {
      bool hasEnded = isDone(each.lastUse);
      if (hasEnded)
        raw_.free(each.data, each.bytes, each.alignment);
      return hasEnded;
    });
    hasGiven_.store(!given_.empty(), std::memory_order_release);
  }

  CachingAllocator raw_;
  std::mutex givenMutex_;
  std::vector<Given> given_;
  std::atomic<bool> hasGiven_{false};
  std::atomic<uint64_t> positions_[queueCount]{};
  HostEngine engine_;
  std::string name_;
  SpaceInfo spaces_[3];
  /// The thread of Queue::Network, on which ranks wait for each other beside what the caller computes. The other queues
  /// of it are never used.
  ThreadedQueues network_{ThreadedQueues::Starts::NoThread};
};
} // namespace

DeviceRef openCpuDevice(const DeviceOptions &options) {
  options.requireKnown(cpuKeys);
  if (options.has("disk"))
    return openDiskDevice(options);
  if (options.has("pinned"))
    options.fail("option \"pinned\" needs disk=: without one, all memory is the device's");
  if (options.has("profile")) // for limits of commands alone: refused now rather than after the run
    readDeviceProfile("cpu", options.text("profile", ""));
  return std::make_shared<CpuDevice>(int(options.integer("threads", 0, 1, 1024)), options.bytes("dram", 0),
                                     options.spec());
}

} // namespace segue::inline runtime
