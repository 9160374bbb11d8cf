/*===- TestKernels.c - kernels as the compiler would make them -------------===*\
|*
|* Licensed under the Apache License v2.0 with LLVM Exceptions.
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
|*
|*===----------------------------------------------------------------------===*|
|*
|* Each has the entry symbol of schemas/binary.fbs: 0, or 1 + the argument
|* that holds an index outside of its table.
|*
\*===----------------------------------------------------------------------===*/

#include <stdint.h>

/* c = a + b, f32 */
int64_t add_f32(void *const *args, int64_t begin, int64_t end) {
  const float *a = args[0], *b = args[1];
  float *c = args[2];
  for (int64_t i = begin; i < end; ++i)
    c[i] = a[i] + b[i];
  return 0;
}

/* y = 2 x, f32 */
int64_t double_f32(void *const *args, int64_t begin, int64_t end) {
  const float *x = args[0];
  float *y = args[1];
  for (int64_t i = begin; i < end; ++i)
    y[i] = 2 * x[i];
  return 0;
}

/* out[i] = table[indices[i]] of 4 f32 */
int64_t gather_f32(void *const *args, int64_t begin, int64_t end) {
  const float *table = args[0];
  const int64_t *indices = args[1];
  float *out = args[2];
  for (int64_t i = begin; i < end; ++i) {
    if (indices[i] < 0 || indices[i] >= 4)
      return 2;
    out[i] = table[indices[i]];
  }
  return 0;
}
