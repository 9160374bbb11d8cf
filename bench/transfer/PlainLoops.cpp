//===- PlainLoops.cpp - what anybody would write --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlainLoops.h"
#include <algorithm>
#include <cmath>
#include <cstring>

void segue::bench::plainCopy(const std::byte *source, std::byte *target, size_t bytes, int threads) {
  size_t part = (bytes / size_t(threads) + 63) & ~size_t(63);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int thread = 0; thread < threads; ++thread) {
    size_t begin = std::min(part * size_t(thread), bytes), end = std::min(begin + part, bytes);
    std::memcpy(target + begin, source + begin, end - begin);
  }
}

void segue::bench::plainQuantize(const float *source, int8_t *codes, float *scales, int64_t rows, int64_t columns,
                                 int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row) {
    const float *from = source + row * columns;
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < columns; ++i)
      largest = std::max(largest, std::fabs(from[i]));
    float inverse = largest > 0 ? 127 / largest : 0;
    scales[row] = largest / 127;
    int8_t *to = codes + row * columns;
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i)
      to[i] = int8_t(std::nearbyint(from[i] * inverse));
  }
}

void segue::bench::plainDequantize(const int8_t *codes, const float *scales, float *target, int64_t rows,
                                   int64_t columns, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row)
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i)
      target[row * columns + i] = scales[row] * codes[row * columns + i];
}
