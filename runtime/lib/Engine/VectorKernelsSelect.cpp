//===- VectorKernelsSelect.cpp - chooses the inner loops for this processor ===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Apart from VectorKernels.cpp, which is compiled for processors that this one
// may not be.
//
//===----------------------------------------------------------------------===//

#include "VectorKernels.h"
#include "segue/runtime/Engine/CpuEngine.h"

const segue::VectorKernels &segue::vectorKernels(InstructionSet most) {
  __builtin_cpu_init();
  if (most >= InstructionSet::x86_64_v4 && __builtin_cpu_supports("x86-64-v4"))
    return vectorKernelsV4;
  if (most >= InstructionSet::x86_64_v3 && __builtin_cpu_supports("x86-64-v3"))
    return vectorKernelsV3;
  return vectorKernelsV1;
}
