//===- ElementKernels.cpp - loops over runs of elements -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once per instruction set, which SEGUE_ISA names; see CMakeLists.txt.
// Everything here is static or always inlined, so that no function compiled for
// one processor can be linked into another. The scalar functions choose with
// arithmetic, not branches, so that the loops vectorise; ElementType.h and
// RowStorage.h have them in readable form, and the tests compare all three
// tables with those.
//
//===----------------------------------------------------------------------===//

#include "ElementKernels.h"
#include "segue/runtime/Layout/Fp8.h"

#include <type_traits>

#ifdef __F16C__
#include <immintrin.h>
#endif

#define SEGUE_CONCAT2(a, b) a##b
#define SEGUE_CONCAT(a, b) SEGUE_CONCAT2(a, b)
#define SEGUE_STRING2(a) #a
#define SEGUE_STRING(a) SEGUE_STRING2(a)
#define SEGUE_INLINE [[gnu::always_inline]] static inline

namespace segue::inline runtime {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

SEGUE_INLINE uint32_t bitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
SEGUE_INLINE float floatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

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

SEGUE_INLINE float toFloat(float value) { return value; }
SEGUE_INLINE float toFloat(Bf16 value) { return floatOf(uint32_t(value.bits) << 16); }
SEGUE_INLINE float toFloat(F16 value) {
  uint32_t sign = uint32_t(value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  uint32_t normal = (magnitude << 13) + (112u << 23);
  uint32_t special = kInfinity | (magnitude & 0x3ffu) << 13;
  uint32_t subnormal = bitsOf(float(int32_t(magnitude)) * 0x1p-24f);
  uint32_t number = magnitude < 0x0400u ? subnormal : normal;
  return floatOf(sign | (magnitude >= 0x7c00u ? special : number));
}
SEGUE_INLINE float toFloat(double value) { return float(value); }
SEGUE_INLINE float toFloat(int64_t value) { return float(value); }
SEGUE_INLINE float toFloat(int32_t value) { return float(value); }
SEGUE_INLINE float toFloat(int8_t value) { return float(value); }
SEGUE_INLINE float toFloat(Bool value) { return float(int32_t(value.value != 0)); }

SEGUE_INLINE void narrow(float value, float &target) { target = value; }
SEGUE_INLINE void narrow(float value, double &target) { target = value; }
SEGUE_INLINE void narrow(float value, Bf16 &target) {
  uint32_t bits = bitsOf(value), quiet = (bits >> 16) | 0x40u;
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  target.bits = uint16_t((bits & kMagnitude) > kInfinity ? quiet : rounded);
}
SEGUE_INLINE void narrow(float value, F16 &target) {
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
template <typename Integer, typename Float> SEGUE_INLINE Integer saturate(Float value) {
  constexpr int bits = int(sizeof(Integer)) * 8;
  constexpr Float end = Float(uint64_t(1) << (bits - 1));
  constexpr Integer most = Integer(~(uint64_t(1) << (bits - 1)) & (~uint64_t(0) >> (64 - bits)));
  constexpr Integer least = Integer(-most - 1);
  bool inside = value >= -end && value < end;
  Integer number = Integer(inside ? value : Float(0));
  Integer outside = value >= end ? most : value < -end ? least : Integer(0);
  return inside ? number : outside;
}
SEGUE_INLINE void narrow(float value, int64_t &target) { target = saturate<int64_t>(value); }
SEGUE_INLINE void narrow(float value, int32_t &target) { target = saturate<int32_t>(value); }
SEGUE_INLINE void narrow(float value, int8_t &target) {
  // Through i32, for which processors have vector conversions.
  float upper = 127.0f < value ? 127.0f : value;
  float clamped = -128.0f > upper ? -128.0f : upper;
  uint32_t kept = (bitsOf(value) & kMagnitude) > kInfinity ? 0 : bitsOf(clamped);
  target = int8_t(int32_t(floatOf(kept)));
}
/// The bits are looked at: denormals are not zero, whatever the mode of the thread.
SEGUE_INLINE void narrow(float value, Bool &target) { target.value = (bitsOf(value) & kMagnitude) != 0; }

// Every other type is a double without loss, but i64, which is rounded once.
SEGUE_INLINE double toDouble(double value) { return value; }
SEGUE_INLINE double toDouble(int64_t value) { return double(value); }
SEGUE_INLINE double toDouble(int32_t value) { return double(value); }
template <typename From> SEGUE_INLINE double toDouble(From value) { return double(toFloat(value)); }

SEGUE_INLINE void narrow(double value, double &target) { target = value; }
SEGUE_INLINE void narrow(double value, int64_t &target) { target = saturate<int64_t>(value); }
SEGUE_INLINE void narrow(double value, int32_t &target) { target = saturate<int32_t>(value); }
SEGUE_INLINE void narrow(double value, int8_t &target) { target = saturate<int8_t>(value); }
SEGUE_INLINE void narrow(double value, Bool &target) {
  target.value = (__builtin_bit_cast(uint64_t, value) & ~(uint64_t(1) << 63)) != 0;
}
/// By way of f32, as PyTorch does.
template <typename To> SEGUE_INLINE void narrow(double value, To &target) { narrow(float(value), target); }

/// Rounds to the nearest integer, ties to even. From 2^23 on every float is one.
SEGUE_INLINE float roundEven(float value) {
  uint32_t sign = bitsOf(value) & 0x80000000u, magnitude = bitsOf(value) & kMagnitude;
  float rounded = (floatOf(magnitude) + 0x1p23f) - 0x1p23f;
  return magnitude < 0x4b000000u ? floatOf(sign | bitsOf(rounded)) : value;
}

SEGUE_INLINE int64_t toInt64(int64_t value) { return value; }
SEGUE_INLINE int64_t toInt64(int32_t value) { return value; }
SEGUE_INLINE int64_t toInt64(int8_t value) { return value; }
SEGUE_INLINE int64_t toInt64(Bool value) { return value.value != 0; }
SEGUE_INLINE void wrap(int64_t value, int32_t &target) { target = int32_t(value); }
SEGUE_INLINE void wrap(int64_t value, int8_t &target) { target = int8_t(value); }
SEGUE_INLINE void wrap(int64_t value, Bool &target) { target.value = value != 0; }

// Codes of row storages.
struct Int8Code {
  static constexpr float largest = 127.0f;
  SEGUE_INLINE float value(uint8_t code) { return float(int8_t(code)); }
  SEGUE_INLINE uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t rounded = bitsOf(clamped + 12582912.0f) - bitsOf(12582912.0f);
    return uint8_t(magnitude > kInfinity ? 0 : rounded);
  }
};
struct E4M3Code {
  static constexpr float largest = 448.0f;
  SEGUE_INLINE float value(uint8_t code) {
    uint32_t special = uint32_t(code & 0x80u) << 24 | 0x7fc00000u, number = bitsOf(fp8ToFloat<3, 7>(code));
    return floatOf((code & 0x7fu) == 0x7fu ? special : number);
  }
  SEGUE_INLINE uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t nan = 0x7fu | (bitsOf(clamped) >> 24 & 0x80u), number = floatToFp8<3, 7>(clamped);
    return uint8_t(magnitude > kInfinity ? nan : number);
  }
};
struct E5M2Code {
  static constexpr float largest = 57344.0f;
  SEGUE_INLINE float value(uint8_t code) {
    uint32_t special = uint32_t(code & 0x80u) << 24 | kInfinity | uint32_t(code & 3u) << 21;
    uint32_t number = bitsOf(fp8ToFloat<2, 15>(code));
    return floatOf((code & 0x7fu) >= 0x7cu ? special : number);
  }
  SEGUE_INLINE uint8_t code(float clamped, uint32_t magnitude) {
    uint32_t nan = 0x7fu | (bitsOf(clamped) >> 24 & 0x80u), number = floatToFp8<2, 15>(clamped);
    return uint8_t(magnitude > kInfinity ? nan : number);
  }
};

template <typename Code> SEGUE_INLINE uint8_t encodeOne(float value, float inverse) {
  float scaled = value * inverse;
  float clamped = scaled > Code::largest ? Code::largest : scaled;
  clamped = clamped < -Code::largest ? -Code::largest : clamped;
  return Code::code(clamped, bitsOf(scaled) & kMagnitude);
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

template <typename From> void toFloatRun(int64_t count, const void *source, float *__restrict target) {
  auto *from = static_cast<const From *>(source);
  for (int64_t i = 0; i < count; ++i)
    target[i] = toFloat(from[i]);
}

template <typename To> void fromFloatRun(int64_t count, const float *__restrict source, void *target) {
  auto *__restrict to = static_cast<To *>(target);
  for (int64_t i = 0; i < count; ++i)
    narrow(source[i], to[i]);
}

template <typename From> void toDoubleRun(int64_t count, const void *source, double *__restrict target) {
  auto *from = static_cast<const From *>(source);
  for (int64_t i = 0; i < count; ++i)
    target[i] = toDouble(from[i]);
}

template <typename To> void fromDoubleRun(int64_t count, const double *__restrict source, void *target) {
  auto *__restrict to = static_cast<To *>(target);
  for (int64_t i = 0; i < count; ++i)
    narrow(source[i], to[i]);
}

#ifdef __F16C__
/// Converts a run to f16: the instruction rounds, saturates and keeps NaNs as narrow
/// does, whatever the mode of the thread.
template <> void fromFloatRun<F16>(int64_t count, const float *__restrict source, void *target) {
  auto *__restrict to = static_cast<F16 *>(target);
  int64_t i = 0;
#ifdef __AVX512F__
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i),
                        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i)
    narrow(source[i], to[i]);
}
#endif

