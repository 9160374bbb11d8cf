//===- DeviceKernels.h - kernels for the tests of devices -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each kernel twice: as code of this process, and as PTX for devices that make a handle of
// that (DeviceKernels.cpp).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_DEVICE_DEVICEKERNELS_H
#define SEGUE_TEST_DEVICE_DEVICEKERNELS_H

#include <cstdint>

using KernelFunctionOfTests = int64_t (*)(void *const *args, int64_t begin, int64_t end);

/// target[i] = 31 * target[i] + source[i]: no order but the right one gives
/// the right values.
inline int64_t mixKernel(void *const *args, int64_t begin, int64_t end) {
  auto *target = static_cast<uint64_t *>(args[0]);
  auto *source = static_cast<const uint64_t *>(args[1]);
  for (int64_t i = begin; i < end; ++i)
    target[i] = 31 * target[i] + source[i];
  return 0;
}

/// Adds one to each unit of args[0]; 99 if a piece does not begin at a multiple
/// of the grain in args[1].
inline int64_t markKernel(void *const *args, int64_t begin, int64_t end) {
  auto *counts = static_cast<int32_t *>(args[0]);
  auto grain = *static_cast<int64_t *>(args[1]);
  if (begin % grain != 0)
    return 99;
  for (int64_t i = begin; i < end; ++i)
    ++counts[i];
  return 0;
}

/// Fails in pieces that reach behind args[0], with 1 + begin / 10.
inline int64_t failBehindKernel(void *const *args, int64_t begin, int64_t end) {
  auto limit = *static_cast<int64_t *>(args[0]);
  return end > limit ? 1 + begin / 10 : 0;
}

/// PTX of these, and of `empty`, `storeAtNull` and `stack4096`, whose threads have 4096
/// bytes of their own.
extern const char *const deviceKernelsPtx;

#endif // SEGUE_TEST_DEVICE_DEVICEKERNELS_H
