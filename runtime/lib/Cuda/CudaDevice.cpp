//===- CudaDevice.cpp - a GPU of NVIDIA -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Puts the parts together: the context, memory mapped by chunks, page-locked memory,
// streams, kernels, products. Measured facts behind the choices are in docs/cuda.md.
//
// Pageable memory is never given to an asynchronous copy: the driver reads it when it is
// asked, not when the stream has come there, and holds its caller besides. A body's copy
// goes through a small page-locked buffer of the queue and host functions, which is right
// and slow; what is large and urgent is staged by the TransferEngine.
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"
#include "../Drivers/DiskTier.h"
#include "../Drivers/Drivers.h"
#include "../Drivers/KernelLaunch.h"
#include "../Drivers/RunWork.h"
#include "CudaEngine.h"
#include "GpuDisk.h"
#include "GpuFigures.h"
#include "GpuHolder.h"
#include "HostMemory.h"
#include "KeptMemory.h"
#include "Kernels.h"
#include "LentMemory.h"
#include "MappedMemory.h"
#include "Relayout.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include "segue/runtime/Tensor/L1Compactor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <charconv>
#include <cstring>
#include <unistd.h>

namespace segue::inline runtime::cuda {

/// The bytes of the free memory that are left for modules, events and whatever else the driver makes.
static constexpr uint64_t leftToDriver = uint64_t(1) << 30;

/// A queue's buffer for copies of pageable memory has so many bytes.
static constexpr uint64_t stagingBytes = 1 << 20;

/// The driver has made room for such stacks with the context.
static constexpr uint64_t freeStackBytes = 1024;

static uint64_t hostBytes() { return uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)); }

/// The bytes of the chunks that hold `bytes`.
namespace {
/// The options of a spec.
struct Options {
  int number = 0;
  uint64_t dramBytes = 0, pinnedBytes = 0, l1Bytes = 0;
  std::string profile;
  ProductOptions products;
  /// The options, where they name a disk.
  std::optional<DeviceOptions> disk;

  explicit Options(const DeviceOptions &given);
};

class CudaDevice final : public Device, public DiskHolder, public GpuHolder {
public:
  CudaDevice(std::string name, const Options &options, std::shared_ptr<const Context> context, const SpillSeam *seam);
  ~CudaDevice() override;

  std::string name() const override { return name_; }
  std::span<const SpaceInfo> spaces() const override { return spaces_; }
  bool hasUnifiedMemory() const override { return false; }
  bool runsInline() const override { return false; }
  bool computesOn(const void *address) const override { return isOnDevice(address); }
  int threads() const override { return multiprocessors_; }
  int number() const override { return context_->number(); }
  std::string kernelTarget() const override;
  std::optional<uint64_t> bytesForPrograms() const override { return engine_.bytesToTake(); }
  std::optional<LinkSpeed> link() const override { return figures_.link; }
  std::optional<LinkSpeed> diskLink() const override {
    return disk_ ? std::optional(disk_->speed()) : std::nullopt;
  }
  std::optional<std::string> twin() const override {
    if (disk_)
      return diskTier()->twin();
    return figures_.twin(spaces_[2].capacityBytes, kept_ ? kept_->bytes() : 0, spaces_[1].capacityBytes,
                         spaces_[0].capacityBytes);
  }

  MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) override;
  void giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment, const Fence &lastUse) noexcept override;
  void limitMemory(Space space, uint64_t bytes) override {
    if (space == Space::DeviceDram)
      dram_.limit(bytes);
  }
  const std::byte *reserveMemory(Space space, std::span<const AddressRange> ranges) override {
    return space == Space::DeviceDram ? dram_.reserve(ranges) : nullptr;
  }
  MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) override {
    return space == Space::DeviceDram ? dram_.takeReserved(bytes, alignment, offset) : MemoryBlock();
  }
  MemoryBlock takeMemoryAt(Space space, uint64_t bytes, void *address) override {
    return space == Space::DeviceDram ? dram_.takeAt(bytes, address) : MemoryBlock();
  }
  DramCompactor *dramCompactor() override { return &*dramCompactor_; }
  L1Compactor *l1Compactor() override { return l1Compactor_ ? &*l1Compactor_ : nullptr; }
  std::vector<AddressRange> freeRanges(Space space, std::span<const HeldBlock> givenBack) const override {
    return space == Space::DeviceDram ? dram_.freeRanges(givenBack) : std::vector<AddressRange>();
  }
  FreeMemory freeMemory(Space space) const override;
  uint64_t takenBytes(Space space, uint64_t bytes, uint32_t) const override {
    return space == Space::Disk                  ? SpillFile::inBlocks(bytes)
           : space == Space::DeviceL1 && kept_ ? kept_->takenBytes(bytes)
                                                : bytes;
  }
  uint32_t leastAlignment(Space space, uint64_t bytes) const override {
    return disk_ && space == Space::HostPinned ? alignmentAboveDisk(bytes) : 1;
  }

  uint64_t enqueue(Queue queue, const Fence &after, Work work) override {
    dram_.settle();
    return streams_.enqueue(queue, after, std::move(work));
  }
  void submit() override { streams_.giveHeld(); }
  uint64_t position(Queue queue) const override { return streams_.position(queue); }
  bool isDone(const Fence &fence) const override { return streams_.isDone(fence); }
  void wait(const Fence &fence) override { streams_.wait(fence); }
  bool waitFor(const Fence &fence, double seconds) override { return streams_.waitFor(fence, seconds); }

  void copy(void *target, const void *source, uint64_t bytes, CopyTries *tries) override;
  void relayout(const CopyPlan &plan, const void *source, void *target) override;
  Engine &engine() override { return engine_; }
  void launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) override {
    kernels_.launch(streams_, static_cast<const CudaKernel &>(kernel), args, range, grain);
  }
  void lendMemory(const void *data, uint64_t bytes) override { lent_.lend(data, bytes); }
  void takeBackMemory(const void *data, uint64_t bytes) noexcept override { lent_.takeBack(data, bytes); }
  uint64_t enqueueWaitForStream(void *stream) override {
    dram_.settle();
    return streams_.enqueueWaitFor(static_cast<CUstream>(stream));
  }
  void letStreamWait(void *stream, const Fence &fence) override {
    streams_.letWait(static_cast<CUstream>(stream), fence);
  }

  void call(std::function<void()> function) override { streams_.call(std::move(function)); }
  void stamp(const TimestampRef &stamp) override { streams_.stamp(stamp); }
  KernelRef makeKernel(const KernelSource &source) override;
  double seconds() const override { return Streams::seconds(); }

  const std::shared_ptr<const Context> &context() const override { return context_; }
  Streams &streams() override { return streams_; }
  MemoryBlock countForLibrary(uint64_t bytes, const std::string &owner) override;
  void countNoMore(const MemoryBlock &block, uint64_t bytes) noexcept override;

private:
  bool isOnDevice(const void *address) const {
    return dram_.holds(address) || (kept_ && kept_->holds(address)) || lent_.holds(address);
  }
  void copyNow(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries);
  void copyStaged(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries);
  void giveCopy(std::byte *target, const std::byte *source, uint64_t bytes);
  void callOnHost(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries);
  bool isOnDisk(const void *address) const { return disk_ && disk_->space().holds(address); }
  void makeStack(uint64_t bytes, const KernelSource &source);

  std::string name_;
  std::shared_ptr<const Context> context_;
  int multiprocessors_;
  GpuFigures figures_;
  std::vector<SpaceInfo> spaces_;
  mutable Streams streams_; // who asks whether work is done tells its end
  HostHeap heap_;
  PinnedMemory pinned_;
  MappedMemory dram_;
  /// device_l1, where the spec asks for it.
  std::optional<KeptMemory> kept_;
  LentMemory lent_;
  HostWords words_;
  Kernels kernels_;
  BuiltinKernels builtin_;
  Products products_;
  CudaEngine engine_;
  std::optional<GpuDisk> disk_;
  /// Chunks move by being mapped elsewhere; what lies between blocks within them moves by copies.
  std::optional<DramCompactor> dramCompactor_;
  std::optional<L1Compactor> l1Compactor_;
  /// Page-locked memory, one piece per queue, made with the first copy of pageable memory.
  std::byte *staging_[queueCount]{};
  std::mutex stackMutex_;
  uint64_t stackBytes_ = freeStackBytes;
  size_t firstStackLimit_ = 0;
};
} // namespace

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

