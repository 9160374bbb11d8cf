//===- ElementCasts.h - one element from one type to another ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The conversions of single elements: every element type to and from f32 and f64,
// integers to and from i64, codes of row storages to and from f32. The loops of
// processors (ElementKernels.cpp) and kernels of GPUs (Cuda/Builtin) are made of them, so
// all give the same bits. Both results of a choice are computed and one is taken, so that
// loops over these functions vectorise.
//
// Every function is part of whoever includes this: compiled for one processor it cannot
// be linked into code for another.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TENSOR_ELEMENTCASTS_H
#define SEGUE_RUNTIME_LIB_TENSOR_ELEMENTCASTS_H

#include "segue/runtime/Layout/Fp8.h"
#include <cstdint>

#define SEGUE_ELEMENT [[gnu::always_inline]] static inline

namespace segue::inline runtime {
namespace elements {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

SEGUE_ELEMENT uint32_t bitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
SEGUE_ELEMENT float floatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// 16-bit floats are held in types of their own, so that overloads tell them.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

SEGUE_ELEMENT float toFloat(float value) { return value; }
SEGUE_ELEMENT float toFloat(Bf16 value) { return floatOf(uint32_t(value.bits) << 16); }
SEGUE_ELEMENT float toFloat(F16 value) {
  uint32_t sign = uint32_t(value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  uint32_t normal = (magnitude << 13) + (112u << 23);
  uint32_t special = kInfinity | (magnitude & 0x3ffu) << 13;
  uint32_t subnormal = bitsOf(float(int32_t(magnitude)) * 0x1p-24f);
  uint32_t number = magnitude < 0x0400u ? subnormal : normal;
  return floatOf(sign | (magnitude >= 0x7c00u ? special : number));
}
SEGUE_ELEMENT float toFloat(double value) { return float(value); }
SEGUE_ELEMENT float toFloat(int64_t value) { return float(value); }
SEGUE_ELEMENT float toFloat(int32_t value) { return float(value); }
SEGUE_ELEMENT float toFloat(int8_t value) { return float(value); }
SEGUE_ELEMENT float toFloat(Bool value) { return float(int32_t(value.value != 0)); }

SEGUE_ELEMENT void narrow(float value, float &target) { target = value; }
SEGUE_ELEMENT void narrow(float value, double &target) { target = value; }
SEGUE_ELEMENT void narrow(float value, Bf16 &target) {
  uint32_t bits = bitsOf(value), quiet = (bits >> 16) | 0x40u;
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  target.bits = uint16_t((bits & kMagnitude) > kInfinity ? quiet : rounded);
}
SEGUE_ELEMENT void narrow(float value, F16 &target) {
  uint32_t bits = bitsOf(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & kMagnitude;
  uint32_t rebiased = magnitude - (112u << 23);
  uint32_t normal = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  uint32_t subnormal = bitsOf(floatOf(magnitude) + 0.5f) - bitsOf(0.5f);
  uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t special = magnitude > kInfinity ? nan : 0x7c00u;
  uint32_t number = magnitude < 0x38800000u ? subnormal : normal;
  target.bits = uint16_t(sign | (magnitude >= 0x477ff000u ? special : number));
}
/// Drops the fraction and saturates; NaN becomes 0. The value converted is in
/// range whatever is chosen in the end.
template <typename Integer, typename Float> SEGUE_ELEMENT Integer saturate(Float value) {
  constexpr int bits = int(sizeof(Integer)) * 8;
  constexpr Float end = Float(uint64_t(1) << (bits - 1));
  constexpr Integer most = Integer(~(uint64_t(1) << (bits - 1)) & (~uint64_t(0) >> (64 - bits)));
  constexpr Integer least = Integer(-most - 1);
  bool inside = value >= -end && value < end;
  Integer number = Integer(inside ? value : Float(0));
  Integer outside = value >= end ? most : value < -end ? least : Integer(0);
  return inside ? number : outside;
}
SEGUE_ELEMENT void narrow(float value, int64_t &target) { target = saturate<int64_t>(value); }
SEGUE_ELEMENT void narrow(float value, int32_t &target) { target = saturate<int32_t>(value); }
SEGUE_ELEMENT void narrow(float value, int8_t &target) {
  // Through i32, for which processors have vector conversions.
  float upper = 127.0f < value ? 127.0f : value;
  float clamped = -128.0f > upper ? -128.0f : upper;
  uint32_t kept = (bitsOf(value) & kMagnitude) > kInfinity ? 0 : bitsOf(clamped);
  target = int8_t(int32_t(floatOf(kept)));
}
/// The bits are looked at: denormals are not zero, whatever the mode of the thread.
SEGUE_ELEMENT void narrow(float value, Bool &target) { target.value = (bitsOf(value) & kMagnitude) != 0; }

// Every other type is a double without loss, but i64, which is rounded once.
SEGUE_ELEMENT double toDouble(double value) { return value; }
SEGUE_ELEMENT double toDouble(int64_t value) { return double(value); }
SEGUE_ELEMENT double toDouble(int32_t value) { return double(value); }
template <typename From> SEGUE_ELEMENT double toDouble(From value) { return double(toFloat(value)); }

SEGUE_ELEMENT void narrow(double value, double &target) { target = value; }
SEGUE_ELEMENT void narrow(double value, int64_t &target) { target = saturate<int64_t>(value); }
SEGUE_ELEMENT void narrow(double value, int32_t &target) { target = saturate<int32_t>(value); }
SEGUE_ELEMENT void narrow(double value, int8_t &target) { target = saturate<int8_t>(value); }
SEGUE_ELEMENT void narrow(double value, Bool &target) {
  target.value = (__builtin_bit_cast(uint64_t, value) & ~(uint64_t(1) << 63)) != 0;
}
/// By way of f32, as PyTorch does.
template <typename To> SEGUE_ELEMENT void narrow(double value, To &target) { narrow(float(value), target); }

/// Rounds to the nearest integer, ties to even. From 2^23 on every float is one.
SEGUE_ELEMENT float roundEven(float value) {
  uint32_t sign = bitsOf(value) & 0x80000000u, magnitude = bitsOf(value) & kMagnitude;
  float rounded = (floatOf(magnitude) + 0x1p23f) - 0x1p23f;
  return magnitude < 0x4b000000u ? floatOf(sign | bitsOf(rounded)) : value;
}

SEGUE_ELEMENT int64_t toInt64(int64_t value) { return value; }
SEGUE_ELEMENT int64_t toInt64(int32_t value) { return value; }
SEGUE_ELEMENT int64_t toInt64(int8_t value) { return value; }
SEGUE_ELEMENT int64_t toInt64(Bool value) { return value.value != 0; }
SEGUE_ELEMENT void wrap(int64_t value, int32_t &target) { target = int32_t(value); }
SEGUE_ELEMENT void wrap(int64_t value, int8_t &target) { target = int8_t(value); }
SEGUE_ELEMENT void wrap(int64_t value, Bool &target) { target.value = value != 0; }

// Codes of row storages.
struct Int8Code {
  static constexpr float largest = 127.0f;
  SEGUE_ELEMENT float value(uint8_t code) { return float(int8_t(code)); }
  SEGUE_ELEMENT uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t rounded = bitsOf(clamped + 12582912.0f) - bitsOf(12582912.0f);
    return uint8_t(magnitude > kInfinity ? 0 : rounded);
  }
};
struct E4M3Code {
  static constexpr float largest = 448.0f;
  SEGUE_ELEMENT float value(uint8_t code) {
    uint32_t special = uint32_t(code & 0x80u) << 24 | 0x7fc00000u, number = bitsOf(fp8ToFloat<3, 7>(code));
    return floatOf((code & 0x7fu) == 0x7fu ? special : number);
  }
  SEGUE_ELEMENT uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t nan = 0x7fu | (bitsOf(clamped) >> 24 & 0x80u), number = floatToFp8<3, 7>(clamped);
    return uint8_t(magnitude > kInfinity ? nan : number);
  }
};
struct E5M2Code {
  static constexpr float largest = 57344.0f;
  SEGUE_ELEMENT float value(uint8_t code) {
    uint32_t special = uint32_t(code & 0x80u) << 24 | kInfinity | uint32_t(code & 3u) << 21;
    uint32_t number = bitsOf(fp8ToFloat<2, 15>(code));
    return floatOf((code & 0x7fu) >= 0x7cu ? special : number);
  }
  SEGUE_ELEMENT uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t nan = 0x7fu | (bitsOf(clamped) >> 24 & 0x80u), number = floatToFp8<2, 15>(clamped);
    return uint8_t(magnitude > kInfinity ? nan : number);
  }
};

template <typename Code> SEGUE_ELEMENT uint8_t encodeOne(float value, float inverse) {
  float scaled = value * inverse;
  float clamped = scaled > Code::largest ? Code::largest : scaled;
  clamped = clamped < -Code::largest ? -Code::largest : clamped;
  return Code::code(clamped, bitsOf(scaled) & kMagnitude);
}

} // namespace elements
} // namespace segue::inline runtime

#undef SEGUE_ELEMENT

#endif // SEGUE_RUNTIME_LIB_TENSOR_ELEMENTCASTS_H
