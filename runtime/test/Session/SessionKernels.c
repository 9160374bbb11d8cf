/*===- SessionKernels.c - the kernels of the session's test modules --------===*\
|*
|* Licensed under the Apache License v2.0 with LLVM Exceptions.
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
|*
|*===----------------------------------------------------------------------===*|
|*
|* Vectors have 8 elements. What sums runs as one piece.
|*
\*===----------------------------------------------------------------------===*/

#include <stdint.h>

enum { N = 8 };

/* c = a * b */
int64_t mul(void *const *args, int64_t begin, int64_t end) {
  const float *a = args[0], *b = args[1];
  float *c = args[2];
  for (int64_t i = begin; i < end; ++i)
    c[i] = a[i] * b[i];
  return 0;
}

/* c = a + b */
int64_t add(void *const *args, int64_t begin, int64_t end) {
  const float *a = args[0], *b = args[1];
  float *c = args[2];
  for (int64_t i = begin; i < end; ++i)
    c[i] = a[i] + b[i];
  return 0;
}

/* loss = sum (p - y)^2 */
int64_t square_error(void *const *args, int64_t begin, int64_t end) {
  const float *p = args[0], *y = args[1];
  float sum = 0;
  for (int64_t i = 0; i < N; ++i)
    sum += (p[i] - y[i]) * (p[i] - y[i]);
  *(float *)args[2] = sum;
  return 0;
}

/* d = 2 (p - y) * grad_loss + grad_p */
int64_t square_error_grad(void *const *args, int64_t begin, int64_t end) {
  const float *p = args[0], *y = args[1], *loss = args[2], *grad = args[3];
  float *d = args[4];
  for (int64_t i = begin; i < end; ++i)
    d[i] = 2 * (p[i] - y[i]) * *loss + grad[i];
  return 0;
}

/* out = sum g^2 */
int64_t square_sum(void *const *args, int64_t begin, int64_t end) {
  const float *g = args[0];
  float sum = 0;
  for (int64_t i = 0; i < N; ++i)
    sum += g[i] * g[i];
  *(float *)args[1] = sum;
  return 0;
}

/* out = sum g */
int64_t vector_sum(void *const *args, int64_t begin, int64_t end) {
  const float *g = args[0];
  float sum = 0;
  for (int64_t i = 0; i < N; ++i)
    sum += g[i];
  *(float *)args[1] = sum;
  return 0;
}

/* b = a */
int64_t copy(void *const *args, int64_t begin, int64_t end) {
  const float *a = args[0];
  float *b = args[1];
  for (int64_t i = begin; i < end; ++i)
    b[i] = a[i];
  return 0;
}

/* u' = 0.5 u + clip g, p' = p - lr u'. A learning rate below 0 is refused as
   if it were an index outside of its table, so that tests can fail midway. */
int64_t sgd(void *const *args, int64_t begin, int64_t end) {
  const float *p = args[0], *g = args[1], *u = args[2], *lr = args[3], *clip = args[4];
  float *newP = args[5], *newU = args[6];
  if (*lr < 0)
    return 4;
  for (int64_t i = begin; i < end; ++i) {
    float momentum = 0.5f * u[i] + *clip * g[i];
    newU[i] = momentum;
    newP[i] = p[i] - *lr * momentum;
  }
  return 0;
}

/* The same, which refuses rates above 1, too, and late: when it is queued, whoever
   has queued it goes on long before. */
int64_t sgd_of_small_rates(void *const *args, int64_t begin, int64_t end) {
  const float *lr = args[3];
  if (*lr <= 1)
    return sgd(args, begin, end);
  for (volatile int64_t i = 0; i < 20000000; ++i)
    ;
  return 4;
}

/* y = x + seed % 1000 + 100 step */
int64_t add_hypers(void *const *args, int64_t begin, int64_t end) {
  const float *x = args[0];
  const int64_t *seed = args[1], *step = args[2];
  float *y = args[3];
  for (int64_t i = begin; i < end; ++i)
    y[i] = x[i] + (float)(*seed % 1000) + 100 * (float)*step;
  return 0;
}
