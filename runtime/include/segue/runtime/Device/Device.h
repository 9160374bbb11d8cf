//===- Device.h - what a device can do --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The narrow interface behind which devices differ: spaces with capacities,
// raw memory, three queues, copies, kernel launches and a clock. Library calls
// (matmul, attention) are plans of the Engine, made once per command.
//
//   auto device = Device::open("cpu");            // all threads of OpenMP
//   auto two = Device::open("cpu:threads=2,dram=8GiB");
//   auto discrete = Device::open("sim:dram=512MiB,link=16GB/s,latency=10us");
//   auto hostile = Device::open("sim:dram=64MiB,adversarial=7,fail-copy=0.01");
//   auto stumbling = Device::open("sim:fail-d2h=12x2");   // copies 12 and 13 to the host
//   auto planned = Device::open("sim:virtual,dram=24GiB,flops=80TFLOP/s");
//
// Work is given to a queue with the fence that it waits for. A device that
// `runsInline` has done it when `enqueue` returns; elsewhere it runs later, on
// a thread of the queue (`sim`) or on the hardware's stream (`cuda`: the body
// runs at once and what it calls on the device goes to the stream of the
// queue). That is why bodies touch device memory through `copy`, `relayout`,
// `launch` and the engine's plans alone.
//
// A driver is one file and one line in the list of drivers in Device.cpp; nobody
// asks for a device's name. One thread submits to a device; any thread may allocate and free.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_DEVICE_H
#define SEGUE_RUNTIME_DEVICE_DEVICE_H