Options::Options(const DeviceOptions &given) {
  // The number of the GPU stands before the options: `cuda:1,dram=8GiB`.
  std::string spec = given.spec();
  std::string_view text = std::string_view(spec).substr(std::min(spec.size(), spec.find(':') + 1));
  std::string_view first = text.substr(0, text.find(','));
  auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), number);
  if (first.empty() || error != std::errc() || end != first.data() + first.size() || number < 0)
    given.fail("the number of a GPU comes first, as in cuda:0 or cuda:0,dram=8GiB");
  DeviceOptions rest("cuda:" + std::string(first), text.substr(std::min(text.size(), first.size() + 1)));
  static constexpr std::string_view keys[] = {"codes",  "disk",   "dram",    "host", "l1",
                                              "panels", "pinned", "profile", "tf32", "workspace"};
  rest.requireKnown(keys);
  dramBytes = rest.bytes("dram", 0);
  pinnedBytes = rest.bytes("pinned", hostBytes() / 8);
  if (rest.has("disk")) {
    pinnedBytes = hostAboveDisk(rest, pinnedBytes);
    disk = rest;
  } else if (rest.has("host")) {
    rest.fail("host= says what may stay in the host's memory above a disk, and there is no disk=; leave it out");
  }
  l1Bytes = rest.bytes("l1", 0);
  profile = rest.text("profile", "");
  auto isOn = [&](const std::string &key) {
    std::string value = rest.text(key, "off");
    if (value != "on" && value != "off")
      rest.fail(key + "=" + value + " is neither on nor off");
    return value == "on";
  };
  products.tf32 = isOn("tf32");
  products.codes = isOn("codes");
  products.workspaceBytes = rest.bytes("workspace", products.workspaceBytes);
  products.panelBytes = rest.bytes("panels", products.panelBytes);
  if (rest.has("dram") && dramBytes == 0)
    rest.fail("dram=" + rest.text("dram", "") + " leaves no memory");
  if (pinnedBytes == 0)
    rest.fail("pinned=" + rest.text("pinned", "") + " leaves no page-locked memory, through which copies go");
}

CudaDevice::CudaDevice(std::string name, const Options &options, std::shared_ptr<const Context> context,
                       const SpillSeam *seam)
    : name_(std::move(name)), context_(std::move(context)),
      multiprocessors_(context_->attribute(attributeMultiprocessors)), figures_(*context_, options.profile),
      spaces_{{Space::Host, hostBytes()}, {Space::HostPinned, options.pinnedBytes},
              {Space::DeviceDram, options.dramBytes}},
      streams_(*context_), heap_([this](const Fence &fence) { return streams_.isPast(fence); }),
      pinned_(*context_, options.pinnedBytes),
      dram_(*context_, MappedMemory::inChunks(options.dramBytes),
            [this](const Fence &fence) { return streams_.isPast(fence); }),
      lent_(*context_), words_(context_), kernels_(context_, words_), builtin_(context_, streams_, words_),
      products_(name_, builtin_, memory(), options.products),
      engine_(name_, builtin_, products_, memory(), options.products) {
  dramCompactor_.emplace(*this, dram_.base(), std::nullopt);
  if (options.l1Bytes) {
    kept_.emplace(*context_, streams_, "cuda:" + std::to_string(options.number), options.l1Bytes);
    spaces_.push_back({Space::DeviceL1, options.l1Bytes});
    l1Compactor_.emplace(*this, kept_->arena(), kept_->begin());
  }
  if (options.disk) {
    DiskOptions disk(*options.disk, figures_.disk);
    disk.spill.seam = seam;
    disk_.emplace(*context_, streams_, disk);
    SpillFile &file = disk_->space().file();
    spaces_.push_back({Space::Disk, file.capacity()});
    setDisk(*this, file,
            figures_.twinAboveDisk(options.dramBytes, options.l1Bytes, options.pinnedBytes, file.capacity(),
                                   disk_->speed()));
  }
  context_->use();
  context_->check(context_->api().ctxGetLimit(&firstStackLimit_, limitStackSize), "cuCtxGetLimit");
}

