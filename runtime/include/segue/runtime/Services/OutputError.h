//===- OutputError.h - what a low form changes of an output -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_OUTPUTERROR_H
#define SEGUE_RUNTIME_SERVICES_OUTPUTERROR_H

#include <cmath>
#include <cstddef>
#include <span>

namespace segue::inline runtime {

/// The relative error of one sample: |high - low| / |high| (L2, f64). 0 / 0 is 0; anything
/// else over 0 is 1; with values that are not finite it is +infinity.
struct OutputError {
  /// Sums of squares.
  double difference = 0, norm = 0;

  /// Adds the values of one more output.
  void add(std::span<const float> high, std::span<const float> low) {
    for (size_t i = 0; i < high.size(); ++i) {
      double h = high[i], l = low[i];
      difference += (h - l) * (h - l);
      norm += h * h;
    }
  }
  double value() const {
    if (!std::isfinite(difference) || !std::isfinite(norm))
      return INFINITY;
    if (norm == 0)
      return difference == 0 ? 0 : 1;
    return std::sqrt(difference) / std::sqrt(norm);
  }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_OUTPUTERROR_H
