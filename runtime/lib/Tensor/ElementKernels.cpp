//===- ElementKernels.cpp - loops over runs of elements -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once per instruction set, which SEGUE_ISA names; see CMakeLists.txt.
// Everything here is static or always inlined, so that no function compiled for
// one processor can be linked into another. The scalar functions are those of
// ElementCasts.h; ElementType.h and RowStorage.h have them in readable form, and
// the tests compare all three tables with those.
//
//===----------------------------------------------------------------------===//

#include "ElementKernels.h"
#include "ElementCasts.h"
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define SEGUE_CONCAT2(a, b) a##b
#define SEGUE_CONCAT(a, b) SEGUE_CONCAT2(a, b)
#define SEGUE_STRING2(a) #a
#define SEGUE_STRING(a) SEGUE_STRING2(a)
#define SEGUE_INLINE [[gnu::always_inline]] static inline

namespace segue::inline runtime {
namespace {

using namespace elements;

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

#ifdef __AVX2__
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

#if defined(__AVX2__) && !defined(__AVX512F__)
// Compilers take words of 256 bits apart into halves and bytes by many more instructions
// than it needs. AVX-512 has one.

SEGUE_INLINE void storeHalves(void *to, __m256i first, __m256i second) {
  _mm256_storeu_si256(static_cast<__m256i *>(to), _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8));
}
/// Stores 32 words, of -128 to 127, as bytes.
SEGUE_INLINE void storeBytes(void *to, const __m256i (&words)[4]) {
  __m256i low = _mm256_packs_epi32(words[0], words[1]), high = _mm256_packs_epi32(words[2], words[3]);
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(static_cast<__m256i *>(to), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}

/// Rounds what is no NaN, as narrow does.
SEGUE_INLINE __m256i roundToBf16(__m256 values) {
  __m256i bits = _mm256_castps_si256(values);
  __m256i half = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(half, odd), 16);
}
/// These two do what narrow and encodeOne do.
SEGUE_INLINE __m256i narrowToI8(__m256 values) {
  __m256 clamped = _mm256_max_ps(_mm256_set1_ps(-128), _mm256_min_ps(_mm256_set1_ps(127), values));
  return _mm256_cvttps_epi32(_mm256_and_ps(clamped, _mm256_cmp_ps(values, values, _CMP_ORD_Q)));
}
SEGUE_INLINE __m256i encodeInt8(__m256 values, __m256 inverse) {
  __m256 scaled = _mm256_mul_ps(values, inverse), largest = _mm256_set1_ps(Int8Code::largest);
  __m256 clamped = _mm256_max_ps(_mm256_set1_ps(-Int8Code::largest), _mm256_min_ps(largest, scaled));
  __m256 magic = _mm256_set1_ps(12582912.0f);
  __m256i rounded = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(clamped, magic)), _mm256_castps_si256(magic));
  return _mm256_and_si256(rounded, _mm256_castps_si256(_mm256_cmp_ps(scaled, scaled, _CMP_ORD_Q)));
}

template <> void toFloatRun<F16>(int64_t count, const void *source, float *__restrict target) {
  auto *from = static_cast<const F16 *>(source);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
    _mm256_storeu_ps(target + i, values);
    if (_mm256_movemask_ps(_mm256_cmp_ps(values, values, _CMP_UNORD_Q))) // the instruction changes some NaNs
      for (int64_t lane = i; lane < i + 8; ++lane)
        target[lane] = toFloat(from[lane]);
  }
  for (; i < count; ++i)
    target[i] = toFloat(from[i]);
}

template <> void fromFloatRun<Bf16>(int64_t count, const float *__restrict source, void *target) {
  auto *__restrict to = static_cast<Bf16 *>(target);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m256 first = _mm256_loadu_ps(source + i), second = _mm256_loadu_ps(source + i + 8);
    storeHalves(to + i, roundToBf16(first), roundToBf16(second));
    if (_mm256_movemask_ps(_mm256_cmp_ps(first, second, _CMP_UNORD_Q))) // there is a NaN, which is rare
      for (int64_t lane = i; lane < i + 16; ++lane)
        narrow(source[lane], to[lane]);
  }
  for (; i < count; ++i)
    narrow(source[i], to[i]);
}

template <> void fromFloatRun<int8_t>(int64_t count, const float *__restrict source, void *target) {
  auto *__restrict to = static_cast<int8_t *>(target);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    storeBytes(to + i, {narrowToI8(_mm256_loadu_ps(source + i)), narrowToI8(_mm256_loadu_ps(source + i + 8)),
                        narrowToI8(_mm256_loadu_ps(source + i + 16)), narrowToI8(_mm256_loadu_ps(source + i + 24))});
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

#if defined(__AVX2__) && !defined(__AVX512F__)
template <>
void encodeRun<Int8Code>(int64_t count, const float *__restrict source, float scale, uint8_t *__restrict codes) {
  float inverse = 1.0f / scale;
  __m256 inverses = _mm256_set1_ps(inverse);
  auto encode = [&](const float *from)
      __attribute__((always_inline)) { return encodeInt8(_mm256_loadu_ps(from), inverses); };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const float *from = source + i;
    storeBytes(codes + i, {encode(from), encode(from + 8), encode(from + 16), encode(from + 24)});
  }
  for (; i < count; ++i)
    codes[i] = encodeOne<Int8Code>(source[i], inverse);
}
#endif

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
