//===- SimDevice.cpp - a discrete accelerator made of threads -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Puts the parts together: memory in separate spaces (SimMemory), queues with
// threads (SimThreads), in the hands of an adversary (SimAdversary, SimFaults)
// or in virtual time (SimVirtualTime), a link per direction (SimLink), and a disk that is
// one (DiskSpace). Kernels
// and library calls are those of the cpu; what is simulated is where bytes lie,
// what may run beside what, and how long the link takes.
//
//===----------------------------------------------------------------------===//

#include "SimDevice.h"
#include "ArenaDevice.h"
#include "DiskSpace.h"
#include "HostEngine.h"
#include "HostKernels.h"
#include "KernelLaunch.h"
#include "LentRanges.h"
#include "RunWork.h"
#include "SimAdversary.h"
#include "SimFaults.h"
#include "SimLink.h"
#include "SimMemory.h"
#include "SimStreams.h"
#include "SimThreads.h"
#include "SimVirtualTime.h"
#include "VirtualClock.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include "segue/runtime/Tensor/L1Compactor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <cstring>
#include <filesystem>

namespace segue::inline runtime {

namespace {
class SimDevice final : public ArenaDevice, public VirtualClock {
public:
  /// `disk`: the file of the profile's disk, whose mapping and capacity the profile has; null without one.
  SimDevice(const SimProfile &profile, std::unique_ptr<const DiskSpace> disk);

  /// Runs queued work to its end: nobody may be left writing to memory of the host that
  /// outlives the device.
  ~SimDevice() override { queues_->finish(); }

  std::string name() const override { return profile_.name; }
  bool hasBytes() const override { return !clock_; }
  std::optional<std::string> twin() const override { return disk_ ? diskTier()->twin() : profile_.twin; }
  std::optional<LinkSpeed> link() const override {
    return LinkSpeed{profile_.h2dBytesPerSecond, profile_.d2hBytesPerSecond, profile_.latencySeconds};
  }
  std::optional<LinkSpeed> diskLink() const override { return profile_.diskLink; }
  int threads() const override { return engine_.threads().count(); }

  bool computesOn(const void *address) const override { return isOnDevice(address); }
  /// The twin of a GPU computes on what stands for memory of others there, and looks at none of it.
  void lendMemory(const void *data, uint64_t bytes) override {
    if (!clock_)
      return Device::lendMemory(data, bytes);
    lent_.lend(data, bytes);
  }
  void takeBackMemory(const void *data, uint64_t bytes) noexcept override { lent_.takeBack(data, bytes); }

  MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) override {
    if (faults_ && space != Space::Host && faults_->allocationFails(space))
      return {};
    return ArenaDevice::takeMemory(space, bytes, alignment, lifetime);
  }
  MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) override {
    if (faults_ && faults_->allocationFails(space))
      return {};
    return ArenaDevice::takeReserved(space, bytes, alignment, offset);
  }
  DramCompactor *dramCompactor() override { return &*dramCompactor_; }
  L1Compactor *l1Compactor() override { return l1Compactor_ ? &*l1Compactor_ : nullptr; }

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override {
    if (faults_)
      faults_->moveBudget(memory());
    return queues_->enqueue(queue, after, profile_.streams ? recordBody(std::move(work)) : std::move(work));
  }
  uint64_t position(Queue queue) const override { return queues_->position(queue); }
  bool isDone(const Fence &fence) const override { return queues_->poll(fence); }
  bool wasDone(const Fence &fence) const override { return queues_->isDone(fence); }
  void wait(const Fence &fence) override { queues_->wait(fence); }
  bool waitFor(const Fence &fence, double seconds) override {
    return std::isfinite(seconds) && faults_ && faults_->timeRunsOut() ? isDone(fence) : queues_->waitFor(fence, seconds);
  }

  void copy(void *target, const void *source, uint64_t bytes, CopyTries *tries) override {
    giveToStream([=, this] { copyWithTries(tries, [&] { copyNow(target, source, bytes); }); });
  }
  void relayout(const CopyPlan &plan, const void *source, void *target) override;
  Engine &engine() override { return streamEngine_; }
  void launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) override;
  KernelRef makeKernel(const KernelSource &source) override { return makeHostKernel(source); }
  void call(std::function<void()> function) override { giveToStream(std::move(function)); }
  void stamp(const TimestampRef &stamp) override {
    giveToStream([this, stamp] { stamp->set(seconds()); });
  }
  double seconds() const override;
  double endOf(const Fence &fence) const override { return clock_ ? clock_->whenDone(fence) : NAN; }
  void watch(Watcher watcher) override {
    if (clock_)
      clock_->watch(std::move(watcher));
  }

private:
  void copyNow(void *target, const void *source, uint64_t bytes);
  bool isOnDisk(const void *address) const { return disk_ && disk_->holds(address); }
  bool isOnDevice(const void *address) const { return ram_.isOnDevice(address) || (clock_ && lent_.holds(address)); }

  SimProfile profile_;
  std::unique_ptr<const DiskSpace> disk_;
  HostEngine engine_;
  StreamEngine streamEngine_{engine_};
  SimLink toDevice_, toHost_;
  SimMemory ram_;
  LentRanges lent_;
  std::optional<SimFaults> faults_;
  std::unique_ptr<SimQueues> queues_;
  /// The queues, if they keep virtual time.
  VirtualQueues *clock_ = nullptr;
  std::optional<DramCompactor> dramCompactor_;
  std::optional<L1Compactor> l1Compactor_;
};
} // namespace

