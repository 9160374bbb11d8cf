//===- RowStorage.h - rows in 8 bits with one scale -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas of the row storages, of which SquareQ slabs are made: a row of
// f32 becomes one 8-bit code per element and one f32 scale.
//
//   scale = max(absmax / largest, 1e-8)      largest: 127, 448 or 57344
//   code  = round_half_even(w * (1 / scale)) the reciprocal rounded to f32
//   w'    = (code - zeroPoint) * scale       in f32
//
// Multiplying by the rounded reciprocal, not dividing, is part of the format:
// bytes must match what others wrote. int8 codes lie in [-127, 127]; fp8 codes
// are OCP E4M3 (no infinity, saturates at 448) and E5M2 (saturates at 57344),
// to nearest even. The result does not depend on processor or thread.
//
//   std::vector<float> row = ...;
//   std::vector<std::byte> codes(row.size());
//   RowScale result = quantizeRow(row, StorageType::Int8Row, codes);
//   if (result.firstNonFinite >= 0) ...    // report layer, row and column
//
// Pure functions over memory of the caller; any thread may call. No function
// allocates.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_ROWSTORAGE_H
#define SEGUE_RUNTIME_LAYOUT_ROWSTORAGE_H

#include "segue/runtime/Layout/Fp8.h"
#include "segue/runtime/Layout/Layout.h"
#include <cstddef>

namespace segue::inline runtime {

/// The scale of a row is never smaller, so that its reciprocal is finite.
inline constexpr float smallestRowScale = 1e-8f;

/// Returns the largest magnitude of a code: 127, 448 or 57344.
constexpr float largestCode(StorageType storage) {
  return storage == StorageType::Int8Row ? 127.0f : storage == StorageType::Fp8E4M3Row ? 448.0f : 57344.0f;
}

/// The way in which the scale of a row is found.
enum class ScaleSearch : int8_t {
  /// The scale follows from the largest magnitude of the row.
  AbsMax = 0,
  /// The one of scale * {0.85, 0.88, 0.91, 0.94, 0.97, 1.0} that gives the row
  /// the smallest squared error, clamping included; the first of equals.
  Mse = 1,
};

/// A RowScale is the result of quantising one row.
struct RowScale {
  float scale = smallestRowScale;
  /// True if the floor of the scale was taken: the row loses resolution.
  bool floored = false;
  /// The index of the first element that is NaN or infinite, or -1. The scale is then that
  /// of the other elements; infinities saturate, NaN becomes 0 (int8) or NaN (fp8).
  int64_t firstNonFinite = -1;
};

/// Writes one code per element of `row` to `codes`, which must be as long.
RowScale quantizeRow(std::span<const float> row, StorageType storage, std::span<std::byte> codes,
                     ScaleSearch search = ScaleSearch::AbsMax);

/// Writes (code - zeroPoint) * scale to `row`, which must be as long as `codes`.
void dequantizeRow(std::span<const std::byte> codes, StorageType storage, float scale, float zeroPoint,
                   std::span<float> row);

/// Returns the scale of a row whose largest finite magnitude is `absmax`.
constexpr float rowScale(float absmax, StorageType storage) {
  float scale = absmax / largestCode(storage);
  return scale < smallestRowScale ? smallestRowScale : scale;
}

//===----------------------------------------------------------------------===//
// Single codes
//===----------------------------------------------------------------------===//

/// Returns the value of a code of `storage`. The E4M3 codes 0x7f and
/// 0xff are NaN; E5M2 has infinities and NaN as IEEE 754 numbers have.
constexpr float codeToFloat(uint8_t code, StorageType storage) {
  switch (storage) {
  case StorageType::Fp8E4M3Row:
    return (code & 0x7fu) == 0x7fu ? std::bit_cast<float>(uint32_t(code & 0x80u) << 24 | 0x7fc00000u)
                                   : fp8ToFloat<3, 7>(code);
  case StorageType::Fp8E5M2Row:
    return (code & 0x7fu) >= 0x7cu
               ? std::bit_cast<float>(uint32_t(code & 0x80u) << 24 | 0x7f800000u | uint32_t(code & 3u) << 21)
               : fp8ToFloat<2, 15>(code);
  default:
    return float(int8_t(code));
  }
}

/// Returns the code next to `value` (already divided by the scale), to nearest
/// even; what is too large saturates, NaN becomes 0 (int8) or a NaN (fp8).
constexpr uint8_t floatToCode(float value, StorageType storage) {
  bool isNan = value != value;
  if (isNan)
    return storage == StorageType::Int8Row ? 0 : uint8_t(0x7f | (std::bit_cast<uint32_t>(value) >> 24 & 0x80u));
  float largest = largestCode(storage);
  float clamped = value > largest ? largest : value < -largest ? -largest : value;
  switch (storage) {
  case StorageType::Fp8E4M3Row:
    return floatToFp8<3, 7>(clamped);
  case StorageType::Fp8E5M2Row:
    return floatToFp8<2, 15>(clamped);
  default:
    // 1.5 * 2^23: the sum has no bits behind the point, so adding rounds.
    return uint8_t(std::bit_cast<uint32_t>(clamped + 12582912.0f) - std::bit_cast<uint32_t>(12582912.0f));
  }
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_ROWSTORAGE_H
