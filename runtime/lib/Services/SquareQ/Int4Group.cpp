//===- Int4Group.cpp - rows in 4 bits with a scale per group --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/Int4Group.h"
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace segue::inline runtime {

static constexpr float largestInt4 = 7.0f, smallestInt4 = -8.0f;
/// As for the row storages: the first minimum wins.
static constexpr float searchFactors[] = {0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f};

static float usable(float value) { return std::isfinite(value) ? value : 0.0f; }

static float codeOf(float value, float scale) {
  float clamped = std::clamp(usable(value) / scale, smallestInt4, largestInt4);
  // 1.5 * 2^23: the sum has no bits behind the point, so adding rounds.
  return (clamped + 12582912.0f) - 12582912.0f;
}

/// A scale that is 0 or denormal would divide to infinity, or differently
/// where denormals are flushed: such a group is stored as zeros.
static uint16_t storedScale(float scale) {
  uint16_t bits = floatToBf16(scale);
  return bf16ToFloat(bits) < FLT_MIN ? floatToBf16(1.0f) : bits;
}

static uint16_t groupScale(std::span<const float> group, ScaleSearch search) {
  float absmax = 0;
  for (float value : group)
    absmax = std::max(absmax, std::fabs(usable(value)));
  float scale = absmax / largestInt4;
  if (search == ScaleSearch::AbsMax)
    return storedScale(scale);
  uint16_t best = 0;
  double least = INFINITY;
  for (float factor : searchFactors) {
    uint16_t bits = storedScale(scale * factor);
    float candidate = bf16ToFloat(bits);
    double error = 0;
    for (float value : group) {
      double difference = double(usable(value)) - double(codeOf(value, candidate) * candidate);
      error += difference * difference;
    }
    if (error < least) {
      least = error;
      best = bits;
    }
  }
  return best;
}

int64_t quantizeInt4Row(std::span<const float> row, int64_t group, std::span<std::byte> codes,
                        std::span<uint16_t> scales, ScaleSearch search) {
  int64_t firstNonFinite = -1;
  for (size_t begin = 0; begin < row.size(); begin += size_t(group)) {
    std::span<const float> values = row.subspan(begin, size_t(group));
    uint16_t bits = groupScale(values, search);
    scales[begin / size_t(group)] = bits;
    float scale = bf16ToFloat(bits);
    for (size_t i = 0; i < values.size(); i += 2) {
      int even = int(codeOf(values[i], scale)), odd = int(codeOf(values[i + 1], scale));
      codes[(begin + i) / 2] = std::byte((even & 15) | (odd & 15) << 4);
    }
    for (size_t i = 0; i < values.size() && firstNonFinite < 0; ++i)
      if (!std::isfinite(values[i]))
        firstNonFinite = int64_t(begin + i);
  }
  return firstNonFinite;
}

void dequantizeInt4Row(std::span<const std::byte> codes, std::span<const uint16_t> scales, int64_t group,
                       std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    int nibble = int(codes[i / 2]) >> (i % 2 ? 4 : 0) & 15;
    row[i] = float(nibble >= 8 ? nibble - 16 : nibble) * bf16ToFloat(scales[i / size_t(group)]);
  }
}

void storeFloats(std::span<const float> values, ElementType element, std::byte *to) {
  if (element == ElementType::f32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  for (float value : values) {
    uint16_t bits = element == ElementType::bf16 ? floatToBf16(value) : floatToF16(value);
    std::memcpy(to, &bits, sizeof bits);
    to += sizeof bits;
  }
}

/// Columns that are decoded at once: a multiple of every group.
static constexpr int64_t piece = 256;

void Int4Weight::dequantizeRow(int64_t row, ElementType element, std::byte *to) const {
  std::array<float, piece> values;
  std::array<uint16_t, piece / 32> scales;
  for (int64_t begin = 0; begin < size_.in; begin += piece) {
    int64_t columns = std::min(piece, size_.padded - begin), groups = columns / group_;
    for (int64_t g = 0; g < groups; ++g)
      std::memcpy(&scales[size_t(g)], scales_ + 2 * ((begin / group_ + g) * size_.out + row), 2);
    std::span<float> decoded(values.data(), size_t(std::min(columns, size_.in - begin)));
    dequantizeInt4Row({codes_ + (row * size_.padded + begin) / 2, size_t(columns / 2)}, {scales.data(), size_t(groups)},
                      group_, decoded);
    storeFloats(decoded, element, to + uint64_t(begin) * byteSize(element));
  }
}

} // namespace segue::inline runtime
