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

const segue::VectorKernels &segue::vectorKernels() {
  __builtin_cpu_init();
  static const VectorKernels &chosen = __builtin_cpu_supports("x86-64-v4")   ? vectorKernelsV4
                                       : __builtin_cpu_supports("x86-64-v3") ? vectorKernelsV3
                                                                             : vectorKernelsV1;
  return chosen;
}