/// The newest of the compiler's targets that is no newer than the GPU.
std::string CudaDevice::kernelTarget() const {
  int capability = context_->capability();
  return capability >= 100 ? "sm_100" : capability >= 90 ? "sm_90" : "sm_80";
}

CudaDevice::~CudaDevice() {
  streams_.finish();
  context_->use();
  for (std::byte *staging : staging_)
    if (staging)
      (void)context_->succeeded(context_->api().hostFree(staging), "cuMemFreeHost");
  if (stackBytes_ > freeStackBytes) // the memory goes back to the driver
    (void)context_->succeeded(context_->api().ctxSetLimit(limitStackSize, firstStackLimit_), "cuCtxSetLimit");
}

DeviceRef openCudaDevice(const DeviceOptions &given, const SpillSeam *seam) {
  Options options(given);
  std::string name = "cuda:" + std::to_string(options.number);
  auto context = std::make_shared<const Context>(name, Api::open(name), options.number);
  context->use();
  size_t free = 0, total = 0;
  context->check(context->api().memInfo(&free, &total), "cuMemGetInfo");
  if (options.dramBytes > total)
    throw Error(ErrorCode::InvalidArgument, "device \"" + name + "\": dram=" + std::to_string(options.dramBytes) +
                                                " is more than " + context->model() + " has, " +
                                                std::to_string(total) + " bytes");
  if (!options.dramBytes) {
    uint64_t most = free > 2 * leftToDriver ? free - leftToDriver : free / 2;
    most -= std::min(most, MappedMemory::inChunks(options.l1Bytes));
    options.dramBytes = most / MappedMemory::chunkBytes * MappedMemory::chunkBytes;
  }
  if (options.dramBytes == 0)
    throw Error(ErrorCode::DeviceOom, "device \"" + name + "\": " + context->model() + " has no free memory");
  std::string spec = name + ",dram=" + std::to_string(options.dramBytes) + (options.disk ? ",host=" : ",pinned=") +
                     std::to_string(options.pinnedBytes);
  if (options.disk)
    spec += ",disk=" + options.disk->text("disk", "");
  if (!options.profile.empty())
    spec += ",profile=" + options.profile;
  if (options.l1Bytes)
    spec += ",l1=" + std::to_string(options.l1Bytes);
  if (options.products.tf32)
    spec += ",tf32=on";
  if (options.products.codes)
    spec += ",codes=on";
  if (options.products.workspaceBytes != ProductOptions().workspaceBytes)
    spec += ",workspace=" + std::to_string(options.products.workspaceBytes);
  if (options.products.panelBytes != ProductOptions().panelBytes)
    spec += ",panels=" + std::to_string(options.products.panelBytes);
  return std::make_shared<CudaDevice>(spec, options, context, seam);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// True while the books are asked for memory that the driver takes by itself, or told that it has it no more.
static thread_local bool takesForDriver = false;

namespace {
struct ForDriver {
  ForDriver() { takesForDriver = true; }
  ~ForDriver() { takesForDriver = false; }
};
} // namespace

MemoryBlock CudaDevice::countForLibrary(uint64_t bytes, const std::string &owner) {
  drain();
  ForDriver forDriver;
  return memory().allocate(Space::DeviceDram, bytes, 1, memory().intern({.value = owner}));
}

void CudaDevice::countNoMore(const MemoryBlock &block, uint64_t bytes) noexcept {
  ForDriver forDriver;
  memory().free(Space::DeviceDram, block.data, bytes, 1, block.account, {});
}

MemoryBlock CudaDevice::takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) {
  switch (space) {
  case Space::Host:
    return heap_.take(bytes, alignment);
  case Space::HostPinned:
    return pinned_.take(bytes, alignment);
  case Space::DeviceDram:
    return takesForDriver ? dram_.takeForDriver(bytes) : dram_.take(bytes, alignment);
  case Space::Disk:
    return disk_ ? disk_->take(bytes, alignment) : MemoryBlock();
  case Space::DeviceL1:
    return kept_ ? kept_->take(bytes, alignment, lifetime) : MemoryBlock();
  }
  return {};
}

