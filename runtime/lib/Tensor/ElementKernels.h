//===- ElementKernels.h - loops over runs of elements -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Conversions of runs of elements that lie side by side: every element type to
// and from f32 and f64, integers to and from i64, codes of row storages to and
// from f32. Two of them make any conversion. ElementKernels.cpp is compiled for
// x86-64, x86-64-v3 and x86-64-v4; all give the same bits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TENSOR_ELEMENTKERNELS_H
#define SEGUE_RUNTIME_LIB_TENSOR_ELEMENTKERNELS_H

#include "segue/runtime/Layout/ElementType.h"
#include <cstdint>

namespace segue::inline runtime {

struct ElementKernels {
  const char *name;

  /// One per ElementType, in its order, with the meaning of the `cast` op; null where
  /// there is nothing to do or the type is no integer.
  void (*toFloat[elementTypeCount])(int64_t count, const void *source, float *target);
  void (*fromFloat[elementTypeCount])(int64_t count, const float *source, void *target);
  void (*toDouble[elementTypeCount])(int64_t count, const void *source, double *target);
  void (*fromDouble[elementTypeCount])(int64_t count, const double *source, void *target);
  void (*toInt64[elementTypeCount])(int64_t count, const void *source, int64_t *target);
  void (*fromInt64[elementTypeCount])(int64_t count, const int64_t *source, void *target);
  /// Convert as fromFloat does, but to the nearest integer; null for floats.
  void (*roundFloat[elementTypeCount])(int64_t count, const float *source, void *target);

  /// These and the following tables are by row storage: int8, fp8 E4M3, fp8 E5M2. `decode`
  /// gives (code - zeroPoint) * scale for one row, `decodeEach` for one row per element;
  /// its `zeroPoints` may be null.
  void (*decode[3])(int64_t count, const uint8_t *codes, float scale, float zeroPoint, float *target);
  void (*decodeEach[3])(int64_t count, const uint8_t *codes, const float *scales, const float *zeroPoints,
                        float *target);
  /// Give the code of source * (1 / scale).
  void (*encode[3])(int64_t count, const float *source, float scale, uint8_t *codes);
  void (*encodeEach[3])(int64_t count, const float *source, const float *scales, uint8_t *codes);

  /// Gives code * scale for codes of group storages, from an even index on; an odd count
  /// leaves out the last high half.
  void (*decodeInt4)(int64_t count, const uint8_t *codes, float scale, float *target);

  /// Give the largest magnitude, as bits (which order as magnitudes do, infinity and NaN
  /// above numbers); the second of the finite elements only.
  uint32_t (*largest)(int64_t count, const float *source);
  uint32_t (*largestFinite)(int64_t count, const float *source);
  /// Take each element as a row of its own: largest[i] = max(largest[i], |source[i]|).
  void (*largestEach)(int64_t count, const float *source, uint32_t *largest);
  void (*largestFiniteEach)(int64_t count, const float *source, uint32_t *largest);

  /// One per ElementType, null for integers: counts[0] += NaNs, counts[1] += infinities.
  void (*countNonFinite[elementTypeCount])(int64_t count, const void *source, int64_t *counts);

  /// Does sums[i % 16] += (source[i] - restored[i])^2 where source[i] is finite.
  void (*addSquaredError)(int64_t count, const float *source, const float *restored, double *sums);
};

extern const ElementKernels elementKernelsV1, elementKernelsV3, elementKernelsV4;

enum class InstructionSet : int8_t;

/// Returns the best table up to `most` that this processor runs.
const ElementKernels &elementKernels(InstructionSet most);
/// Returns the best table of all.
const ElementKernels &elementKernels();

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TENSOR_ELEMENTKERNELS_H
