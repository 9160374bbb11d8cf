//===- WorkingMemory.h - what a program computes in -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Values that are made and read within one run of a program share an arena, which
// the books of a device know as one block. Which of them make it as large as it is
// follows from the file alone: the compiler has packed them for the command at
// which they take the most, and says where each lies.
//
//   for (const WorkingMemory &memory : workingMemory(program))
//     for (const Temporary &value : memory.values)
//       print(value.bytes, value.maker, value.location);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_WORKINGMEMORY_H
#define SEGUE_RUNTIME_PROGRAM_WORKINGMEMORY_H

#include "segue/runtime/Program/Program.h"

namespace segue::inline runtime {

/// A value that one run of a program makes and reads.
struct Temporary {
  uint64_t bytes = 0;
  /// The command that writes it first: the name of a launch's kernel, or the kind of another command.
  std::string maker;
  /// The innermost block of that command, and its place in the source; each may be empty.
  std::string block, location;
};

/// One arena of a program.
struct WorkingMemory {
  Space space = Space::DeviceDram;
  /// The size of the arena. What the values below leave of it lies between them, or is there for their alignment.
  uint64_t bytes = 0;
  /// The values at the command at which they take the most; most bytes first, then in the order in which they are made. A
  /// value that is made in the place of another, in that command, stands for both.
  std::vector<Temporary> values;
};

/// Returns the arenas of a program in the order of the file; walks all commands.
std::vector<WorkingMemory> workingMemory(const Program &program);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_WORKINGMEMORY_H
