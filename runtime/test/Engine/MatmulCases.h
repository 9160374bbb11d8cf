//===- MatmulCases.h - how operands of a product lie ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_ENGINE_MATMULCASES_H
#define SEGUE_RUNTIME_TEST_ENGINE_MATMULCASES_H

#include "segue/runtime/Engine/Matmul.h"
#include <algorithm>

namespace segue::test {

/// How an operand lies in memory.
enum class Lie { Plain, Transposed, Padded, Strided };

struct Extents {
  int64_t batch, m, n, k;
};

inline MatrixView place(ElementType type, int64_t rows, int64_t columns, Lie lie) {
  switch (lie) {
  case Lie::Plain:
    return {type, {rows * columns, columns, 1}};
  case Lie::Transposed:
    return {type, {rows * columns, 1, rows}};
  case Lie::Padded:
    return {type, {rows * (columns + 5) + 3, columns + 5, 1}};
  case Lie::Strided:
    return {type, {rows * columns * 6, columns * 6, 3}};
  }
  return {};
}

/// Returns the number of elements from the first to the last.
inline int64_t span(const MatrixView &view, int64_t batch, int64_t rows, int64_t columns) {
  return 1 + std::max<int64_t>(0, batch - 1) * view.strides[0] + std::max<int64_t>(0, rows - 1) * view.strides[1] +
         std::max<int64_t>(0, columns - 1) * view.strides[2];
}

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_ENGINE_MATMULCASES_H
