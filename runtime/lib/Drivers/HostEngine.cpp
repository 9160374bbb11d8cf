//===- HostEngine.cpp - the engine of devices made of threads -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HostEngine.h"
#include "../Tensor/ElementKernels.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

/// The bytes, numbers or rows that pay for waking another thread.
static constexpr int64_t fillGrain = 256 << 10, addGrain = 1 << 14, scaleGrain = 1 << 16, rotateGrain = 32,
                         restoreGrain = 16;

/// One thread looks at fewer bytes before others are awake (segue-bench-nonfinite).
static constexpr int64_t parallelLookBytes = 2 << 20;

template <typename T>
static void fillWith(const Threads &threads, void *target, uint64_t bytes, uint64_t pattern) {
  T value;
  std::memcpy(&value, &pattern, sizeof(T));
  auto *elements = static_cast<T *>(target);
  threads.parallelFor(int64_t(bytes / sizeof(T)), fillGrain / int64_t(sizeof(T)),
                      [&](int64_t begin, int64_t end) { std::fill(elements + begin, elements + end, value); });
}

void HostEngine::fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) {
  switch (patternBytes) {
  case 1:
    return fillWith<uint8_t>(threads(), target, bytes, pattern);
  case 2:
    return fillWith<uint16_t>(threads(), target, bytes, pattern);
  case 4:
    return fillWith<uint32_t>(threads(), target, bytes, pattern);
  default:
    return fillWith<uint64_t>(threads(), target, bytes, pattern);
  }
}

void HostEngine::add(float *sum, const float *addend, int64_t count) {
  threads().parallelFor(count, addGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      sum[i] += addend[i];
  });
}

void HostEngine::scale(float *data, int64_t count, float factor) {
  threads().parallelFor(count, scaleGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      data[i] *= factor;
  });
}

void HostEngine::rotate(float *rows, int64_t count, int64_t columns) {
  threads().parallelFor(count, rotateGrain, [&](int64_t begin, int64_t end) {
    rotateRows({rows + begin * columns, size_t((end - begin) * columns)});
  });
}

void HostEngine::restore(const LowBitRows &rows) {
  threads().parallelFor(rows.count, restoreGrain, [&](int64_t begin, int64_t end) {
    restoreRows(rows.rotated, rows.rank, rows.a, rows.b, begin, rows.columns,
                {rows.rows + begin * rows.columns, size_t((end - begin) * rows.columns)});
  });
}

/// Returns the place at which run `index` begins, in elements from the first.
static int64_t offsetOf(const NonFiniteRows &rows, int64_t index) {
  int64_t offset = 0;
  for (size_t dim = rows.extents.size(); dim-- > 0;) {
    offset += index % rows.extents[dim] * rows.strides[dim];
    index /= rows.extents[dim];
  }
  return offset;
}

static void countUnits(const NonFiniteRows &rows, const std::byte *first, int64_t begin, int64_t end,
                       NonFiniteCount &count) {
  auto look = elementKernels().countNonFinite[size_t(rows.element)];
  int64_t bytes = int64_t(byteSize(rows.element)), counts[2] = {0, 0};
  for (int64_t unit = begin; unit < end; ++unit) {
    if (rows.extents.empty()) {
      int64_t from = unit * rows.perUnit;
      look(std::min(rows.perUnit, rows.elements - from), first + from * bytes, counts);
      continue;
    }
    const std::byte *row = first + offsetOf(rows, unit) * bytes;
    if (rows.innerStride == 1) {
      look(rows.perUnit, row, counts);
      continue;
    }
    for (int64_t i = 0; i < rows.perUnit; ++i)
      look(1, row + i * rows.innerStride * bytes, counts);
  }
  if (counts[0])
    count.nans.fetch_add(counts[0], std::memory_order_relaxed);
  if (counts[1])
    count.infs.fetch_add(counts[1], std::memory_order_relaxed);
}

void HostEngine::countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) {
  int64_t bytes = rows.units * rows.perUnit * int64_t(byteSize(rows.element));
  Threads chosen(bytes < parallelLookBytes ? 1 : threads().count());
  chosen.parallelFor(rows.units, 1, [&](int64_t begin, int64_t end) {
    countUnits(rows, static_cast<const std::byte *>(data), begin, end, count);
  });
}

} // namespace segue::inline runtime
