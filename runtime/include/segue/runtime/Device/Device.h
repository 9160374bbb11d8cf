//===- Device.h - what a device can do --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The narrow interface behind which devices differ: raw memory (RawMemory), queues
// (compute, each way of the link and of a disk, other ranks), copies, kernel launches and a clock. Library calls
// (matmul, attention) are plans of the Engine, made once per command.
//
//   auto device = Device::open("cpu");            // on all processors
//   auto two = Device::open("cpu:threads=2,dram=8GiB");
//   auto discrete = Device::open("sim:dram=512MiB,link=16GB/s,latency=10us");
//   auto hostile = Device::open("sim:dram=64MiB,adversarial=7,fail-copy=0.01");
//   auto stumbling = Device::open("sim:fail-d2h=12x2");   // copies 12 and 13 to the host
//   auto planned = Device::open("sim:virtual,dram=24GiB,flops=80TFLOP/s");
//
//   auto streams = Device::open("sim:streams");           // as a GPU's streams
//
// Work is given to a queue with the fence that it waits for. Its body says what is
// to be done, through `copy`, `relayout`, `launch`, `stamp`, `call` and the engine,
// and does nothing to memory itself. A device that `runsInline` has done it all when
// `enqueue` returns. Some run the body when its turn comes, on a thread of the queue
// (`sim`); others run it at once, and what it gave to the device goes to the stream
// of the queue (`sim:streams`, a GPU). So a body neither sees what the work before
// it has written, nor hears how what it gives ends: that is told to `Work::ended`.
//
// A driver is one file and one line in the list of Drivers/Drivers.cpp; nobody
// asks for a device's name. One thread submits to a device; any thread may allocate and free.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_DEVICE_H
#define SEGUE_RUNTIME_DEVICE_DEVICE_H

#include "segue/runtime/Device/Kernel.h"
#include "segue/runtime/Device/LinkSpeed.h"
#include "segue/runtime/Device/Timestamp.h"
#include "segue/runtime/Fence.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Memory/RawMemory.h"
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

/// The cost of an entry of a queue, for devices that keep time themselves.
struct WorkCost {
  /// Bytes that cross the link between host and device.
  uint64_t linkBytes = 0;
  /// Bytes that the host copies or converts within its own memory, before they are on the
  /// link or after.
  uint64_t hostBytes = 0;
  /// In an entry that has both linkBytes and hostBytes, the host works a chunk of this many
  /// bytes ahead of the link or behind it. With 0, all of the one comes before the other.
  uint64_t chunkBytes = 0;
  /// Bytes read and written in the device's own memory.
  uint64_t memoryBytes = 0;
  uint64_t flops = 0;
  /// The seconds that the entry takes whatever the figures of the device are, as those of an interconnect, beside what
  /// hostBytes take; 0 where these figures say it.
  double seconds = 0;
  /// In virtual time, the entry begins at this time of Device::seconds() at the earliest.
  double notBefore = 0;
};

/// A command names what a body gives, so that a device can give it once more without the body.
struct WorkCommand {
  /// The number of what is given: two bodies of one number with the same addresses give the
  /// same, by launches, copies and library calls alone. 0 for a body of which nothing is known.
  uint64_t number = 0;
  /// The memory that it reads and writes. Stays until the entry has ended.
  std::span<void *const> addresses = {};
};

/// One entry of a queue.
struct Work {
  /// The body, which gives the device what is to be done. It runs once, when the entry is
  /// enqueued or when its turn comes, and touches no memory itself. An exception from it
  /// ends the entry as an error of the device does. The body keeps alive what the device
  /// touches for it, except handles of the device itself: a device that only its own queue
  /// knows may never be waited for. It is destroyed once the entry has ended, before its
  /// fence is done. A device without bytes (`sim:virtual`) destroys it without running it.
  /// A null body means that there is nothing to do but to wait.
  std::function<void()> run;
  WorkCost cost;
  /// The name of the entry in traces. Its characters live as long as the device.
  std::string_view label;
  /// Null, or a function that the device calls on the host when all that the entry waits
  /// for is done. It returns false if that has failed, so that nothing need be done; a
  /// device that can no longer leave its work undone does it in vain. The function throws
  /// nothing and calls no device.
  std::function<bool()> mayBegin;
  /// Null, or a function that the device calls on the host once the entry has ended, before
  /// its fence is done. Its argument is the first error of what the body gave to the
  /// device, after which the rest may have been left out; or null if there was none, or if
  /// mayBegin returned false. The function throws nothing and calls no device.
  std::function<void(const Error *)> ended;
  /// A device may hold entries of the compute queue with commands back until it has several,
  /// somebody waits for them or asks whether they are done, or `submit` is called.
  WorkCommand command = {};
};

