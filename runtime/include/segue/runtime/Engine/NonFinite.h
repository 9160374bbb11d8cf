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

/// Final once the work that counts is done.
struct NonFiniteCount {
  std::atomic<int64_t> nans{0}, infs{0};
};

/// Runs of elements that lie side by side. `units` of them are `perUnit` long; where
/// there are no `extents` they follow each other, the last shorter if `elements` ends
/// before it. Else one run begins at each place that `strides`, in elements, lead to.
struct NonFiniteRows {
  ElementType element = ElementType::f32;
  int64_t units = 0, perUnit = 0, elements = 0;
  /// Strides of the outer dimensions, and the step within a run.
  std::vector<int64_t> extents, strides;
  int64_t innerStride = 1;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_NONFINITE_H
