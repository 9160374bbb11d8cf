//===- RetargetView.cpp - a view of an output that lies otherwise ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The dimensions of the view are visited from the smallest stride on. Each
// takes factors of the tensor's dimensions, of which the inner ones may have
// been taken before: the next factor must continue where the last one ended, in
// both layouts.
//
//===----------------------------------------------------------------------===//

#include "RetargetView.h"
#include "segue/runtime/Tensor/Layout.h"
#include <algorithm>
#include <numeric>

namespace segue::inline runtime {

std::optional<std::vector<int64_t>> retargetStrides(std::span<const int64_t> shape, std::span<const int64_t> from,
                                                    std::span<const int64_t> to, std::span<const int64_t> viewShape,
                                                    std::span<const int64_t> viewStrides) {
  std::vector<int64_t> result(viewStrides.begin(), viewStrides.end());
  auto count = checkedElementCount(shape), viewCount = checkedElementCount(viewShape);
  if (!count || count != viewCount || shape.size() != from.size() || shape.size() != to.size() ||
      !checkedSpanBytes(shape, from, 1) || !checkedSpanBytes(shape, to, 1) ||
      !checkedSpanBytes(viewShape, viewStrides, 1))
    return std::nullopt;
  if (*count == 0)
    return result;

  /// Factors of a dimension that are taken, from the inside.
  std::vector<int64_t> taken(shape.size(), 1);
  std::vector<size_t> order(viewShape.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, {}, [&](size_t dim) { return viewStrides[dim]; });
  for (size_t dim : order) {
    // No product below passes the spans that were checked: places are bounded
    // by the last element of either layout, plus one step.
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

} // namespace segue::inline runtime
