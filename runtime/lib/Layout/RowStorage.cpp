//===- RowStorage.cpp - rows in 8 bits with one scale ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/RowStorage.h"
#include <algorithm>
#include <cassert>

namespace segue::inline runtime {

static constexpr uint32_t infinityBits = 0x7f800000u;

static uint32_t magnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

/// Returns the largest magnitude as bits: magnitudes compare as their bits do, which also keeps NaN in sight.
static uint32_t largestMagnitude(std::span<const float> row) {
  uint32_t largest = 0;
  for (float value : row)
    largest = std::max(largest, magnitudeBits(value));
  return largest;
}

static uint32_t largestFiniteMagnitude(std::span<const float> row) {
  uint32_t largest = 0;
  for (float value : row)
    largest = std::max(largest, magnitudeBits(value) < infinityBits ? magnitudeBits(value) : 0);
  return largest;
}

/// Returns the squared error of the finite elements of a row. Sixteen sums are kept side by
/// side, in f64, so that the order of additions is the same on every processor.
static double squaredError(std::span<const float> row, StorageType storage, float scale) {
  constexpr size_t lanes = 16;
  double sums[lanes] = {};
  float inverse = 1.0f / scale;
  for (size_t i = 0; i < row.size(); ++i) {
    if (magnitudeBits(row[i]) >= infinityBits)
      continue;
    float restored = codeToFloat(floatToCode(row[i] * inverse, storage), storage) * scale;
    double error = double(row[i]) - double(restored);
    sums[i % lanes] += error * error;
  }
  double sum = 0;
  for (double part : sums)
    sum += part;
  return sum;
}

static float searchScale(std::span<const float> row, StorageType storage, float scale) {
  constexpr float factors[] = {0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f};
  float best = scale;
  double least = 0;
  for (float factor : factors) {
    float candidate = scale * factor;
    double error = squaredError(row, storage, candidate);
    if (factor == factors[0] || error < least) {
      least = error;
      best = candidate;
    }
  }
  return best;
}

RowScale quantizeRow(std::span<const float> row, StorageType storage, std::span<std::byte> codes, ScaleSearch search) {
  assert(isRowStorage(storage) && codes.size() == row.size());
  RowScale result;
  uint32_t largest = largestMagnitude(row);
  if (largest >= infinityBits) {
    auto isNonFinite = [](float value) { return magnitudeBits(value) >= infinityBits; };
    result.firstNonFinite = std::ranges::find_if(row, isNonFinite) - row.begin();
    largest = largestFiniteMagnitude(row);
  }
  float absmax = std::bit_cast<float>(largest);
  result.scale = rowScale(absmax, storage);
  result.floored = absmax / largestCode(storage) < smallestRowScale;
  if (search == ScaleSearch::Mse)
    result.scale = searchScale(row, storage, result.scale);
  float inverse = 1.0f / result.scale;
  for (size_t i = 0; i < row.size(); ++i)
    codes[i] = std::byte(floatToCode(row[i] * inverse, storage));
  return result;
}

void dequantizeRow(std::span<const std::byte> codes, StorageType storage, float scale, float zeroPoint,
                   std::span<float> row) {
  assert(isRowStorage(storage) && codes.size() == row.size());
  for (size_t i = 0; i < codes.size(); ++i)
    row[i] = (codeToFloat(uint8_t(codes[i]), storage) - zeroPoint) * scale;
}

} // namespace segue::inline runtime
