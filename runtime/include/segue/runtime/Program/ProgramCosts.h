//===- ProgramCosts.h - what the commands of a program cost -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Estimates for planners, simulated devices and services, from the file alone:
// no device is asked and nothing is prepared.
//
//   for (const CommandCost &cost : commandCosts(program))
//     seconds += std::max(cost.flops / peakFlops, cost.bytes / bandwidth);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_PROGRAMCOSTS_H
#define SEGUE_RUNTIME_PROGRAM_PROGRAMCOSTS_H

#include "segue/runtime/Program/Program.h"

namespace segue::inline runtime {

/// One command that does work.
struct CommandCost {
  /// The kind of the command: "Launch", "Matmul", "Attention", "AttentionGrad", "ToLayout", "Fill".
  std::string kind;
  /// The innermost block that it runs in, or empty.
  std::string block;
  /// The floating point operations; those of a launch are the compiler's estimate, 0 in
  /// files before version 0.2.
  uint64_t flops = 0;
  /// The bytes that are read and written in the device's memory.
  uint64_t bytes = 0;
  /// The place in the source, or empty.
  std::string location;
};

/// Returns the costs of all commands in the order of execution.
std::vector<CommandCost> commandCosts(const Program &program);

/// A RecomputeCost is what computing a saved value again costs; 0 where that is not known.
struct RecomputeCost {
  uint64_t flops = 0;
  /// The bytes moved, op by op, as an upper bound; 0 in files before version 0.2.
  uint64_t bytes = 0;
};

/// Returns a cost per entry of Program::savePoints().
std::vector<RecomputeCost> recomputeCosts(const Program &program);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_PROGRAMCOSTS_H
