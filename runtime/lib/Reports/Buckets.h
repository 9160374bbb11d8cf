//===- Buckets.h - as many points as a chart can show -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_REPORTS_BUCKETS_H
#define SEGUE_RUNTIME_LIB_REPORTS_BUCKETS_H

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// Returns half-open ranges of `count` entries, at most `points` of them and about equal.
inline std::vector<std::pair<size_t, size_t>> bucketsOf(size_t count, size_t points) {
  std::vector<std::pair<size_t, size_t>> buckets;
  size_t number = std::min(count, points);
  for (size_t i = 0; i < number; ++i)
    buckets.emplace_back(count * i / number, count * (i + 1) / number);
  return buckets;
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_REPORTS_BUCKETS_H
