//===- TransferEngine.h - everything that moves on a device -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one engine behind toLayout, submit's alignment of inputs and the services
// that spill, restore and stream: it plans a transfer, takes the memory, gives
// the steps to the device's queues, counts and traces them. A device has one:
//
//   TransferEngine &engine = device->transfer();
//   engine.configure(options);                       // memory.stitch
//   Tensor there = engine.toLayout(device, tensor, wanted);      // pending
//   wait(there);                                                 // ready
//
// The result is PENDING where the device works asynchronously: its storage
// has the fence of the work that fills it, and everything that reads it on the
// device waits for that in its queue. A copy that fails is tried once more, then
// its target is FAILED with TRANSFER_FAILED and what would read it fails with the
// same error; its source is untouched.
//
// The thread that submits to the device calls the engine. Counters may be read
// on any thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_TRANSFERENGINE_H
#define SEGUE_RUNTIME_TRANSFER_TRANSFERENGINE_H

#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/StitchOptions.h"
#include "segue/runtime/Transfer/TransferCounters.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>

namespace segue::inline runtime {

/// The least page-locked memory above a disk: a part of it is buffers between link and disk.
inline constexpr uint64_t leastHostAboveDisk = 256 << 10;

/// A TransferConsumer says for whom a tensor is moved, in traces
/// and errors. It is made once, when a program is made ready.
struct TransferConsumer {
  /// The name of the program; empty for an explicit call.
  std::string program;
  /// The name of the input or tensor, with its position: "input 3 (\"x\")".
  std::string tensor;
  /// The place in the source that the reader comes from: "model.py:12:3 (h.0.attn)".
  std::string location;

  /// Returns `program "f", input 3 ("x")`, or what of it there is.
  std::string str() const;
};

enum class TransferPriority : uint8_t { Critical, Required, Speculative, Background };

/// The hash of the bytes that left the device, to be compared when they come back. One
/// object serves for the way out and the way in. The work that copies to the host sets it;
/// the work that copies from there compares it before a byte is given to the device.
class TransferChecksum {
public:
  bool isSet() const { return set_.load(std::memory_order_acquire); }
  uint64_t value() const { return value_; }
  void set(uint64_t value) {
    value_ = value;
    set_.store(true, std::memory_order_release);
  }

private:
  uint64_t value_ = 0;
  std::atomic<bool> set_{false};
};

/// The tries of a hop over the link after those that the engine makes by itself. They are
/// made in the queue of the hop, so that readers of the target may be queued at once.
/// `used` of the `allowed` tries have followed failed copies; the work writes it.
struct TransferRetries {
  uint32_t allowed = 0;
  std::atomic<uint32_t> used{0};
};

struct TransferOptions {
  /// With false, the given tensor is not needed any more: its storage is freed once the
  /// transfer has read it, whoever holds a handle.
  bool retain = true;
  /// True for a parameter: a converted copy is kept and serves again while the tensor is
  /// not written.
  bool isParameter = false;
  TransferPriority priority = TransferPriority::Required;
  /// True if it is decided when the copy runs, by a plan before the step or by the program
  /// that reads it next. It then waits for no token: its queue, which carries one hop at a
  /// time, brings it in turn, and the gate hears of it once it has passed.
  bool isPlanned = false;
  /// In copyInto, keeps the target's outcome: those who wait for it already hear of this copy too.
  bool keepsOutcome = false;
  /// The reader that the copy is for, or null.
  std::shared_ptr<const TransferConsumer> consumer;
  std::shared_ptr<TransferChecksum> checksum;
  std::shared_ptr<TransferRetries> retries;
  /// The owner in whose name memory is taken.
  OwnerId owner = 0;
};

/// An Alignment says how an input came to its layout.
enum class Alignment : uint8_t { Elided, Converted, Cached };

/// A TransferGate decides which copy may go now. The engine asks it
/// once per hop over the link, on the thread that calls the engine.
class TransferGate {
public:
  enum class Answer : uint8_t {
    Go,
    /// The slots of this direction are full: ask again when one is free.
    Wait,
    /// The hop may not go at all; never the answer to Required and above.
    Deny
  };
  struct Grant {
    Answer answer = Answer::Go;
    uint64_t token = 0;
    /// The longest time to wait, by the device's clock, where the answer is Wait.
    double waitSeconds = std::numeric_limits<double>::infinity();
  };

