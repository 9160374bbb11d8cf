//===- NonFinite.h - NaN and Inf of memory ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_NONFINITE_H
#define SEGUE_RUNTIME_ENGINE_NONFINITE_H

#include "segue/runtime/Layout/ElementType.h"
#include <atomic>
#include <cstdint>
#include <vector>

namespace segue::inline runtime {

/// The NaN and Inf that were counted, which are final once the work that counts is done.
struct NonFiniteCount {
  std::atomic<int64_t> nans{0}, infs{0};
};

/// Runs of adjacent elements, `units` of them, each `perUnit` long. Without `extents` they
/// follow each other, and the last one is shorter if `elements` ends before it does. With
/// `extents`, one run begins at each place that `strides`, in elements, lead to.
struct NonFiniteRows {
  ElementType element = ElementType::f32;
  int64_t units = 0, perUnit = 0, elements = 0;
  /// The extents and strides of the outer dimensions, and the step within a run.
  std::vector<int64_t> extents, strides;
  int64_t innerStride = 1;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_NONFINITE_H
