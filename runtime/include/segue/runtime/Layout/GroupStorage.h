//===- GroupStorage.h - rows in 4 bits with a scale per group ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas of the group storages int4_group32 and int4_group64, SquareQ's
// int4_group. A group of columns of a row shares one scale, which is rounded to
// bf16 before anything is divided by it:
//
//   scale = bf16(absmax / 7), or 1 where that is no normal number
//   q     = round_half_even(w / scale), in [-8, 7]
//   w'    = q * scale                       in f32
//
// Two codes lie in a byte, the one of the even column in the low half. Pure
// functions over memory of the caller; none allocates.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_GROUPSTORAGE_H
#define SEGUE_RUNTIME_LAYOUT_GROUPSTORAGE_H

#include "segue/runtime/Layout/RowStorage.h"

namespace segue::inline runtime {

/// The largest group extent.
inline constexpr int64_t largestGroup = 64;

/// A GroupScale is the result of quantising one group.
struct GroupScale {
  /// The scale, as the bits of a bf16.
  uint16_t scale = 0;
  /// The index of the first element that is NaN or infinite and counted as 0, or -1.
  int64_t firstNonFinite = -1;
};

/// Quantises `group`, of an even number of elements, and writes one code per element to
/// half as many bytes.
GroupScale quantizeGroup(std::span<const float> group, std::byte *codes, ScaleSearch search = ScaleSearch::AbsMax);

/// Quantises one row, whose length is a multiple of `group`. `codes` holds
/// half as many bytes, `scales` one bf16 per group. Returns the first column
/// that is NaN or infinite, or -1.
int64_t quantizeInt4Row(std::span<const float> row, int64_t group, std::span<std::byte> codes,
                        std::span<uint16_t> scales, ScaleSearch search = ScaleSearch::AbsMax);

/// Reads back what quantizeInt4Row wrote. `row` may be shorter than what the codes hold: padding.
void dequantizeInt4Row(std::span<const std::byte> codes, std::span<const uint16_t> scales, int64_t group,
                       std::span<float> row);

//===----------------------------------------------------------------------===//
// Single elements
//===----------------------------------------------------------------------===//

inline constexpr float largestInt4 = 7.0f, smallestInt4 = -8.0f;

/// Returns `value` as a group counts it: NaN and infinities are 0.
constexpr float groupValue(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 0.0f : value;
}

/// Returns the scale of a group as it is stored, bits of a bf16. One that is 0 or denormal
/// would divide to infinity, or differently where denormals are flushed: such a group is
/// stored as zeros.
constexpr uint16_t storedGroupScale(float scale) {
  uint16_t bits = floatToBf16(scale);
  return bf16ToFloat(bits) < 0x1p-126f ? floatToBf16(1.0f) : bits;
}

/// Returns the code of `value` as a whole number.
constexpr float groupCode(float value, float scale) {
  float quotient = groupValue(value) / scale;
  float clamped = quotient < smallestInt4 ? smallestInt4 : quotient > largestInt4 ? largestInt4 : quotient;
  // 1.5 * 2^23: the sum has no bits behind the point, so adding rounds.
  return (clamped + 12582912.0f) - 12582912.0f;
}

/// Returns the code of element `index` of a row.
constexpr int int4Code(const std::byte *codes, int64_t index) {
  int nibble = int(codes[index / 2]) >> (index % 2 ? 4 : 0) & 15;
  return nibble >= 8 ? nibble - 16 : nibble;
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_GROUPSTORAGE_H
