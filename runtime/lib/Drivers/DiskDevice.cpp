//===- DiskDevice.cpp - a cpu with a disk below its memory ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Memory is as on `sim` (SimMemory): an arena of addresses that plans can place in. The
// disk is an arena, too (DiskSpace). Copies between memory and the disk run on the
// threads of the two copy queues, beside compute: the disk is what the link leads to.
//
//===----------------------------------------------------------------------===//

#include "DiskDevice.h"
#include "ArenaDevice.h"
#include "DeviceProfile.h"
#include "DiskOptions.h"
#include "DiskSpace.h"
#include "HostEngine.h"
#include "HostKernels.h"
#include "KernelLaunch.h"
#include "MemoryLimit.h"
#include "RunWork.h"
#include "SimMemory.h"
#include "SimThreads.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <unistd.h>

namespace segue::inline runtime {

/// A plan expects these speeds where no profile says others: arithmetic of one thread, and
/// the bandwidth of memory.
static constexpr double threadFlopsPerSecond = 50e9, memoryBytesPerSecond = 10e9;
/// A kernel is expected to take so long besides its work.
static constexpr double launchSeconds = 2e-6;
static constexpr uint64_t pinnedBytes = 64 << 20;
/// A disk that nobody has named has room for everything.
static constexpr uint64_t diskWithRoom = uint64_t(1) << 50;

namespace {
class DiskDevice final : public ArenaDevice {
public:
  DiskDevice(const DeviceOptions &options, const DeviceOptions &profile, SimProfile memory, const DiskOptions &disk);
  /// Runs queued work to its end: nobody may be left writing to memory that outlives the device.
  ~DiskDevice() override { queues_.finish(); }

  std::string name() const override { return name_; }
  std::optional<std::string> twin() const override { return diskTier()->twin(); }
  std::optional<LinkSpeed> link() const override { return link_; }
  int threads() const override { return engine_.threads().count(); }

  DramCompactor *dramCompactor() override { return &*dramCompactor_; }

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override {
    return queues_.enqueue(queue, after, std::move(work));
  }
  uint64_t position(Queue queue) const override { return queues_.position(queue); }
  bool isDone(const Fence &fence) const override { return queues_.isDone(fence); }
  void wait(const Fence &fence) override { queues_.wait(fence); }
  bool waitFor(const Fence &fence, double seconds) override { return queues_.waitFor(fence, seconds); }

  void copy(void *target, const void *source, uint64_t bytes, CopyTries *tries) override {
    copyWithTries(tries, [&] { disk_.copy(target, source, bytes); });
  }
  void relayout(const CopyPlan &plan, const void *source, void *target) override {
    disk_.relayout(plan, source, target, threads());
  }
  Engine &engine() override { return engine_; }
  void launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) override {
    launchKernel(engine_.threads(), kernel, args, range, grain, threads);
  }
  KernelRef makeKernel(const KernelSource &source) override { return makeHostKernel(source); }
  void call(std::function<void()> function) override { function(); }
  void stamp(const TimestampRef &stamp) override { stamp->set(seconds()); }
  double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

private:
  std::string name_;
  HostEngine engine_;
  DiskSpace disk_;
  SimMemory ram_;
  ThreadedQueues queues_;
  std::optional<DramCompactor> dramCompactor_;
  LinkSpeed link_;
};
} // namespace

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

static DeviceOptions profileOf(const DeviceOptions &options) {
  return options.has("profile") ? readDeviceProfile("cpu", options.text("profile", "")) : DeviceOptions("cpu", "");
}

/// Of the disk, where the spec says nothing of it.
static LinkSpeed diskSpeedOf(const DeviceOptions &profile) {
  double link = profile.bytesPerSecond("link", 0);
  return {profile.bytesPerSecond("h2d", link ? link : usualDisk.h2dBytesPerSecond),
          profile.bytesPerSecond("d2h", link ? link : usualDisk.d2hBytesPerSecond),
          profile.seconds("latency", usualDisk.latencySeconds)};
}

/// Returns `memory` with the file in it.
static SimProfile withFile(SimProfile memory, const SpillFile &file) {
  memory.diskBytes = file.capacity();
  memory.diskBegin = file.data();
  return memory;
}

