//===- SimDevice.cpp - a discrete accelerator made of threads -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Puts the parts together: memory in separate spaces (SimMemory), queues
// (SimThreads), a link per direction (SimLink). Kernels
// and library calls are those of the cpu; what is simulated is where bytes lie,
// what may run beside what, and how long the link takes.
//
//===----------------------------------------------------------------------===//

#include "SimDevice.h"
#include "KernelLaunch.h"
#include "SimLink.h"
#include "SimMemory.h"
#include "SimThreads.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Memory/L1Compactor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstring>

namespace segue::inline runtime {

namespace {
class SimDevice final : public Device {
public:
  explicit SimDevice(const SimProfile &profile)
      : profile_(profile), engine_(Threads(profile.threads)),
        toDevice_(profile.h2dBytesPerSecond, profile.latencySeconds),
        toHost_(profile.d2hBytesPerSecond, profile.latencySeconds),
        ram_(profile, [this](const Fence &fence) { return queues_->isDone(fence); }),
        queues_(std::make_unique<ThreadedQueues>()) {
    if (L1Arena *arena = ram_.l1Arena())
      compactor_.emplace(*this, *arena, ram_.l1Begin());
  }

  /// Queued work runs to its end: nobody may be left writing to memory of the
  /// host that outlives the device.
  ~SimDevice() override { queues_->finish(); }

  std::string name() const override { return profile_.name; }
  std::span<const SpaceInfo> spaces() const override { return ram_.spaces(); }
  bool hasUnifiedMemory() const override { return false; }
  bool runsInline() const override { return false; }
  int threads() const override { return engine_.threads().count(); }

  MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) override {
    return ram_.take(space, bytes, alignment, lifetime);
  }
  void giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept override {
    ram_.give(space, data, bytes, alignment, lastUse);
  }
  FreeMemory freeMemory(Space space) const override {
    return ram_.isHeap(space) ? Device::freeMemory(space) : ram_.freeMemory(space);
  }

  uint64_t takenBytes(Space space, uint64_t bytes, uint32_t) const override { return ram_.takenBytes(space, bytes); }
  L1Compactor *l1Compactor() override { return compactor_ ? &*compactor_ : nullptr; }

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override {
    return queues_->enqueue(queue, after, std::move(work));
  }
  uint64_t position(Queue queue) const override { return queues_->position(queue); }
  bool isDone(const Fence &fence) const override { return queues_->poll(fence); }
  void wait(const Fence &fence) override { queues_->wait(fence); }

  void copy(void *target, const void *source, uint64_t bytes) override;
  void relayout(const CopyPlan &plan, const void *source, void *target) override;
  Engine &engine() override { return engine_; }
  int64_t launch(KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) override {
    return launchKernel(engine_.threads(), kernel, args, range, grain, threads);
  }

  double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

private:
  SimProfile profile_;
  Engine engine_;
  SimLink toDevice_, toHost_;
  SimMemory ram_;
  std::unique_ptr<SimQueues> queues_;
  std::optional<L1Compactor> compactor_;
};
} // namespace

void SimDevice::copy(void *target, const void *source, uint64_t bytes) {
  bool fromDevice = ram_.isOnDevice(source), onDevice = ram_.isOnDevice(target);
  if (fromDevice != onDevice)
    (onDevice ? toDevice_ : toHost_).carry(target, source, bytes);
  else if (bytes)
    std::memcpy(target, source, bytes);
}

void SimDevice::relayout(const CopyPlan &plan, const void *source, void *target) {
  if (ram_.isOnDevice(source) != ram_.isOnDevice(target))
    throw Error(ErrorCode::InvalidArgument, "device \"" + profile_.name +
                                                "\": a relayout stays within one memory; copy between the host and "
                                                "the device first");
  plan.run(source, target, threads());
}

DeviceRef openSimDevice(const DeviceOptions &options) {
  SimProfile profile = SimProfile::parse(options);
  if (profile.isVirtual || profile.adversary)
    throw Error(ErrorCode::Unsupported, "device \"" + profile.name + "\": this build simulates in real time alone");
  return std::make_shared<SimDevice>(profile);
}

} // namespace segue::inline runtime