template <typename To> void roundFloatRun(int64_t count, const float *__restrict source, void *target) {
  auto *__restrict to = static_cast<To *>(target);
  for (int64_t i = 0; i < count; ++i)
    narrow(roundEven(source[i]), to[i]);
}

template <typename From> void toInt64Run(int64_t count, const void *source, int64_t *__restrict target) {
  auto *from = static_cast<const From *>(source);
  for (int64_t i = 0; i < count; ++i)
    target[i] = toInt64(from[i]);
}

template <typename To> void fromInt64Run(int64_t count, const int64_t *__restrict source, void *target) {
  auto *__restrict to = static_cast<To *>(target);
  for (int64_t i = 0; i < count; ++i)
    wrap(source[i], to[i]);
}

template <typename Code>
void decodeRun(int64_t count, const uint8_t *__restrict codes, float scale, float zeroPoint, float *__restrict target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = (Code::value(codes[i]) - zeroPoint) * scale;
}

template <typename Code>
void decodeEachRun(int64_t count, const uint8_t *__restrict codes, const float *__restrict scales,
                   const float *__restrict zeroPoints, float *__restrict target) {
  if (zeroPoints)
    for (int64_t i = 0; i < count; ++i)
      target[i] = (Code::value(codes[i]) - zeroPoints[i]) * scales[i];
  else
    for (int64_t i = 0; i < count; ++i)
      target[i] = (Code::value(codes[i]) - 0.0f) * scales[i];
}