#include "segue/runtime/Device/Fence.h"
#include "segue/runtime/Device/LinkSpeed.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Tensor/Layout.h"
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace segue::inline runtime {

class CopyPlan;
class Engine;
class DramCompactor;
class L1Compactor;
class SubmitLane;
class Device;
class TransferEngine;
using DeviceRef = std::shared_ptr<Device>;

/// A kernel of the generated code: runs units [begin, end). Returns 0, or i+1
/// if argument i held an index outside of its table.
using KernelFunction = int64_t (*)(void *const *args, int64_t begin, int64_t end);

struct SpaceInfo {
  Space space;
  /// Bytes; for memory shared with other programs, what the machine has.
  uint64_t capacityBytes;
};

/// What an entry of a queue costs, for devices that keep time themselves.
struct WorkCost {
  /// Over the link between host and device.
  uint64_t linkBytes = 0;
  /// Copied or converted by the host within its own memory, before they are on
  /// the link or after.
  uint64_t hostBytes = 0;
  /// Of an entry with both: the host works a chunk of so many bytes ahead of
  /// the link or behind it. 0: all of one comes before the other.
  uint64_t chunkBytes = 0;
  /// Read and written in the device's own memory.
  uint64_t memoryBytes = 0;
  uint64_t flops = 0;
};

/// One entry of a queue.
struct Work {
  /// Runs once, on a thread of the queue; throws nothing. It keeps alive what
  /// it touches, handles of the device apart: a device that only its own queue
  /// knows may never be waited for. It is destroyed once it has run, before its
  /// fence is done. A device without bytes (`sim:virtual`) destroys it without
  /// running it.
  std::function<void()> run;
  WorkCost cost;
  /// For traces: lives as long as the device.
  std::string_view label;
};

class Device {
public:
  /// Opens a device by its spec: a driver name, then `:key=value,...`. Throws
  /// InvalidArgument naming the unknown driver or key and the known ones.
  static DeviceRef open(std::string_view spec);

  /// Runs what is queued to its end.
  virtual ~Device();

  /// The spec that opens this device again.
  virtual std::string name() const = 0;

  virtual std::span<const SpaceInfo> spaces() const = 0;
  bool hasSpace(Space space) const;

  /// True if host, host_pinned and device_dram are the same memory here, so
  /// that a tensor in one of them is in all.
  virtual bool hasUnifiedMemory() const = 0;

  /// True if work is done when `enqueue` returns, so that nothing is ever
  /// pending and the submitting thread may call the device directly.
  virtual bool runsInline() const = 0;

  /// False if there are no bytes behind its memory and nothing is computed:
  /// only sizes and times are real.
  virtual bool hasBytes() const { return true; }

  /// False for memory that no command may compute on: the host's, where a device
  /// has its own. The executor asks before it queues a command.
  virtual bool computesOn(const void *address) const { return true; }

  /// The spec of a device of virtual time on which steps are planned for this one:
  /// with its capacities, its link and its speed; its own where it keeps virtual time
  /// itself. Nothing where host and device have one memory, so that nothing can leave
  /// it and no plan is needed.
  virtual std::optional<std::string> twin() const { return std::nullopt; }

  /// How fast the link is. Nothing where there is none.
  virtual std::optional<LinkSpeed> link() const { return std::nullopt; }

  /// Threads that a launch is split over.
  virtual int threads() const = 0;

  /// The books over all spaces. Everybody allocates here.
  DeviceMemory &memory() { return memory_; }

  /// What programs share while they are submitted: for the executor.
  SubmitLane &lane() { return *lane_; }
  /// Moves and converts everything; made on first use. Any thread.
  TransferEngine &transfer();

  //===--------------------------------------------------------------------===//
  // Raw memory: called by DeviceMemory alone
  //===--------------------------------------------------------------------===//

  /// Memory of `space`, not initialised; null data if there is none left.
  /// `bytes` may be 0. Given back with the same arguments. `lifetime` is a
  /// hint for spaces that are filled from both ends.
  virtual MemoryBlock takeMemory(Space space, uint64_t bytes, uint32_t alignment, Lifetime lifetime) = 0;
  virtual void giveMemory(Space space, void *data, uint64_t bytes, uint32_t alignment,
                          const Fence &lastUse) noexcept = 0;

  /// Sets ranges of addresses aside, in the place of those set aside before: only
  /// takeReserved serves from them. All of them are free; the same bytes are given
  /// back by giveMemory. Returns the address of offset 0, or null, and changes
  /// nothing, if one is not free or the device cannot do this. One whose memory is
  /// mapped into ranges of addresses by pages may do with pages that are not
  /// contiguous.
  virtual const std::byte *reserveMemory(Space space, std::span<const AddressRange> ranges) { return nullptr; }
  /// A block in what was set aside: at `offset`, or where one fits; null data if
  /// that is not free.
  virtual MemoryBlock takeReserved(Space space, uint64_t bytes, uint32_t alignment, std::optional<uint64_t> offset) {
    return {};
  }
  /// Ranges of a space that are free, set aside or not: ascending, as long as can
  /// be. Empty where the device does not say.
  virtual std::vector<AddressRange> freeRanges(Space space) const { return {}; }

  /// What a block of `bytes` really takes: the books count that.
  virtual uint64_t takenBytes(Space space, uint64_t bytes, uint32_t alignment) const { return bytes; }

  /// What is left of `space`; spaces that the system manages are one range.
  virtual FreeMemory freeMemory(Space space) const;

  /// Who moves tensors together in device_dram and in device_l1, or null: where the
  /// system manages the memory, or maps it by pages, ranges are never too short.
  virtual DramCompactor *dramCompactor() { return nullptr; }
  virtual L1Compactor *l1Compactor() { return nullptr; }
  /// `bytes` at `address`, for what is to be moved there: null data if they are not
  /// free. Any part of what was taken may be given back by itself here.
  virtual MemoryBlock takeMemoryAt(Space space, uint64_t bytes, void *address) { return {}; }

  //===--------------------------------------------------------------------===//
  // Queues
  //===--------------------------------------------------------------------===//

  /// Appends `work` to `queue`, to start when `after` is done. Returns its
  /// position. Does not block on the work. Throws InvalidArgument if `after`
  /// names entries that were not enqueued.
  virtual uint64_t enqueue(Queue queue, const Fence &after, Work work) = 0;

  /// The position after the last entry of `queue`.
  virtual uint64_t position(Queue queue) const = 0;

  virtual bool isDone(const Fence &fence) const = 0;

  /// Blocks the calling thread until `fence` is done. Throws InvalidArgument if
  /// it names entries that were not enqueued.
  virtual void wait(const Fence &fence) = 0;

  /// The same, for `seconds` of its clock at most: false if `fence` is not done
  /// then. A device that cannot stop waiting waits to the end.
  virtual bool waitFor(const Fence &fence, double seconds);

  /// Blocks until all queues are empty.
  void drain();

  //===--------------------------------------------------------------------===//
  // What the bodies of work call
  //===--------------------------------------------------------------------===//

  /// Copies bytes between any two of its spaces; the ranges do not overlap.
  /// Blocks. Throws TransferFailed if the link failed: the target holds
  /// anything then, the source is whole.
  virtual void copy(void *target, const void *source, uint64_t bytes) = 0;

  /// Runs a plan within one memory: the host's, or the device's. NonFinite if what it quantises is not finite.
  virtual void relayout(const CopyPlan &plan, const void *source, void *target) = 0;

  /// Library calls: plans are made when a program is prepared.
  virtual Engine &engine() = 0;

  /// Runs `kernel` over [0, range) in pieces that are multiples of `grain`, on
  /// up to `threads` threads of the pool (1: inline, on the calling thread).
  /// Blocks. Returns the first non-zero result by position, or 0.
  virtual int64_t launch(KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) = 0;

  /// Seconds of a monotonic clock; the device's own where time is simulated.
  virtual double seconds() const = 0;

protected:
  Device();

private:
  DeviceMemory memory_;
  std::unique_ptr<SubmitLane> lane_;
  std::once_flag transferOnce_;
  std::unique_ptr<TransferEngine> transfer_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_DEVICE_H
