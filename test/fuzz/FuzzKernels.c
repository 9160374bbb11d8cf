//===- FuzzKernels.c - what kernels of hostile files are replaced by ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// No check of a file can say what its native code does: the fuzz target runs
// these instead, so that everything around a kernel runs as for any other.
//
//===----------------------------------------------------------------------===//

#include <stdint.h>

int64_t nothing(void *const *args, int64_t begin, int64_t end);
int64_t failing(void *const *args, int64_t begin, int64_t end);

int64_t nothing(void *const *args, int64_t begin, int64_t end) {
  (void)args, (void)begin, (void)end;
  return 0;
}

/// "Argument 0 holds an index outside of its table."
int64_t failing(void *const *args, int64_t begin, int64_t end) {
  (void)args, (void)begin, (void)end;
  return 1;
}