template <typename Code>
void encodeRun(int64_t count, const float *__restrict source, float scale, uint8_t *__restrict codes) {
  float inverse = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i)
    codes[i] = encodeOne<Code>(source[i], inverse);
}

template <typename Code>
void encodeEachRun(int64_t count, const float *__restrict source, const float *__restrict scales,
                   uint8_t *__restrict codes) {
  for (int64_t i = 0; i < count; ++i)
    codes[i] = encodeOne<Code>(source[i], 1.0f / scales[i]);
}

void decodeInt4Run(int64_t count, const uint8_t *__restrict codes, float scale, float *__restrict target) {
  // The shifts bring the sign of each half down.
  for (int64_t i = 0; i < count / 2; ++i) {
    target[2 * i] = float(int8_t(codes[i] << 4) >> 4) * scale;
    target[2 * i + 1] = float(int8_t(codes[i]) >> 4) * scale;
  }
  if (count % 2)
    target[count - 1] = float(int8_t(codes[count / 2] << 4) >> 4) * scale;
}

template <bool kFinite> SEGUE_INLINE int32_t magnitudeOf(float value) {
  uint32_t magnitude = bitsOf(value) & kMagnitude;
  return int32_t(kFinite && magnitude >= kInfinity ? 0 : magnitude);
}

