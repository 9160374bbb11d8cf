//===- ProgressLine.h - how far a run is, on a terminal ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The last line of a terminal while `segue-run train` runs:
//
//   [=======>            ] 38/100, 0:41 left, 18250 tokens/s, loss 2.4137, 212 of 256 MiB
//
// It is drawn over at most ten times a second, and erased before anything else is
// written there. Where stderr is no terminal, or one that cannot erase, nothing is
// written at all: logs and pipes have the same bytes as ever.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_PROGRESSLINE_H
#define SEGUE_TOOLS_SEGUERUN_PROGRESSLINE_H

#include <chrono>
#include <cstdint>
#include <string>

namespace segue::tool {

/// Where a run is. What is 0 or empty is not known, and not shown.
struct ProgressState {
  int64_t step = 0, steps = 0;
  double secondsLeft = 0;
  /// As "18250 tokens/s".
  std::string speed;
  double loss = 0;
  bool hasLoss = false;
  uint64_t peakBytes = 0, capBytes = 0;
};

/// Returns the line in at most `width` characters: the bar goes first where there is no room, then what comes last.
std::string progressText(const ProgressState &state, size_t width);

class ProgressLine {
public:
  /// Draws nothing with false, as on ranks but the first.
  explicit ProgressLine(bool isWanted);
  ~ProgressLine() { erase(); }
  ProgressLine(const ProgressLine &) = delete;
  ProgressLine &operator=(const ProgressLine &) = delete;

  /// Draws the line, unless it was drawn just before.
  void draw(const ProgressState &state);
  /// Makes room for what somebody else writes to stderr.
  void erase();
  /// Makes room for a line on stdout, if that is a terminal, too.
  void eraseForOutput();

private:
  bool isDrawn_ = false, isVisible_ = false, isAmongOutput_ = false;
  std::chrono::steady_clock::time_point last_;
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_PROGRESSLINE_H
