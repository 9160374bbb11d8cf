//===- Numbers.h - elements and functions of numbers ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What kernels of this folder compute with: the conversions of ElementCasts.h, and functions
// that a GPU has no instruction for. No library of NVIDIA's is part of a kernel.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_NUMBERS_H
#define SEGUE_LIB_CUDA_BUILTIN_NUMBERS_H

#include "Gpu.h"

#include "segue/runtime/Layout/ElementType.h"

#ifdef __CUDA_ARCH__
#pragma clang force_cuda_host_device begin
#endif
#include "../../Tensor/ElementCasts.h"
#ifdef __CUDA_ARCH__
#pragma clang force_cuda_host_device end
#endif

namespace gpu {
using segue::elements::bitsOf, segue::elements::floatOf;

inline constexpr float infinity = __builtin_huge_valf();

GPU_FUNCTION float larger(float a, float b) { return a > b ? a : b; }
GPU_FUNCTION uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/// Returns a * b + c, rounded once on a GPU.
GPU_FUNCTION float multiplyAdd(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// Returns e to the power of x, within 2 units of the last place; 0 below -87.3, as
/// denormals are flushed. 2^n times a polynomial for what is left, by Cephes' coefficients
/// (S. Moshier, expf.c).
GPU_FUNCTION float exponential(float x) {
  float clamped = x < -87.3f ? -87.3f : x > 88.7f ? 88.7f : x;
  float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  float rest = multiplyAdd(n, 2.12194440e-4f, multiplyAdd(n, -0.693359375f, clamped));
  float p = 1.9875691500e-4f;
  p = multiplyAdd(p, rest, 1.3981999507e-3f);
  p = multiplyAdd(p, rest, 8.3334519073e-3f);
  p = multiplyAdd(p, rest, 4.1665795894e-2f);
  p = multiplyAdd(p, rest, 1.6666665459e-1f);
  p = multiplyAdd(p, rest, 5.0000001201e-1f);
  p = multiplyAdd(p, rest * rest, rest) + 1.0f;
  // In two steps: 2^128 is no number, though what is asked for may be.
  int whole = int(n), half = whole / 2;
  float result = p * floatOf(uint32_t(127 + half) << 23) * floatOf(uint32_t(127 + whole - half) << 23);
  return x != x ? x : x < -87.3f ? 0.0f : x > 88.7f ? infinity : result;
}

/// Returns the natural logarithm of x, a positive number that is normal, infinity, or no
/// number; within 2 units of the last place. By Cephes' coefficients (logf.c).
GPU_FUNCTION float logarithm(float x) {
  uint32_t bits = bitsOf(x);
  int exponent = int(bits >> 23) - 126;
  float part = floatOf((bits & 0x007fffffu) | 0x3f000000u); // in [0.5, 1)
  bool isLow = part < 0.707106781f;
  float rest = isLow ? part + part - 1.0f : part - 1.0f;
  float n = float(isLow ? exponent - 1 : exponent);
  float square = rest * rest, p = 7.0376836292e-2f;
  p = multiplyAdd(p, rest, -1.1514610310e-1f);
  p = multiplyAdd(p, rest, 1.1676998740e-1f);
  p = multiplyAdd(p, rest, -1.2420140846e-1f);
  p = multiplyAdd(p, rest, 1.4249322787e-1f);
  p = multiplyAdd(p, rest, -1.6668057665e-1f);
  p = multiplyAdd(p, rest, 2.0000714765e-1f);
  p = multiplyAdd(p, rest, -2.4999993993e-1f);
  p = multiplyAdd(p, rest, 3.3333331174e-1f);
  float sum = multiplyAdd(n, -2.12194440e-4f, p * rest * square);
  sum = multiplyAdd(-0.5f, square, sum) + rest;
  float result = multiplyAdd(n, 0.693359375f, sum);
  return x < infinity ? result : x;
}

/// Reads element `index` of memory of f32, bf16 or f16.
GPU_FUNCTION float element(const void *data, segue::ElementType type, int64_t index) {
  using namespace segue::elements;
  switch (type) {
  case segue::ElementType::bf16:
    return toFloat(static_cast<const Bf16 *>(data)[index]);
  case segue::ElementType::f16:
    return toFloat(static_cast<const F16 *>(data)[index]);
  default:
    return static_cast<const float *>(data)[index];
  }
}

/// Writes element `index` of memory of f32, bf16 or f16, rounded to nearest even.
GPU_FUNCTION void setElement(void *data, segue::ElementType type, int64_t index, float value) {
  using namespace segue::elements;
  switch (type) {
  case segue::ElementType::bf16:
    return narrow(value, static_cast<Bf16 *>(data)[index]);
  case segue::ElementType::f16:
    return narrow(value, static_cast<F16 *>(data)[index]);
  default:
    static_cast<float *>(data)[index] = value;
  }
}
} // namespace gpu

#endif // SEGUE_LIB_CUDA_BUILTIN_NUMBERS_H