SimDevice::SimDevice(const SimProfile &profile, std::unique_ptr<const DiskSpace> disk)
    : ArenaDevice(ram_), profile_(profile), disk_(std::move(disk)), engine_(Threads(profile.threads)),
      toDevice_(profile.h2dBytesPerSecond, profile.latencySeconds),
      toHost_(profile.d2hBytesPerSecond, profile.latencySeconds),
      ram_(profile, [this](const Fence &fence) { return queues_->isDone(fence); }) {
  if (profile.hasFaults())
    faults_.emplace(profile);
  if (profile.isVirtual) {
    queues_ = std::make_unique<VirtualQueues>(profile_);
    clock_ = static_cast<VirtualQueues *>(queues_.get());
  } else if (profile.adversary) {
    queues_ = std::make_unique<AdversarialQueues>(*profile.adversary, [this](const Fence &done) { ram_.settle(done); });
  } else {
    queues_ = std::make_unique<ThreadedQueues>();
  }
  if (disk_)
    setDisk(*this, disk_->file(), profile.twin);
  dramCompactor_.emplace(*this, ram_.dramBegin(), profile.adversary);
  if (L1Arena *arena = ram_.l1Arena())
    l1Compactor_.emplace(*this, *arena, ram_.l1Begin());
}

void SimDevice::copyNow(void *target, const void *source, uint64_t bytes) {
  bool fromDevice = isOnDevice(source), onDevice = isOnDevice(target);
  if (clock_) {
    if (fromDevice != onDevice)
      clock_->waitFor(onDevice ? Queue::HostToDevice : Queue::DeviceToHost, {.linkBytes = bytes});
    else
      clock_->waitFor(Queue::Compute, {.memoryBytes = 2 * bytes});
    return;
  }
  if (isOnDisk(source) || isOnDisk(target)) {
    if (faults_ && faults_->diskFails())
      throw Error(ErrorCode::TransferFailed, "device \"" + profile_.name + "\": the disk failed in a copy of " +
                                                 std::to_string(bytes) + " bytes");
    return disk_->copy(target, source, bytes);
  }
  if (fromDevice == onDevice) {
    if (bytes)
      std::memcpy(target, source, bytes);
    return;
  }
  bool fails = faults_ && faults_->copyFails(/*toDevice=*/onDevice);
  uint64_t arrived = fails ? bytes / 2 : bytes;
  if (!profile_.adversary) // whose order is all there is of time
    (onDevice ? toDevice_ : toHost_).carry(target, source, arrived);
  else if (arrived)
    std::memcpy(target, source, arrived);
  if (fails)
    throw Error(ErrorCode::TransferFailed, "device \"" + profile_.name + "\": the link failed in a copy of " +
                                               std::to_string(bytes) + " bytes to the " +
                                               (onDevice ? "device" : "host"));
}

void SimDevice::relayout(const CopyPlan &plan, const void *source, void *target) {
  if (isOnDevice(source) != isOnDevice(target))
    throw Error(ErrorCode::InvalidArgument, "device \"" + profile_.name +
                                                "\": a relayout stays within one memory; copy between the host and "
                                                "the device first");
  if (!clock_)
    giveToStream([=, this, &plan] {
      if (isOnDisk(source) || isOnDisk(target))
        disk_->relayout(plan, source, target, threads());
      else
        relayoutHere(plan, source, target, threads());
    });
}

void SimDevice::launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) {
  if (clock_)
    return;
  if (!openStream())
    return launchKernel(engine_.threads(), kernel, args, range, grain, threads);
  giveToStream([=, this, &kernel, given = std::vector<void *>(args.begin(), args.end())] {
    launchKernel(engine_.threads(), kernel, given, range, grain, threads);
  });
}

double SimDevice::seconds() const {
  if (clock_)
    return clock_->seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

DeviceRef openSimDevice(const DeviceOptions &options, const SpillSeam *seam) {
  SimProfile profile = SimProfile::parse(options);
  std::unique_ptr<const DiskSpace> disk;
  if (profile.disk) {
    DiskOptions file = *profile.disk;
    file.spill.seam = seam;
    disk = std::make_unique<const DiskSpace>(file);
    profile.diskBegin = disk->file().data();
    profile.diskBytes = disk->file().capacity();
  }
  return std::make_shared<SimDevice>(profile, std::move(disk));
}

DeviceRef openSimDevice(const DeviceOptions &options) { return openSimDevice(options, nullptr); }

std::string simTwin(const DeviceOptions &options) {
  SimProfile profile = SimProfile::parse(options);
  if (profile.disk && !std::filesystem::is_directory(profile.disk->folder))
    options.fail("disk=" + profile.disk->folder + " is not a folder");
  return profile.twin;
}

} // namespace segue::inline runtime
