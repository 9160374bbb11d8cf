//===- BlockKernelsSelect.cpp - chooses the loops for this processor ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Apart from BlockKernels.cpp, which is compiled for processors that this one
// may not be.
//
//===----------------------------------------------------------------------===//

#include "BlockKernels.h"
#include "segue/runtime/Engine/CpuEngine.h"

const segue::BlockKernels &segue::blockKernels(InstructionSet most) {
  __builtin_cpu_init();
  if (most >= InstructionSet::x86_64_v4 && __builtin_cpu_supports("x86-64-v4"))
    return blockKernelsV4;
  if (most >= InstructionSet::x86_64_v3 && __builtin_cpu_supports("x86-64-v3"))
    return blockKernelsV3;
  return blockKernelsV1;
}
