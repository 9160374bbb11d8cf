//===- Philox.h - random numbers by counter ---------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Philox4x32-10 (Salmon et al., SC 2011) with the counter and key of `segue.random`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_PHILOX_H
#define SEGUE_LIB_CUDA_BUILTIN_PHILOX_H

#include "Gpu.h"

namespace gpu {

/// Where numbers come from.
struct RandomSource {
  uint64_t seed, step;
  uint32_t id;
};

/// The 32 bits each of four neighbouring numbers.
struct RandomWords {
  uint32_t at[4];

  GPU_MEMBER uint32_t of(int number) const {
    uint32_t low = number & 1 ? at[1] : at[0], high = number & 1 ? at[3] : at[2];
    return number & 2 ? high : low;
  }
};

/// Draws the words of numbers 4 * `block` and the three behind it.
GPU_FUNCTION RandomWords drawWords(const RandomSource &source, int64_t block) {
  uint32_t c0 = uint32_t(block), c1 = uint32_t(uint64_t(block) >> 32) ^ source.id, c2 = uint32_t(source.step),
           c3 = uint32_t(source.step >> 32);
  uint32_t k0 = uint32_t(source.seed), k1 = uint32_t(source.seed >> 32);
  GPU_KEEP_LOOP
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0;
    c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ k1;
    c3 = uint32_t(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

} // namespace gpu

#endif // SEGUE_LIB_CUDA_BUILTIN_PHILOX_H