/// Says how often a copy over the link is tried. Whoever queues the copy keeps it until
/// the work has ended. Called on the host, by one copy at a time.
class CopyTries {
public:
  virtual void trying() noexcept = 0;
  /// Returns true if a copy that has failed with `error`, for the `failures`-th time by now, is to be tried again.
  virtual bool triesAgain(const Error &error, uint32_t failures) noexcept = 0;

protected:
  ~CopyTries() = default;
};

class Device : public RawMemory {
public:
  /// Opens a device by its spec: a driver name, then `:key=value,...`. Throws
  /// InvalidArgument naming the unknown driver or key and the known ones. (Drivers lie
  /// above: Drivers/Drivers.cpp has the body.)
  static DeviceRef open(std::string_view spec);

  /// Runs what is queued to its end.
  ~Device() override;

  /// The last tier in which bytes live that leave the device's memory: disk, where there is one, else
  /// host_pinned. (TransferEngine::homeFor says which of several has room.)
  Space homeSpace() const { return hasSpace(Space::Disk) ? Space::Disk : Space::HostPinned; }
  /// True for a space in which such bytes live, as long as it has room.
  bool isHomeSpace(Space space) const { return space == homeSpace() || (space == Space::HostPinned && diskLink()); }

  /// Returns true if host, host_pinned and device_dram are the same memory here, so that a
  /// tensor in one of them is in all.
  virtual bool hasUnifiedMemory() const = 0;

  /// Returns true if work is done when `enqueue` returns, so that nothing is ever pending but what other ranks are
  /// waited for (Queue::Network), and the submitting thread may call the device directly.
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

  /// The bytes of device_dram that the device is still to take for itself, in its books, as far as programs that were
  /// made ready, or could not be for want of them, have told: they stay then. Nothing for devices that never take any;
  /// of others, whoever shares out memory makes programs ready first.
  virtual std::optional<uint64_t> bytesForPrograms() const { return std::nullopt; }

  /// How fast the link is. Nothing where there is none.
  virtual std::optional<LinkSpeed> link() const { return std::nullopt; }
  /// How fast a disk is that lies below the host's memory (h2d is reading): what goes there from the
  /// device passes through page-locked memory, and has queues of its own. Nothing where there is no
  /// disk, or where the disk is what the link leads to.
  virtual std::optional<LinkSpeed> diskLink() const { return std::nullopt; }

  /// Returns the number of the device among those of its kind, as other libraries count them.
  virtual int number() const { return 0; }

  /// Returns the target of the compiler whose kernels the device runs: "x86-64-v3", "sm_90".
  virtual std::string kernelTarget() const;

  /// Returns the number of threads that a launch is split over.
  virtual int threads() const = 0;

  /// The books over all spaces. Everybody allocates here.
  DeviceMemory &memory() { return memory_; }

  /// The state that programs share while they are submitted, for the executor.
  SubmitLane &lane() { return *lane_; }
  /// Moves and converts everything; made on first use. Any thread.
  TransferEngine &transfer();

  /// Returns what is free of a space. A space that the system manages is one range of what is not taken.
  FreeMemory freeMemory(Space space) const override;

  /// Return what moves tensors together in device_dram and in device_l1; or null where the
  /// system manages the memory, or maps it by pages, so that ranges are never too short.
  virtual DramCompactor *dramCompactor() { return nullptr; }
  virtual L1Compactor *l1Compactor() { return nullptr; }

  //===--------------------------------------------------------------------===//
  // Queues
  //===--------------------------------------------------------------------===//

  /// Appends `work` to `queue`, to start when `after` is done. Returns its
  /// position. Does not block on the work. Throws InvalidArgument if `after`
  /// names entries that were not enqueued.
  virtual uint64_t enqueue(Queue queue, const Fence &after, Work work) = 0;

  /// Holds nothing back of what has been enqueued.
  virtual void submit() {}

  /// Returns the position after the last entry of `queue`.
  virtual uint64_t position(Queue queue) const = 0;

  virtual bool isDone(const Fence &fence) const = 0;
  /// The same, of a device that somebody else may be at: moves none of its work on.
  virtual bool wasDone(const Fence &fence) const { return isDone(fence); }

