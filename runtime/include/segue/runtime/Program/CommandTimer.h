//===- CommandTimer.h - how long the commands of programs take --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Times every command of every program that runs on a device, whoever submits it: a
// session, a module that is called, a value that is computed again. Nothing is prepared
// for it and no bit of a result depends on it; reading the clock costs some tens of
// nanoseconds per command, and a GPU is given its commands one by one meanwhile.
//
//   CommandTimer timer(device);
//   session.step(batches);
//   timer.stop();
//   for (const ProgramTimes &program : timer.times())
//     ...
//
// CommandSpans notes each call by itself, for a trace.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_COMMANDTIMER_H
#define SEGUE_RUNTIME_PROGRAM_COMMANDTIMER_H

#include "segue/runtime/Device/Device.h"
#include <string>
#include <vector>

namespace segue::inline runtime {

/// A CommandTime is what one command has taken, beside its costs, which are those of commandCosts.
struct CommandTime {
  /// The kernel or library call with its extents: "launch gelu_3", "matmul 1x512x768x3072"
  /// (batch, rows, sum, columns), "attention 8x6x256x64 over 256 keys".
  std::string label;
  /// The kind, as CommandCost has it.
  std::string kind;
  /// The place in the source that the command comes from, or empty.
  std::string location;
  /// The calls, and the seconds of all of them by the clock of the device.
  uint64_t calls = 0;
  double seconds = 0;
  /// The flops and bytes of one call; 0 for copies over a link.
  uint64_t flops = 0, bytes = 0;
};

/// A CommandSpan is one call of a command, with what CommandTime says of it.
struct CommandSpan {
  std::string program, label, kind, location;
  uint64_t flops = 0, bytes = 0;
  /// The device's clock when the command began, and the seconds that it took.
  double begin = 0, seconds = 0;
};

/// The commands of a program that ran, in their order.
struct ProgramTimes {
  /// The names of its file and of itself.
  std::string file, program;
  std::vector<CommandTime> commands;
};

class CommandTimer {
public:
  /// Waits for what has been queued, and begins. Throws Unsupported for a device that computes nothing, InvalidArgument while
  /// another timer is at work on the device.
  explicit CommandTimer(DeviceRef device);
  /// Ends the timing without waiting.
  ~CommandTimer();
  CommandTimer(const CommandTimer &) = delete;
  CommandTimer &operator=(const CommandTimer &) = delete;

  /// Waits for what has been queued, and ends the timing.
  void stop();
  /// Returns what had been taken when it was stopped: programs in the order in which they were
  /// made ready, without those that did not run or whose files are gone.
  const std::vector<ProgramTimes> &times() const { return times_; }

private:
  DeviceRef device_;
  bool isOn_ = true;
  std::vector<ProgramTimes> times_;
};

/// Notes the calls of commands while it is on, beside any timer. It is off at first; a device of virtual time gives it
/// nothing. There is one at a time per device.
class CommandSpans {
public:
  explicit CommandSpans(DeviceRef device) : device_(std::move(device)) {}
  ~CommandSpans() { setOn(false); }
  CommandSpans(const CommandSpans &) = delete;
  CommandSpans &operator=(const CommandSpans &) = delete;

  void setOn(bool on);
  /// Waits for what has been queued, and returns the calls since it was asked before.
  std::vector<CommandSpan> take();

private:
  DeviceRef device_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_COMMANDTIMER_H
