//===- Fp8.h - 8-bit floats ------------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// 8-bit floats by the bits of their mantissa and the bias of their exponent:
// OCP E4M3 is <3, 7>, E5M2 is <2, 15>. Codes that are not numbers are left to
// RowStorage.h. Without branches, so that loops vectorise; always inlined,
// since loops compiled for one processor must not share code with others.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_FP8_H
#define SEGUE_RUNTIME_LAYOUT_FP8_H

#include <bit>
#include <cstdint>

namespace segue::inline runtime {

/// Returns the value of a code that is a number.
template <int mantissaBits, int bias> [[gnu::always_inline]] constexpr float fp8ToFloat(uint8_t code) {
  uint32_t sign = uint32_t(code & 0x80u) << 24, magnitude = code & 0x7fu;
  uint32_t normal = (magnitude << (23 - mantissaBits)) + (uint32_t(127 - bias) << 23);
  // The unit of subnormals is 2^(1 - bias - mantissaBits).
  float unit = std::bit_cast<float>(uint32_t(127 + 1 - bias - mantissaBits) << 23);
  uint32_t subnormal = std::bit_cast<uint32_t>(float(int32_t(magnitude)) * unit);
  return std::bit_cast<float>(sign | (magnitude < (1u << mantissaBits) ? subnormal : normal));
}

/// Returns the code nearest to `value`, a tie to the
/// even one. |value| must not exceed the largest code.
template <int mantissaBits, int bias> [[gnu::always_inline]] constexpr uint8_t floatToFp8(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  constexpr int dropped = 23 - mantissaBits;
  uint32_t half = (1u << (dropped - 1)) - 1u + ((magnitude >> dropped) & 1u);
  uint32_t normal = ((magnitude + half) >> dropped) - (uint32_t(127 - bias) << mantissaBits);
  // Added to a number whose last bit is the unit of subnormals, the addition
  // itself rounds to nearest even.
  float aligner = std::bit_cast<float>(uint32_t(127 + 1 - bias - mantissaBits + 23) << 23);
  uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + aligner) - std::bit_cast<uint32_t>(aligner);
  uint32_t code = magnitude < (uint32_t(127 + 1 - bias) << 23) ? subnormal : normal;
  return uint8_t(code | (bits >> 24 & 0x80u));
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_FP8_H
