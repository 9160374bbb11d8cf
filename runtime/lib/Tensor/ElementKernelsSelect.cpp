//===- ElementKernelsSelect.cpp - chooses the loops for this processor ----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Apart from ElementKernels.cpp, which is compiled for processors that this one
// may not be.
//
//===----------------------------------------------------------------------===//

#include "ElementKernels.h"
#include "segue/runtime/Engine/CpuEngine.h"

namespace segue::inline runtime {

const ElementKernels &elementKernels(InstructionSet most) {
  __builtin_cpu_init();
  if (most >= InstructionSet::x86_64_v4 && __builtin_cpu_supports("x86-64-v4"))
    return elementKernelsV4;
  if (most >= InstructionSet::x86_64_v3 && __builtin_cpu_supports("x86-64-v3"))
    return elementKernelsV3;
  return elementKernelsV1;
}

const ElementKernels &elementKernels() {
  static const ElementKernels &best = elementKernels(InstructionSet::x86_64_v4);
  return best;
}

} // namespace segue::inline runtime