/// The device of virtual time for a cpu with so much memory, and a disk below it.
static std::string twinSpec(uint64_t dramBytes, uint64_t pinnedBytes, uint64_t diskBytes, int threads,
                            const DiskOptions &disk, const DeviceOptions &profile) {
  auto figure = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.12g", value);
    return std::string(text);
  };
  std::string spec =
      "sim:virtual,dram=" + std::to_string(dramBytes) + ",pinned=" + std::to_string(pinnedBytes) +
      ",disk=" + std::to_string(diskBytes) + ",l1=0,h2d=" + figure(disk.speed.h2dBytesPerSecond) +
      "B/s,d2h=" + figure(disk.speed.d2hBytesPerSecond) + "B/s,latency=" + figure(disk.speed.latencySeconds * 1e6) +
      "us,flops=" + figure(profile.flopsPerSecond("flops", threads * threadFlopsPerSecond) / 1e9) +
      "GFLOP/s,membw=" + figure(profile.bytesPerSecond("membw", memoryBytesPerSecond)) +
      "B/s,launch=" + figure(profile.seconds("launch", launchSeconds) * 1e6) + "us";
  return profile.has("hostmem") ? spec + ",hostmem=" + figure(profile.bytesPerSecond("hostmem", 0)) + "B/s" : spec;
}

DiskDevice::DiskDevice(const DeviceOptions &options, const DeviceOptions &profile, SimProfile memory,
                       const DiskOptions &disk)
    : ArenaDevice(ram_), name_(options.spec()), engine_(Threads(memory.threads)),
      disk_(disk),
      ram_(withFile(std::move(memory), disk_.file()), [this](const Fence &fence) { return queues_.isDone(fence); }),
      link_(disk.speed) {
  dramCompactor_.emplace(*this, ram_.dramBegin(), std::nullopt);
  auto capacity = [&](Space space) { return Device::memory().budget(space); };
  setDisk(*this, disk_.file(), twinSpec(capacity(Space::DeviceDram), capacity(Space::HostPinned), capacity(Space::Disk),
                                 threads(), disk, profile));
}

void requireWithin(const std::optional<MemoryLimit> &limit, const DeviceOptions &options, uint64_t bytes,
                   uint64_t pinnedBytes) {
  if (limit && bytes > limit->bytes - std::min(limit->bytes, pinnedBytes))
    options.fail("dram= is " + std::to_string(bytes) + " bytes, and buffers take " + std::to_string(pinnedBytes) +
                 ", but the control group of this process may hold " + std::to_string(limit->bytes) + " (" +
                 limit->file.string() + "), and who passes that is killed; give it less memory, or the group more");
}

DeviceRef openDiskDevice(const DeviceOptions &options, const SpillSeam *seam) {
  SimProfile memory;
  memory.name = options.spec();
  memory.threads = int(options.integer("threads", 0, 1, 1024));
  memory.hostBytes = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  memory.dramBytes = options.bytes("dram", 0);
  memory.pinnedBytes = options.bytes("pinned", pinnedBytes);
  if (!memory.dramBytes)
    options.fail("disk= needs dram=, the memory that programs may take: what has no room there goes to the disk");
  requireWithin(memoryLimit(), options, memory.dramBytes, memory.pinnedBytes);
  DeviceOptions profile = profileOf(options);
  DiskOptions disk(options, diskSpeedOf(profile));
  disk.spill.seam = seam;
  return std::make_shared<DiskDevice>(options, profile, memory, disk);
}

std::string diskTwin(const DeviceOptions &options) {
  options.requireKnown(cpuKeys);
  DeviceOptions profile = profileOf(options), withDisk = options;
  if (!options.has("disk"))
    withDisk.set("disk", ".");
  DiskOptions disk(withDisk, diskSpeedOf(profile));
  if (!options.has("disk"))
    disk.capacityBytes = profile.bytes("disk", diskWithRoom);
  else if (!std::filesystem::is_directory(disk.folder))
    options.fail("disk=" + disk.folder + " is not a folder");
  uint64_t physical = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  int threads = Threads(int(options.integer("threads", profile.integer("threads", 0, 1, 1024), 1, 1024))).count();
  return twinSpec(options.bytes("dram", profile.bytes("dram", physical)), options.bytes("pinned", pinnedBytes),
                  disk.wholeBytes(), threads, disk, profile);
}

} // namespace segue::inline runtime