void CudaDevice::giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment,
                            const Fence &lastUse) noexcept {
  if (space == Space::Host)
    heap_.give(data, bytes, alignment, lastUse);
  else if (space == Space::HostPinned)
    pinned_.give(data, bytes, lastUse);
  else if (space == Space::DeviceDram)
    takesForDriver ? dram_.giveForDriver(data, bytes) : dram_.give(data, bytes, lastUse);
  else if (space == Space::Disk && disk_)
    disk_->give(data, bytes, lastUse);
  else if (space == Space::DeviceL1 && kept_)
    kept_->give(data, lastUse);
}

FreeMemory CudaDevice::freeMemory(Space space) const {
  return space == Space::DeviceDram   ? dram_.freeMemory()
         : space == Space::HostPinned ? pinned_.freeMemory()
         : space == Space::Disk       ? disk_->freeMemory()
         : space == Space::DeviceL1   ? kept_->freeMemory()
                                      : Device::freeMemory(space);
}

/// Makes the driver take stacks of `bytes` per thread now, in the books, and not with the
/// first launch, in none.
void CudaDevice::makeStack(uint64_t bytes, const KernelSource &source) {
  std::lock_guard lock(stackMutex_);
  if (bytes <= stackBytes_)
    return;
  uint64_t threads = uint64_t(multiprocessors_) * uint64_t(context_->attribute(attributeThreadsPerMultiprocessor));
  uint64_t taken = (bytes - stackBytes_) * threads;
  taken = MappedMemory::inChunks(taken);
  drain();
  {
    ForDriver forDriver;
    memory().allocate(Space::DeviceDram, taken, 1,
                      memory().intern({.program = source.file, .value = "(stacks of " + source.kernel + ")"}));
  }
  context_->use();
  context_->check(context_->api().ctxSetLimit(limitStackSize, bytes), "cuCtxSetLimit", ErrorCode::DeviceOom);
  stackBytes_ = bytes;
}