  /// Blocks the calling thread until `fence` is done. Throws InvalidArgument if
  /// it names entries that were not enqueued.
  virtual void wait(const Fence &fence) = 0;

  /// Waits for at most `seconds` of the device's clock, and returns false if `fence` is not
  /// done then. A device that cannot stop waiting waits to the end.
  virtual bool waitFor(const Fence &fence, double seconds);

  /// Blocks until all queues are empty.
  void drain();

  /// Appends an entry to `queue` that stamps the time when `after` is done and the queue
  /// has come there. Returns its position.
  uint64_t enqueueStamp(Queue queue, const Fence &after, TimestampRef stamp, std::string_view label = {});
  /// Appends an entry to `queue` that calls a host function when `after` is done. Returns its position.
  uint64_t enqueueCall(Queue queue, const Fence &after, std::function<void()> call, std::string_view label = {});

  //===--------------------------------------------------------------------===//
  // Beside another library that uses the same device
  //===--------------------------------------------------------------------===//

  /// Lets commands compute on memory of the device that is somebody else's and in no books,
  /// until it is taken back. Throws InvalidArgument for other memory, and for all of it where
  /// the device has none of its own. Any thread may call.
  virtual void lendMemory(const void *data, uint64_t bytes);
  virtual void takeBackMemory(const void *data, uint64_t bytes) noexcept {}

  /// Appends an entry to the compute queue that waits for all that has been given to `stream`,
  /// which is another library's (a CUstream). Throws Unsupported where there are no streams.
  virtual uint64_t enqueueWaitForStream(void *stream);
  /// Lets what is given to `stream` from now on wait for `fence`.
  virtual void letStreamWait(void *stream, const Fence &fence);

  //===--------------------------------------------------------------------===//
  // What the bodies of work call
  //===--------------------------------------------------------------------===//
  //
  // Within a body, calls may return before what they ask for is done, which is done in
  // the order of the calls and of the queue; its errors are those of the entry. Outside
  // of one they do it at once, block, and throw.

  /// Copies bytes between any two of its spaces; the ranges do not overlap.
  /// TransferFailed if the link failed, as often as `tries` lets it (null: once): the
  /// target holds anything then, the source is whole.
  virtual void copy(void *target, const void *source, uint64_t bytes, CopyTries *tries = nullptr) = 0;

  /// Runs a plan, which stays until it is done, within one memory: the host's, or the
  /// device's. NonFinite if what it quantises is not finite.
  virtual void relayout(const CopyPlan &plan, const void *source, void *target) = 0;

  /// Returns the engine: library calls, whose plans are made when a program is prepared,
  /// and other work on the device's memory.
  virtual Engine &engine() = 0;

  /// Runs `kernel` over [0, range) in pieces that are multiples of `grain`, on up to
  /// `threads` threads where it computes with those (1: on one). The arguments are read
  /// during the call. KernelFault with the first non-zero code by position.
  virtual void launch(const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain, int threads) = 0;

  /// Runs `function` on the host in the order of the queue: what waits for it waits until
  /// it has returned. It may touch the host's memory, and nothing of the device but
  /// isDone. What it throws is an error of the entry.
  virtual void call(std::function<void()> function) = 0;

  /// Stamps the time when all that the body gave before it is done.
  virtual void stamp(const TimestampRef &stamp) = 0;

  /// Makes a handle for `source`. Throws Unsupported if the device runs no variant of it,
  /// OutOfMemory if the device lacks memory for the code, FileCorrupt for an object that
  /// cannot be loaded. Any thread may call.
  virtual KernelRef makeKernel(const KernelSource &source) = 0;

  /// Returns the seconds of a monotonic clock; the device's own where time is simulated.
  virtual double seconds() const = 0;

protected:
  Device();

private:
  DeviceMemory memory_;
  std::shared_ptr<SubmitLane> lane_;
  std::once_flag transferOnce_;
  std::shared_ptr<TransferEngine> transfer_;
};

/// Makes what a device holds for layers above it: the state that programs share while they
/// are submitted (Program/SubmitLane.cpp), and the engine that moves its tensors
/// (Transfer/TransferEngine.cpp).
std::shared_ptr<SubmitLane> makeSubmitLane(Device &device);
std::shared_ptr<TransferEngine> makeTransferEngine(Device &device);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_DEVICE_H