  virtual ~TransferGate() = default;
  /// `direction` is HostToDevice or DeviceToHost.
  virtual Grant acquire(Queue direction, TransferPriority priority, uint64_t bytes) = 0;
  /// Returns a token although the slots are full: nothing
  /// is left to wait for, or the wait has lasted too long.
  virtual uint64_t overrun(Queue direction, TransferPriority priority, uint64_t bytes) = 0;
  /// Tells the gate that a hop which was planned is done.
  virtual void passed(Queue direction, uint64_t bytes, double seconds, bool succeeded) = 0;
  /// Tells the gate that the hop is done, after `seconds` at work; not `succeeded`
  /// if the transfer failed. Told before the engine's next hop is asked for.
  virtual void complete(uint64_t token, uint64_t bytes, double seconds, bool succeeded) = 0;
};

/// One step of one transfer, or one message between ranks (queue "network"), kept where `trace_copies` is on.
struct CopyRecord {
  std::string from, to, hop;
  /// The reason for which ranks meet, if they do.
  std::string about;
  uint64_t bytes = 0;
  std::string_view queue;
  /// The time by the device's clock at which the work began, and the seconds that it took.
  double begin = 0, seconds = 0;
  std::shared_ptr<const TransferConsumer> consumer;
};

/// Checks shape, logical element type, device and losslessness, in this order
/// (rule R1). Throws LayoutMismatch that begins with `where`; returns true if
/// the conversion is lossy and `policy` lets it pass. Nothing is changed.
bool checkConversion(const std::string &where, const Tensor &given, const TensorDesc &wanted, const Device &device,
                     LossyCasts policy);

class TransferEngine {
public:
  explicit TransferEngine(Device &device);
  ~TransferEngine();
  TransferEngine(const TransferEngine &) = delete;
  TransferEngine &operator=(const TransferEngine &) = delete;

  /// Sets the options of all who hold none of their own. What changes takes effect for the next transfer; plans and
  /// cached copies are dropped then.
  void configure(StitchOptions options);
  /// Returns the options in force.
  const StitchOptions &options() const { return options_; }
  /// Options of somebody who shares the device with others, in force while use() has been called with them last. They
  /// end with the handle, before the engine does.
  using OptionsHandle = std::shared_ptr<const StitchOptions>;
  [[nodiscard]] OptionsHandle hold(StitchOptions options);
  /// Puts the options of the caller in force; with null those of configure(). On the thread that submits.
  void use(const OptionsHandle &options);
  /// Keeps a record of each copy while it was called with true more often than with false, or `trace_copies` says so.
  void traceCopies(bool on) { tracers_ += on ? 1 : -1; }
  bool tracesCopies() const { return options_.traceCopies || tracers_ > 0; }
  /// Returns false if `bytes` more of page-locked memory, kept for longer than a transfer,
  /// would take what copies from and to pageable memory are staged in: both directions at
  /// once, but no more than a sixteenth of that memory. Code that can do with pageable
  /// memory asks this first, as without staging the host waits for each copy.
  bool leavesRoomToStage(uint64_t bytes) const;
  /// Bytes that leavesRoomToStage() would allow.
  uint64_t roomToKeep() const;
  /// Leaves so many bytes of page-locked memory to messages to other ranks: what is kept there does not take them.
  void leaveToMessages(uint64_t bytes) { leftToMessages_ = bytes; }
  uint64_t leftToMessages() const { return leftToMessages_; }
  /// Notes what messages hold of that.
  void holdForMessages(uint64_t bytes) { heldByMessages_ = bytes; }
  /// Returns the nearest tier below the device that takes `bytes` more to keep: host_pinned while that
  /// leaves room to stage, then a disk below it, or else host. Where the link leads to a disk, that.
  Space homeFor(uint64_t bytes) const;
  /// Bytes of the buffers through which one direction passes between device and disk; 0 without a
  /// disk below the host's memory.
  uint64_t passingBytes() const;
  /// Sets the gate, which is not owned. With null, every hop may go at once.
  void setGate(TransferGate *gate);
  /// Returns the gate; null without one.
  TransferGate *gate() const;
  /// Tells the gate of the hops that are done by now; with `all`, blocks until
  /// every one is.
  void settle(bool all);
  /// Waits for hops of `direction`, the oldest first, and tells the gate of each that is
  /// done, until `isEnough`. Returns false if before that none is left, or `seconds` of the
  /// device's clock have passed.
  bool settleUntil(Queue direction, double seconds, const std::function<bool()> &isEnough);
  /// Sets the function that gets a sentence per lossy conversion where `lossy_casts` is
  /// "warn"; by default they go to stderr.
  void setWarn(std::function<void(const std::string &)> warn);