// Magnitudes are not negative, so they compare as signed numbers, too, for which
// older processors have instructions.
template <bool kFinite> uint32_t largestRun(int64_t count, const float *source) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t magnitude = magnitudeOf<kFinite>(source[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return uint32_t(largest);
}

template <bool kFinite>
void largestEachRun(int64_t count, const float *__restrict source, uint32_t *__restrict largest) {
  for (int64_t i = 0; i < count; ++i) {
    int32_t magnitude = magnitudeOf<kFinite>(source[i]);
    largest[i] = uint32_t(magnitude > int32_t(largest[i]) ? magnitude : int32_t(largest[i]));
  }
}

/// Counts elements of 16, 32 or 64 bits. What is not finite is rare: runs are asked for
/// their largest magnitude, and counted only where that is none of a number.
template <typename Bits, Bits magnitude, Bits infinity>
void countNonFiniteRun(int64_t count, const void *source, int64_t *counts) {
  using Signed = std::make_signed_t<Bits>;
  constexpr int64_t kRun = 4096;
  const auto *bits = static_cast<const Bits *>(source);
  for (int64_t from = 0; from < count; from += kRun) {
    int64_t length = count - from < kRun ? count - from : kRun;
    Signed largest = 0;
    for (int64_t i = 0; i < length; ++i) {
      Signed value = Signed(bits[from + i] & magnitude);
      largest = value > largest ? value : largest;
    }
    if (largest < Signed(infinity))
      continue;
    int32_t nans = 0, infs = 0;
    for (int64_t i = 0; i < length; ++i) {
      Signed value = Signed(bits[from + i] & magnitude);
      nans += value > Signed(infinity);
      infs += value == Signed(infinity);
    }
    counts[0] += nans;
    counts[1] += infs;
  }
}

void addSquaredError(int64_t count, const float *__restrict source, const float *__restrict restored,
                     double *__restrict sums) {
  constexpr int kSums = 16;
  int64_t i = 0;
  auto add = [&](int64_t at, int lane) __attribute__((always_inline)) {
    double error = double(source[at]) - double(restored[at]);
    sums[lane] += magnitudeOf<false>(source[at]) >= int32_t(kInfinity) ? 0.0 : error * error;
  };
  for (; i + kSums <= count; i += kSums)
#pragma GCC ivdep
    for (int lane = 0; lane < kSums; ++lane)
      add(i + lane, lane);
  for (int lane = 0; i + lane < count; ++lane)
    add(i + lane, lane);
}

} // namespace

extern const ElementKernels SEGUE_CONCAT(elementKernels, SEGUE_ISA);
const ElementKernels SEGUE_CONCAT(elementKernels, SEGUE_ISA) = {
    SEGUE_STRING(SEGUE_ISA),
    {nullptr, toFloatRun<Bf16>, toFloatRun<F16>, toFloatRun<int64_t>, toFloatRun<int32_t>, toFloatRun<int8_t>,
     toFloatRun<Bool>, toFloatRun<double>},
    {nullptr, fromFloatRun<Bf16>, fromFloatRun<F16>, fromFloatRun<int64_t>, fromFloatRun<int32_t>, fromFloatRun<int8_t>,
     fromFloatRun<Bool>, fromFloatRun<double>},
    {toDoubleRun<float>, toDoubleRun<Bf16>, toDoubleRun<F16>, toDoubleRun<int64_t>, toDoubleRun<int32_t>,
     toDoubleRun<int8_t>, toDoubleRun<Bool>, nullptr},
    {fromDoubleRun<float>, fromDoubleRun<Bf16>, fromDoubleRun<F16>, fromDoubleRun<int64_t>, fromDoubleRun<int32_t>,
     fromDoubleRun<int8_t>, fromDoubleRun<Bool>, nullptr},
    {nullptr, nullptr, nullptr, nullptr, toInt64Run<int32_t>, toInt64Run<int8_t>, toInt64Run<Bool>, nullptr},
    {nullptr, nullptr, nullptr, nullptr, fromInt64Run<int32_t>, fromInt64Run<int8_t>, fromInt64Run<Bool>, nullptr},
    {nullptr, nullptr, nullptr, roundFloatRun<int64_t>, roundFloatRun<int32_t>, roundFloatRun<int8_t>,
     fromFloatRun<Bool>, nullptr},
    {decodeRun<Int8Code>, decodeRun<E4M3Code>, decodeRun<E5M2Code>},
    {decodeEachRun<Int8Code>, decodeEachRun<E4M3Code>, decodeEachRun<E5M2Code>},
    {encodeRun<Int8Code>, encodeRun<E4M3Code>, encodeRun<E5M2Code>},
    {encodeEachRun<Int8Code>, encodeEachRun<E4M3Code>, encodeEachRun<E5M2Code>},
    decodeInt4Run,
    largestRun<false>,
    largestRun<true>,
    largestEachRun<false>,
    largestEachRun<true>,
    {countNonFiniteRun<uint32_t, 0x7fffffff, 0x7f800000>, countNonFiniteRun<uint16_t, 0x7fff, 0x7f80>,
     countNonFiniteRun<uint16_t, 0x7fff, 0x7c00>, nullptr, nullptr, nullptr, nullptr,
     countNonFiniteRun<uint64_t, 0x7fffffffffffffff, 0x7ff0000000000000>},
    addSquaredError,
};

} // namespace segue::inline runtime
