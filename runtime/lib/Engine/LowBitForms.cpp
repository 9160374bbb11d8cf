//===- LowBitForms.cpp - rotation and low rank beside 4-bit codes ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rotation is the fast transform: eight passes of sums and differences at distances 1, 2,
// 4, ... 128. The division by 16 is exact.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/LowBitForms.h"
#include <cassert>

namespace segue::inline runtime {

void rotateRows(std::span<float> rows) {
  assert(rows.size() % size_t(rotationBlock) == 0);
  for (size_t begin = 0; begin < rows.size(); begin += size_t(rotationBlock)) {
    float *block = rows.data() + begin;
    for (int64_t distance = 1; distance < rotationBlock; distance *= 2)
      for (int64_t first = 0; first < rotationBlock; first += 2 * distance)
        for (int64_t i = first; i < first + distance; ++i) {
          float a = block[i], b = block[i + distance];
          block[i] = a + b;
          block[i + distance] = a - b;
        }
    for (int64_t i = 0; i < rotationBlock; ++i)
      block[i] *= 0.0625f;
  }
}

void restoreRows(bool rotated, int64_t rank, const float *a, const float *b, int64_t first, int64_t columns,
                 std::span<float> rows) {
  if (rotated)
    rotateRows(rows);
  for (int64_t row = 0; row * columns < int64_t(rows.size()); ++row)
    for (int64_t r = 0; r < rank; ++r) {
      float factor = a[(first + row) * rank + r];
      for (int64_t j = 0; j < columns; ++j)
        rows[size_t(row * columns + j)] += factor * b[r * columns + j];
    }
}

} // namespace segue::inline runtime
