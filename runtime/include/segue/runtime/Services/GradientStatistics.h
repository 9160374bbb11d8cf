//===- GradientStatistics.h - how large a unit's gradients are --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Adds up, in f64, the outputs of backward programs whose role is statistics.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_GRADIENTSTATISTICS_H
#define SEGUE_RUNTIME_SERVICES_GRADIENTSTATISTICS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace segue::inline runtime {

/// Sums over all elements of all gradients of a unit.
struct GradientStatistics {
  double squares = 0, greatest = 0, sum = 0, count = 0;

  /// Adds one part, an f32 [4] as the pass segue-gradient-statistics writes it. A part that
  /// is not finite makes the sums not finite: no maximum hides it.
  void add(std::span<const float, 4> part) {
    squares += double(part[0]);
    greatest = std::isnan(part[1]) ? double(part[1]) : std::max(greatest, double(part[1]));
    sum += double(part[2]);
    count += double(part[3]);
  }

  double l2() const { return std::sqrt(squares); }
  /// Returns the population's variance; 0 without elements.
  double variance() const {
    if (count == 0)
      return 0;
    double mean = sum / count;
    return std::max(0.0, squares / count - mean * mean);
  }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_GRADIENTSTATISTICS_H
