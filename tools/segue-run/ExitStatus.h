//===- ExitStatus.h - what the exit status says -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_EXITSTATUS_H
#define SEGUE_TOOLS_SEGUERUN_EXITSTATUS_H

namespace segue::tool {

/// The exit status, for scripts; listed in `segue-run --help`.
enum ExitStatus {
  Done = 0,
  /// A file, an input or the program failed: the message is on stderr.
  Failed = 1,
  /// The command line is wrong.
  WrongUsage = 2,
  /// The loss or the gradient norm was NaN or infinite.
  NotFinite = 3,
  /// An output differs from what was expected.
  Unexpected = 4,
  // 128 and the signal (130, 143): the run was told to end, and did after the
  // step in progress; see Interruption.
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_EXITSTATUS_H
