//===- Roofline.h - commands beside what the device could do ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The table of `segue-run bench --roofline`, of `--profile` and of `Trainer.profile`: for
// each command its time, what it moves and computes, and its limit, which is the larger of
// its bytes over the speed of memory and its flops over that of products. What is left
// between commands is the host's, of copies over links, and of what a session does besides
// programs (sums of gradients).
//
//   CommandTimer timer(device);
//   ... 3 steps in `seconds` ...
//   timer.stop();
//   Roofline table({device->name(), device->threads(), "step", 3, seconds}, timer.times(), speedOf(*device));
//   std::fputs(table.text().c_str(), stderr);
//
// A command that reaches more than its whole limit reads or writes what lies in a cache.
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_ROOFLINE_H
#define SEGUE_RUNTIME_REPORTS_ROOFLINE_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Program/CommandTimer.h"
#include "segue/runtime/Reports/DeviceSpeed.h"
#include <optional>

namespace segue::inline runtime {

/// The runs that were timed.
struct TimedRuns {
  std::string device;
  int threads = 1;
  /// The name of one: "step", "submit".
  std::string what;
  uint64_t count = 0;
  /// The seconds of all of them, by the same clock as those of their commands.
  double seconds = 0;
};

class Roofline {
public:
  /// Without a speed there are no limits.
  Roofline(TimedRuns runs, const std::vector<ProgramTimes> &programs, std::optional<DeviceSpeed> speed);

  /// Returns the table for people: the dearest `most` commands, then kinds, then what they
  /// come to.
  std::string text(size_t most = 30) const;
  /// Returns all of it: `commands`, the dearest first, `kinds`, `products`, `others`, `between`.
  Json json() const;

private:
  /// A Sum is what some commands have taken in all.
  struct Sum {
    uint64_t calls = 0, bytes = 0, flops = 0;
    double seconds = 0, limitSeconds = 0;
    void add(const Sum &other);
  };
  struct Row {
    /// "forward", or with the file before it where there are several; empty for a kind.
    std::string program;
    std::string label, kind, location;
    Sum sum;
    /// True if the flops take longer than the bytes.
    bool isBoundByProducts = false;
  };
  Row rowOf(std::string program, const CommandTime &command) const;
  std::string line(const Row &row) const;
  std::string said(const char *what, const Sum &sum) const;
  Json json(const Sum &sum) const;
  Json json(const Row &row) const;
  double share(double seconds) const { return runs_.seconds > 0 ? seconds / runs_.seconds : 0; }
  double between() const;

  TimedRuns runs_;
  std::optional<DeviceSpeed> speed_;
  std::vector<Row> commands_, kinds_;
  /// Matmul, attention and calls of the library; all other commands.
  Sum products_, others_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_ROOFLINE_H
