//===- SubmitLane.h - the one thread that submits to a device ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All programs of a device share a SubmitLane while they are submitted: whose turn it
// is, the report of the seams, the outputs kept for the next run, and whether commands
// are timed. Belongs to the device.
//
// The lane is free or held by one thread. Taking a free lane is one exchange; a
// thread that finds it held sleeps until it is free, and that is counted, since
// two threads that submit to one device gain nothing. A submit may be made
// inside of another (an event sink that computes a value again).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_SUBMITLANE_H
#define SEGUE_LIB_PROGRAM_SUBMITLANE_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Program/CommandTimer.h"
#include "segue/runtime/Program/StitchReport.h"
#include <atomic>
#include <deque>
#include <set>
#include <vector>

namespace segue::inline runtime {

class BinaryImage;
class PreparedProgram;

class SubmitLane {
public:
  explicit SubmitLane(Device &device);

  /// Holds the lane while it lives.
  class Turn {
  public:
    explicit Turn(SubmitLane &lane) : lane_(lane) { lane_.enter(); }
    ~Turn() { lane_.leave(); }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;

  private:
    SubmitLane &lane_;
  };

  /// Returns what `question` does, asked in a turn; false while another thread holds the lane.
  template <typename Question> bool tryTurn(Question question) {
    if (!tryEnter())
      return false;
    bool answer = question();
    leave();
    return answer;
  }

  StitchReport &report() { return report_; }

  /// Returns how often a thread found the lane held by another.
  uint64_t collisions() const { return collisions_.load(std::memory_order_relaxed); }

  /// Returns a copy of `text` that lives as long as the device; one per text.
  std::string_view intern(const std::string &text);

  /// Returns whether commands are timed in sum, whether each call is noted, and whether either is so. Any thread may call.
  bool timesCommands() const { return timesCommands_.load(std::memory_order_relaxed); }
  bool notesSpans() const { return notesSpans_.load(std::memory_order_relaxed); }
  bool readsClock() const { return timesCommands() || notesSpans(); }
  /// Begins to time the commands of all programs; false if they are timed already.
  bool beginTiming();
  /// Ends that, and returns what they have taken: the programs that ran.
  std::vector<ProgramTimes> endTiming();
  void noteSpans(bool on) { notesSpans_.store(on, std::memory_order_relaxed); }
  /// Adds a call. Any thread may call.
  void addSpan(CommandSpan span);
  std::vector<CommandSpan> takeSpans();

  /// Adds a program that keeps storages between runs and gives them up when the device runs
  /// out of memory.
  void enlist(PreparedProgram &program);
  void remove(PreparedProgram &program);
  /// Returns the files of the programs that are ready for the device.
  std::set<const BinaryImage *> images();
  /// Makes programs give up what they keep in a space until so many bytes are free; returns
  /// how many were. Does nothing while another thread holds the lane.
  uint64_t makeRoom(Space space, uint64_t wanted);
  /// Returns the bytes that dropping them could give back.
  uint64_t droppableBytes(Space space);

private:
  void enter() {
    uintptr_t self = thisThread(), owner = 0;
    if (owner_.compare_exchange_strong(owner, self, std::memory_order_acquire))
      return;
    if (owner == self)
      ++depth_;
    else
      enterHeld(self);
  }
  void leave() {
    if (depth_) {
      --depth_;
      return;
    }
    owner_.store(0, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst))
      owner_.notify_one();
  }
  void enterHeld(uintptr_t self);
  bool tryEnter();
  static uintptr_t thisThread();

  std::atomic<uintptr_t> owner_{0};
  std::atomic<uint32_t> sleepers_{0};
  /// The number of submits inside of the outermost one. It belongs to the holder.
  uint32_t depth_ = 0;
  std::atomic<uint64_t> collisions_{0};
  std::atomic<bool> timesCommands_{false}, notesSpans_{false};

  Device &device_;
  StitchReport report_;
  std::mutex mutex_;
  std::set<std::string, std::less<>> texts_;
  std::vector<PreparedProgram *> programs_;
  /// A deque: a call is not to wait until all before it have been moved.
  std::deque<CommandSpan> spans_;
  DeviceMemory::RoomMakerHandle roomMaker_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_SUBMITLANE_H
