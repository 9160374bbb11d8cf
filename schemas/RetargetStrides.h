//===- RetargetStrides.h - views of outputs that lie otherwise -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program's commands write an output through a view that is made for its
// declared layout. Where the caller chooses an alternative (Value.alternatives
// in program.fbs), the view gets other strides: which, is said here, for the
// compiler that lists alternatives and for the runtime that verifies and plays
// them.
//
// The dimensions of the view are visited from the smallest stride on. Each
// takes factors of the tensor's dimensions, of which the inner ones may have
// been taken before: the next factor must continue where the last one ended, in
// both layouts.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_RETARGETSTRIDES_H
#define SEGUE_SCHEMAS_RETARGETSTRIDES_H

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace segue::schema {

/// The strides of a view of a whole tensor of `shape` that is laid by `to`, in
/// place of `viewStrides`, which show it laid by `from`. Dimensions of the view
/// may join and split those of the tensor. Dimensions of extent 1 keep their
/// stride. Nothing if the view is not the whole tensor, or if a dimension of it
/// would need two strides.
///
/// All strides in elements. Preconditions: shapes have as many dimensions as
/// their strides; both shapes have one number of elements, which is not 0; the
/// bytes that the three span are numbers of 63 bits.
template <typename Numbers>
std::optional<std::vector<int64_t>> retargetStrides(const Numbers &shape, const Numbers &from, const Numbers &to,
                                                    const Numbers &viewShape, const Numbers &viewStrides) {
  std::vector<int64_t> result(viewStrides.begin(), viewStrides.end());
  /// Factors of a dimension that are taken, from the inside.
  std::vector<int64_t> taken(shape.size(), 1);
  std::vector<size_t> order(viewShape.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return viewStrides[a] < viewStrides[b]; });
  for (size_t dim : order) {
    // No product below exceeds the spans that were checked: places are bounded by the last
    // element of either layout, plus one step.
    int64_t open = viewShape[dim];
    uint64_t place = uint64_t(viewStrides[dim]), newPlace = 0;
    bool first = true;
    while (open > 1) {
      size_t source = 0;
      while (source < shape.size() &&
             (taken[source] == shape[source] || uint64_t(from[source]) * uint64_t(taken[source]) != place))
        ++source;
      if (source == shape.size())
        return std::nullopt;
      int64_t left = shape[source] / taken[source], factor = std::min(left, open);
      if (left % factor != 0 || open % factor != 0)
        return std::nullopt;
      uint64_t start = uint64_t(to[source]) * uint64_t(taken[source]);
      if (first)
        result[dim] = int64_t(start);
      else if (start != newPlace)
        return std::nullopt;
      first = false;
      place *= uint64_t(factor);
      newPlace = start * uint64_t(factor);
      taken[source] *= factor;
      open /= factor;
    }
  }
  return result;
}

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_RETARGETSTRIDES_H
