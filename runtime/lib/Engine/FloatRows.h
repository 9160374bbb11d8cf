//===- FloatRows.h - rows of any float type as f32 --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The inner loops know f32 alone. These functions widen 16-bit operands into
// scratch and narrow results from it, row by row.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_FLOATROWS_H
#define SEGUE_RUNTIME_LIB_ENGINE_FLOATROWS_H

#include "VectorKernels.h"
#include "segue/runtime/Layout/ElementType.h"
#include <cassert>
#include <cstring>

namespace segue::inline runtime {

/// Returns the address of the element `index` elements after `base`.
inline const void *advance(const void *base, ElementType type, int64_t index) {
  return static_cast<const char *>(base) + index * static_cast<int64_t>(byteSize(type));
}
inline void *advance(void *base, ElementType type, int64_t index) {
  return static_cast<char *>(base) + index * static_cast<int64_t>(byteSize(type));
}

/// Asks for rows that will be read, or written, soon: a few rows ahead of their
/// use hides that each begins on another page, where the processor's own
/// prefetching stops.
template <bool kWrite = false>
inline void prefetchRows(ElementType type, int64_t rows, int64_t columns, const void *base, int64_t rowStep) {
  constexpr int64_t kLine = 64;
  int64_t bytes = columns * static_cast<int64_t>(byteSize(type));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t at = 0; at < bytes; at += kLine)
      __builtin_prefetch(static_cast<const char *>(advance(base, type, row * rowStep)) + at, kWrite, /*locality=*/2);
}

/// Copies `count` adjacent elements to f32.
inline void widen(const VectorKernels &kernels, ElementType type, int64_t count, const void *source, float *target) {
  assert(isComputedInF32(type));
  if (type == ElementType::f32)
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
  else if (type == ElementType::bf16)
    kernels.widenBf16(count, static_cast<const uint16_t *>(source), target);
  else
    kernels.widenF16(count, static_cast<const uint16_t *>(source), target);
}

/// Copies `count` f32 to adjacent elements of `type`.
inline void narrow(const VectorKernels &kernels, ElementType type, int64_t count, const float *source, void *target) {
  assert(isComputedInF32(type));
  if (type == ElementType::f32)
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
  else if (type == ElementType::bf16)
    kernels.narrowBf16(count, source, static_cast<uint16_t *>(target));
  else
    kernels.narrowF16(count, source, static_cast<uint16_t *>(target));
}

/// Widens rows: `rowStep` elements of the source from one to the next,
/// `targetStep` floats of the target.
inline void widenRows(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t columns, const void *source,
                      int64_t rowStep, float *target, int64_t targetStep) {
  constexpr int64_t kAhead = 8;
  for (int64_t row = 0; row < rows; ++row) {
    if (row + kAhead < rows)
      prefetchRows(type, 1, columns, advance(source, type, (row + kAhead) * rowStep), 0);
    widen(kernels, type, columns, advance(source, type, row * rowStep), target + row * targetStep);
  }
}
inline void narrowRows(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t columns,
                       const float *source, int64_t sourceStep, void *target, int64_t rowStep) {
  constexpr int64_t kAhead = 8;
  for (int64_t row = 0; row < rows; ++row) {
    if (row + kAhead < rows)
      prefetchRows</*kWrite=*/true>(type, 1, columns, advance(target, type, (row + kAhead) * rowStep), 0);
    narrow(kernels, type, columns, source + row * sourceStep, advance(target, type, row * rowStep));
  }
}

/// Packs `outerCount` rows of a left matrix, or columns of a right one, over `depthCount` of the depth into panels of
/// `width`, from `source` on; the steps are in elements. `wide` has room for all of them where they are not f32.
inline void packBlock(const VectorKernels &kernels, ElementType type, const void *source, int64_t outerCount,
                      int64_t outerStep, int64_t depthCount, int64_t depthStep, float *wide, float *target,
                      int64_t width) {
  if (type == ElementType::f32) {
    kernels.pack(outerCount, depthCount, static_cast<const float *>(source), outerStep, depthStep, target, width);
  } else if (outerStep == 1) {
    widenRows(kernels, type, depthCount, outerCount, source, depthStep, wide, outerCount);
    kernels.pack(outerCount, depthCount, wide, 1, outerCount, target, width);
  } else {
    if (depthStep == 1)
      widenRows(kernels, type, outerCount, depthCount, source, outerStep, wide, depthCount);
    else
      for (int64_t i = 0; i < outerCount; ++i)
        widenRows(kernels, type, depthCount, 1, advance(source, type, i * outerStep), depthStep,
                  wide + i * depthCount, 1);
    kernels.pack(outerCount, depthCount, wide, depthCount, 1, target, width);
  }
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_FLOATROWS_H