  /// Returns the memoised plan of a transfer. Takes a lock; allocates the first time.
  std::shared_ptr<const TransferPlan> plan(const TensorDesc &given, const TensorDesc &wanted, bool forced = false);

  /// Returns a tensor laid as `wanted`: the same handle, a cached copy, or
  /// new storage that queued work fills. `device` is the one that the engine
  /// belongs to. A tensor of another device comes through its host memory;
  /// that alone blocks. Null if `options.priority` is Speculative or below
  /// and the gate denied it. Throws what planTransfer throws, the error of a
  /// FAILED or FREED tensor, DeviceOom; `tensor` is unchanged then.
  Tensor toLayout(const DeviceRef &device, Tensor tensor, std::shared_ptr<const TensorDesc> wanted,
                  const TransferOptions &options = {});

  /// Brings an input of a program to `wanted` as toLayout does, and
  /// counts it as an input. checkConversion has passed what it may lose.
  Alignment align(const DeviceRef &device, Tensor &tensor, const std::shared_ptr<const TensorDesc> &wanted,
                  const TransferOptions &options = {});

  /// Returns a copy in new storage, also where none is needed.
  Tensor copyTo(const DeviceRef &device, const Tensor &tensor, std::shared_ptr<const TensorDesc> wanted,
                const TransferOptions &options = {});

  /// Copies over the whole of `target`, whose version grows by one. Reading of
  /// what it held before comes first. Ranges that overlap go through other
  /// memory. Throws also InvalidArgument for read-only memory.
  void copyInto(const Tensor &source, const Tensor &target, const TransferOptions &options = {});

  /// Sets every byte of `target` to 0, after what uses it now.
  void fillZero(const Tensor &target);
  /// Writes `bytes` (at most 8) to the first element of `target`.
  void writeScalar(const Tensor &target, const void *value, uint64_t bytes);

  TransferCounters &counters() { return counters_; }
  const TransferCounters &counters() const { return counters_; }
  /// Returns the line of `stitch_telemetry.jsonl`
  /// for what was counted since the line before.
  StitchTelemetry record(int64_t step);
  /// Adds what somebody else brings to the trace; its times are written before the device is drained. Call it where
  /// tracesCopies().
  void addToTrace(std::shared_ptr<CopyRecord> record);
  /// Returns the copies since the last call; empty unless tracesCopies(). Where `trace_copies` alone has them kept, these
  /// are the last `mostTraced`: nobody may ever call this.
  std::vector<CopyRecord> takeTrace();
  static constexpr size_t mostTraced = 65536;

  /// Drops cached copies that nobody uses, the least recently used first, until
  /// `bytes` of `space` are free or none is left. Returns the bytes freed.
  uint64_t dropDerived(Space space, uint64_t bytes);
  uint64_t derivedBytes() const;

private:
  struct Impl;
  void putInForce(const StitchOptions &options);

  Device &device_;
  /// The options in force, those of configure(), and whose are in force: null for the latter.
  StitchOptions options_, given_;
  const StitchOptions *inUse_ = nullptr;
  int tracers_ = 0;
  uint64_t leftToMessages_ = 0, heldByMessages_ = 0;
  TransferCounters counters_;
  std::unique_ptr<Impl> impl_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TRANSFERENGINE_H