KernelRef CudaDevice::makeKernel(const KernelSource &source) {
  std::shared_ptr<const CudaKernel> kernel = kernels_.make(source);
  makeStack(kernel->stackBytes, source);
  return kernel;
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

static CUdeviceptr onDevice(const std::byte *address) { return reinterpret_cast<CUdeviceptr>(address); }

/// Gives a copy to the stream. In a body it is asynchronous, and the host's side must be page-locked; outside of one
/// any memory will do.
void CudaDevice::giveCopy(std::byte *target, const std::byte *source, uint64_t bytes) {
  const Api &api = context_->api();
  bool fromDevice = isOnDevice(source), toDevice = isOnDevice(target);
  streams_.give([&](CUstream stream) {
    if (fromDevice && toDevice)
      return context_->check(api.onDevice(onDevice(target), onDevice(source), bytes, stream), "cuMemcpyDtoDAsync",
                             ErrorCode::TransferFailed);
    const std::byte *host = toDevice ? source : target;
    for (uint64_t done = 0, part; done < bytes; done += part) {
      part = pinned_.holds(host) ? pinned_.bytesWithinSegment(host + done, bytes - done) : bytes - done;
      if (toDevice)
        context_->check(api.toDevice(onDevice(target + done), source + done, part, stream), "cuMemcpyHtoDAsync",
                        ErrorCode::TransferFailed);
      else
        context_->check(api.toHost(target + done, onDevice(source + done), part, stream), "cuMemcpyDtoHAsync",
                        ErrorCode::TransferFailed);
    }
  });
}

/// Copies between memory of the host and the disk, or within either, in the order of the queue.
void CudaDevice::callOnHost(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries) {
  if (!isOnDisk(target) && !isOnDisk(source))
    return streams_.call([=] { std::memcpy(target, source, bytes); });
  disk_->call([=, &space = disk_->space()] { copyWithTries(tries, [&] { space.copy(target, source, bytes); }); });
}

/// Copies, in a body, between the device and pageable memory or the disk.
void CudaDevice::copyStaged(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries) {
  std::byte *&staging = staging_[uint8_t(streams_.openQueue())];
  if (!staging) {
    void *data = nullptr;
    context_->check(context_->api().hostAlloc(&data, stagingBytes, 0), "cuMemHostAlloc", ErrorCode::DeviceOom);
    staging = static_cast<std::byte *>(data);
  }
  bool toDevice = isOnDevice(target);
  for (uint64_t done = 0; done < bytes; done += stagingBytes) {
    uint64_t part = std::min(stagingBytes, bytes - done);
    std::byte *to = target + done, *buffer = staging;
    const std::byte *from = source + done;
    if (toDevice)
      callOnHost(buffer, from, part, tries);
    streams_.give([&](CUstream stream) {
      if (toDevice)
        context_->check(context_->api().toDevice(onDevice(to), buffer, part, stream), "cuMemcpyHtoDAsync",
                        ErrorCode::TransferFailed);
      else
        context_->check(context_->api().toHost(buffer, onDevice(from), part, stream), "cuMemcpyDtoHAsync",
                        ErrorCode::TransferFailed);
    });
    if (!toDevice)
      callOnHost(to, buffer, part, tries);
  }
}

void CudaDevice::copyNow(std::byte *target, const std::byte *source, uint64_t bytes, CopyTries *tries) {
  if (!bytes)
    return;
  bool fromDevice = isOnDevice(source), toDevice = isOnDevice(target);
  if (!fromDevice && !toDevice)
    return callOnHost(target, source, bytes, tries);
  const std::byte *host = fromDevice ? target : source;
  if (!streams_.inBody() && isOnDisk(host)) {
    std::vector<std::byte> piece(std::min(bytes, stagingBytes));
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      uint64_t part = std::min<uint64_t>(piece.size(), bytes - done);
      copyNow(piece.data(), source + done, part, tries);
      copyNow(target + done, piece.data(), part, tries);
    }
    return;
  }
  if (fromDevice == toDevice || pinned_.holds(host) || !streams_.inBody())
    return giveCopy(target, source, bytes);
  copyStaged(target, source, bytes, tries);
}

void CudaDevice::copy(void *target, const void *source, uint64_t bytes, CopyTries *tries) {
  auto *to = static_cast<std::byte *>(target);
  auto *from = static_cast<const std::byte *>(source);
  if (isOnDisk(to) || isOnDisk(from))
    return copyNow(to, from, bytes, tries); // which tries the disk's part of it when its turn comes
  copyWithTries(tries, [&] { copyNow(to, from, bytes, nullptr); });
}

void CudaDevice::relayout(const CopyPlan &plan, const void *source, void *target) {
  bool fromDevice = isOnDevice(source), toDevice = isOnDevice(target);
  if (fromDevice != toDevice)
    throw Error(ErrorCode::InvalidArgument, "device \"" + name_ +
                                                "\": a relayout stays within one memory; copy between the host and "
                                                "the device first");
  static const int processors = int(std::thread::hardware_concurrency());
  if (isOnDisk(source) || isOnDisk(target))
    return disk_->call([&plan, source, target, &space = disk_->space()] {
      space.relayout(plan, source, target, processors);
    });
  if (!fromDevice)
    return streams_.call([&plan, source, target] { relayoutHere(plan, source, target, processors); });
  relayoutOnDevice(builtin_, plan, static_cast<const std::byte *>(source), static_cast<std::byte *>(target));
}

} // namespace segue::inline runtime::cuda

namespace segue::inline runtime {

void useCuda() {
  auto open = [](const DeviceOptions &options) { return cuda::openCudaDevice(options); };
  static const bool isAdded = (addDriver({"cuda", open}), true);
  (void)isAdded;
}

} // namespace segue::inline runtime
