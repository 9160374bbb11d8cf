//===- ElementType.h - element types of tensors -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The element types of schemas/types.fbs, their sizes in bytes, and the scalar
// conversions between the 16-bit floats and f32 on which casts rest.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_ELEMENTTYPE_H
#define SEGUE_RUNTIME_LAYOUT_ELEMENTTYPE_H

#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace segue::inline runtime {

/// Element type of a logical tensor; the values are those of
/// segue.schema.ElementType. i1 is stored as one byte, 0 or 1.
enum class ElementType : int8_t { f32 = 0, bf16 = 1, f16 = 2, i64 = 3, i32 = 4, i8 = 5, i1 = 6, f64 = 7 };

inline constexpr ElementType allElementTypes[] = {ElementType::f32, ElementType::bf16, ElementType::f16,
                                                  ElementType::i64, ElementType::i32,  ElementType::i8,
                                                  ElementType::i1,  ElementType::f64};

inline constexpr size_t elementTypeCount = std::size(allElementTypes);

/// Bytes of one element.
constexpr uint64_t byteSize(ElementType type) {
  switch (type) {
  case ElementType::i64:
  case ElementType::f64:
    return 8;
  case ElementType::f32:
  case ElementType::i32:
    return 4;
  case ElementType::bf16:
  case ElementType::f16:
    return 2;
  case ElementType::i8:
  case ElementType::i1:
    return 1;
  }
  return 0;
}

/// Returns true for f64, f32, bf16 and f16.
constexpr bool isFloat(ElementType type) {
  return type == ElementType::f64 || type == ElementType::f32 || type == ElementType::bf16 || type == ElementType::f16;
}

/// Returns true for the floats that are computed in f32: f32, bf16 and f16.
constexpr bool isComputedInF32(ElementType type) { return isFloat(type) && type != ElementType::f64; }

/// Returns the name as written in IR, schema and messages.
constexpr std::string_view name(ElementType type) {
  constexpr std::string_view names[] = {"f32", "bf16", "f16", "i64", "i32", "i8", "i1", "f64"};
  auto index = static_cast<uint8_t>(type);
  return index < elementTypeCount ? names[index] : std::string_view("?");
}

/// Returns the inverse of name(), or nothing if `text` names no element type.
constexpr std::optional<ElementType> parseElementType(std::string_view text) {
  for (ElementType type : allElementTypes)
    if (name(type) == text)
      return type;
  return std::nullopt;
}

/// Returns the number of a bf16, which is the upper half of an f32.
constexpr float bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

/// Rounds to nearest even; a NaN stays a NaN (its quiet bit is set).
constexpr uint16_t floatToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  // Both results are computed and one is chosen, so that loops over this function vectorise.
  uint32_t quiet = (bits >> 16) | 0x40u;
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Returns the number of an IEEE 754 binary16, subnormals included.
constexpr float f16ToFloat(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) // normal: rebias the exponent from 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  float value = float(magnitude) * 0x1p-24f; // subnormal or zero
  return sign ? -value : value;
}

/// Rounds to nearest even; what is too large becomes infinity, NaN stays NaN.
constexpr uint16_t floatToF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) // 65520 and above round to infinity
    return uint16_t(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) { // normal in f16
    uint32_t rebiased = magnitude - (112u << 23);
    return uint16_t(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
  // Adding 2^-1 aligns the last bit of the sum with 2^-24, the f16 unit of
  // subnormals, so that the addition itself rounds to nearest even.
  float aligned = std::bit_cast<float>(magnitude) + 0.5f;
  return uint16_t(sign | (std::bit_cast<uint32_t>(aligned) - std::bit_cast<uint32_t>(0.5f)));
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_ELEMENTTYPE_H
