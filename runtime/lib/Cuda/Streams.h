//===- Streams.h - the queues of a GPU --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stream per queue. The body of an entry runs when it is enqueued, and what it gives
// goes to the stream, behind the waits for the events of its fence; an event after it
// stands for its end.
//
// Entries with commands are held back and given together, with one event for all of them:
// until there are many, one waits for work of another queue that none before it waited
// for, or somebody wants to know about one. Where a row of commands ends depends on what is
// enqueued alone, and on no clock: so the next step has the same rows, which are recorded
// then and given by one call (Recording.h).
//
// Ends are told when the host looks: an entry whose event has passed
// is asked whether it might begin, told how it ended and destroyed, after all entries that
// it waited for, and then counts as done. Only one thread does that at a time, with no
// lock held.
//
// `isPast` is for those who hold locks of their own: it looks at counts and events, and
// tells nobody anything.
//
// What is asked for outside of a body goes to a fourth stream and is waited for.
//
// Where the device is lost, entries end with that error, in their order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_STREAMS_H
#define SEGUE_LIB_CUDA_STREAMS_H

#include "Context.h"
#include "segue/runtime/Device/Device.h"
#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <span>
#include <thread>
#include <vector>

namespace segue::inline runtime::cuda {

/// An event of the driver, which goes back to its pool with the last handle.
using EventRef = std::shared_ptr<CUevent_st>;

/// Events of one kind, made when there are too few.
class EventPool {
public:
  EventPool(const Context &context, unsigned flags) : state_(std::make_shared<State>(context)), flags_(flags) {}
  ~EventPool();
  EventRef take();

private:
  struct State {
    explicit State(const Context &context) : context(context) {}
    const Context &context;
    std::mutex mutex;
    std::vector<CUevent> free;
  };
  std::shared_ptr<State> state_;
  unsigned flags_;
};

/// Work that a body gave to its stream, and whose end is known when the stream has come there.
class Given {
public:
  virtual ~Given() = default;
  /// Called once on the host when it is done. Throws what went wrong with it.
  virtual void settle() = 0;
  /// Called in place of settle() where the device is lost: the stream may never have come
  /// there, or be there still.
  virtual void abandon(std::unique_ptr<Given> self) noexcept {}
};

class Recording;
class Recordings;

class Streams {
public:
  explicit Streams(const Context &context);
  /// Frees the streams; finish() must have been called.
  ~Streams();

  /// These do what the functions of Device promise.
  uint64_t enqueue(Queue queue, const Fence &after, Work work);
  /// Gives the entries that are held back. Any thread; does nothing in a body.
  void giveHeld();
  /// Lets kernels keep lines of a range in the L2 cache, those that are recorded too.
  void keepInCache(const void *begin, uint64_t bytes);
  uint64_t enqueueWaitFor(CUstream other);
  void letWait(CUstream other, const Fence &fence);
  uint64_t position(Queue queue) const { return posted_[uint8_t(queue)].load(std::memory_order_acquire); }
  bool isDone(const Fence &fence);
  void wait(const Fence &fence) { waitFor(fence, std::numeric_limits<double>::infinity()); }
  bool waitFor(const Fence &fence, double seconds);
  void finish();

  bool isPast(const Fence &fence) const;

  /// Returns true in a body of this device on this thread.
  bool inBody() const { return openBody() && openBody()->streams == this; }
  /// Gives work to a stream: calls `give` with the stream of the body, or with the fourth
  /// one, and then waits for it.
  template <typename Give> void give(Give give) {
    context_.throwIfLost();
    context_.use();
    if (inBody())
      return give(openBody()->stream);
    std::lock_guard lock(directMutex_);
    give(direct_);
    context_.check(context_.api().streamSynchronize(direct_), "cuStreamSynchronize", ErrorCode::TransferFailed);
  }
  /// Keeps `given` until the stream has come there. Called in a body.
  void keep(std::unique_ptr<Given> given);
  /// Counts, in `counter`, what a body gives, each time that it is given. The counter lives as long as the device.
  void count(std::atomic<uint64_t> &counter);
  /// Returns the queue of the body that runs. Called in a body.
  Queue openQueue() const { return openBody()->queue; }

  void call(std::function<void()> function);
  void stamp(const TimestampRef &stamp);

  /// Returns the seconds of the host's clock, on which stamps lie.
  static double seconds();

private:
  /// An event and the time at which it passed: stamps count from there. `madeSeconds` is that by the host's clock,
  /// which knows it as exactly as `doubtSeconds`.
  struct ClockBase {
    EventRef event;
    double seconds = 0, madeSeconds = 0, doubtSeconds = 0;
  };
  struct Stamp {
    TimestampRef stamp;
    EventRef event;
    std::shared_ptr<const ClockBase> base;
  };
  struct Entry {
    Fence after;
    Work work;
    std::vector<std::unique_ptr<Given>> given;
    std::vector<Stamp> stamps;
    /// The error that the body threw, or that the driver gave for it.
    std::exception_ptr error;
    EventRef end;
    /// False while it is held back: its event means nothing then. Guarded by mutex_.
    bool isGiven = true;
  };
  struct Body {
    Streams *streams;
    Queue queue;
    Entry *entry;
    /// Where calls go: the stream of the queue, or that of what is recorded.
    CUstream stream;
    /// While it is recorded, and its place in the row.
    Recording *recording = nullptr;
    size_t place = 0;
  };
  static Body *&openBody();
  static void requireNoRecording();

  void awaitFence(Queue queue, const Fence &after);
  void runBody(Body body);
  void give(Queue queue, Entry &entry);
  void recordEnd(Queue queue, Entry &last);
  EventRef takeEnd();
  uint64_t append(Queue queue, Entry entry);
  // The caller has giveMutex_.
  uint64_t hold(const Fence &after, Work work);
  void giveRow();
  void endRow(size_t end);
  void splitRow(const Fence &fence);
  void giveCommands();
  bool giveRecorded();
  std::shared_ptr<Recording> record();

  bool hasPassed(const Entry &entry) const;
  bool isCounted(const Fence &fence) const;
  void requireReached(const Fence &fence, std::string_view who) const;
  /// Returns a queue whose next entry has ended after all that it waited for; nothing if none has.
  std::optional<size_t> findEnded() const;
  /// Tells the ends of entries; does nothing if somebody is at it.
  void retire(std::unique_lock<std::mutex> &lock);
  void tellEnd(Entry &entry);
  std::shared_ptr<const ClockBase> clockBase();

  const Context &context_;
  CUstream streams_[queueCount]{};
  CUstream direct_ = nullptr, recorder_ = nullptr;
  std::mutex directMutex_;
  EventPool ends_, times_;

  /// Held by who gives to the compute queue. Ahead of mutex_.
  std::mutex giveMutex_;
  /// The entries that are held back, in order.
  std::vector<Entry *> held_;
  /// Those that are being given: ahead of the second place they have their event, ahead of the third their
  /// bodies have run.
  std::span<Entry *const> row_;
  size_t rowBegin_ = 0, rowNext_ = 0;
  /// What entries of the compute queue have waited for, held back or not.
  Fence known_;
  /// The position in the compute queue up to which entries are given.
  std::atomic<uint64_t> givenPosition_{0};
  std::unique_ptr<Recordings> recordings_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_[queueCount];
  std::atomic<uint64_t> posted_[queueCount]{}, done_[queueCount]{};
  /// The position in each queue up to which each other queue's stream waits already.
  uint64_t awaited_[queueCount][queueCount]{};
  bool isRetiring_ = false;
  std::thread::id retirer_;
  std::shared_ptr<const ClockBase> base_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_STREAMS_H
