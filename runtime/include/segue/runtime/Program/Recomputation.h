//===- Recomputation.h - saved values made again ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Beside forward and backward a file holds small programs, each of which makes
// saved values of forward again, equal to the bit, from other saved values,
// parameters and inputs. Backward still reads all of these after it has first
// read one of the values that the program makes, so that they can be had at that
// moment, and for the others no longer than that.
//
//   for (const auto &again : recomputations(forward))
//     if (again)
//       value = submit(device, again->program, gather(again->sources))[again->output];
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_RECOMPUTATION_H
#define SEGUE_RUNTIME_PROGRAM_RECOMPUTATION_H

#include "segue/runtime/Program/Program.h"
#include <optional>
#include <string_view>

namespace segue::inline runtime {

struct Recomputation {
  /// A Source says where an input of `program` comes from: an
  /// output (role saved) of forward, or an input of forward.
  struct Source {
    bool isSaved = false;
    uint32_t index = 0;
  };

  Program program;
  uint32_t output = 0;
  /// The sources of the inputs of `program`, one for each.
  std::vector<Source> sources;
  /// The costs of the whole program, by commandCosts, and its number of commands that work.
  uint64_t flops = 0, bytes = 0, commands = 0;
  /// The program's relativeCost.
  double cost = 0;
  /// True if the program has constants, which stay on the device from its first run on.
  bool hasConstants = false;

  /// Returns the time on a device that does so many flops and moves so many
  /// bytes of its memory in a second. Each command takes the longer of the two.
  double seconds(double flopsPerSecond, double bytesPerSecond, double secondsPerCommand = 0) const;
};

/// Programs whose names begin with this make saved values again. They run rarely and between
/// other programs' peaks, so that executors keep no memory for their next run.
inline constexpr std::string_view recomputePrefix = "recompute.";

/// Returns the cost of a program relative to that of others, without a unit: its time on a
/// device whose memory moves one byte in the time of ten flops, as most do within a factor
/// of a few.
double relativeCost(const Program &program);

/// Returns an entry per `forward.savePoints()`, which is empty where no program of the file
/// makes the value again.
std::vector<std::optional<Recomputation>> recomputations(const Program &forward);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_RECOMPUTATION_H
