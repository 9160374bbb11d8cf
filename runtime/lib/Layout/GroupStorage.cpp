//===- GroupStorage.cpp - rows in 4 bits with a scale per group -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/GroupStorage.h"
#include <algorithm>
#include <cfloat>
#include <cmath>

namespace segue::inline runtime {

/// The first minimum wins, as for the row storages.
static constexpr float searchFactors[] = {0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f};

static uint16_t groupScale(std::span<const float> group, ScaleSearch search) {
  float absmax = 0;
  for (float value : group)
    absmax = std::max(absmax, std::fabs(groupValue(value)));
  float scale = absmax / largestInt4;
  if (search == ScaleSearch::AbsMax)
    return storedGroupScale(scale);
  uint16_t best = 0;
  double least = INFINITY;
  for (float factor : searchFactors) {
    uint16_t bits = storedGroupScale(scale * factor);
    float candidate = bf16ToFloat(bits);
    double error = 0;
    for (float value : group) {
      double difference = double(groupValue(value)) - double(groupCode(value, candidate) * candidate);
      error += difference * difference;
    }
    if (error < least) {
      least = error;
      best = bits;
    }
  }
  return best;
}

GroupScale quantizeGroup(std::span<const float> group, std::byte *codes, ScaleSearch search) {
  GroupScale result{.scale = groupScale(group, search)};
  float scale = bf16ToFloat(result.scale);
  for (size_t i = 0; i < group.size(); i += 2) {
    int even = int(groupCode(group[i], scale)), odd = int(groupCode(group[i + 1], scale));
    codes[i / 2] = std::byte((even & 15) | (odd & 15) << 4);
  }
  auto nonFinite = std::ranges::find_if(group, [](float value) { return !std::isfinite(value); });
  if (nonFinite != group.end())
    result.firstNonFinite = nonFinite - group.begin();
  return result;
}

int64_t quantizeInt4Row(std::span<const float> row, int64_t group, std::span<std::byte> codes,
                        std::span<uint16_t> scales, ScaleSearch search) {
  int64_t firstNonFinite = -1;
  for (int64_t begin = 0, g = 0; begin < int64_t(row.size()); begin += group, ++g) {
    GroupScale result = quantizeGroup(row.subspan(size_t(begin), size_t(group)), &codes[size_t(begin / 2)], search);
    scales[size_t(g)] = result.scale;
    if (firstNonFinite < 0 && result.firstNonFinite >= 0)
      firstNonFinite = begin + result.firstNonFinite;
  }
  return firstNonFinite;
}

void dequantizeInt4Row(std::span<const std::byte> codes, std::span<const uint16_t> scales, int64_t group,
                       std::span<float> row) {
  for (int64_t i = 0; i < int64_t(row.size()); ++i)
    row[size_t(i)] = float(int4Code(codes.data(), i)) * bf16ToFloat(scales[size_t(i / group)]);
}

} // namespace segue::inline runtime
