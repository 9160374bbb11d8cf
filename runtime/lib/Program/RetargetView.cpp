//===- RetargetView.cpp - a view of an output that lies otherwise ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Numbers from files are checked here; what they mean is in schemas/, where the
// compiler finds it too.
//
//===----------------------------------------------------------------------===//

#include "RetargetView.h"
#include "RetargetStrides.h"
#include "segue/runtime/Layout/Layout.h"

namespace segue::inline runtime {

std::optional<std::vector<int64_t>> retargetStrides(std::span<const int64_t> shape, std::span<const int64_t> from,
                                                    std::span<const int64_t> to, std::span<const int64_t> viewShape,
                                                    std::span<const int64_t> viewStrides) {
  auto count = checkedElementCount(shape), viewCount = checkedElementCount(viewShape);
  if (!count || count != viewCount || shape.size() != from.size() || shape.size() != to.size() ||
      !checkedSpanBytes(shape, from, 1) || !checkedSpanBytes(shape, to, 1) ||
      !checkedSpanBytes(viewShape, viewStrides, 1))
    return std::nullopt;
  if (*count == 0)
    return std::vector<int64_t>(viewStrides.begin(), viewStrides.end());
  return schema::retargetStrides(shape, from, to, viewShape, viewStrides);
}

} // namespace segue::inline runtime
