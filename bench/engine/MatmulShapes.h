//===- MatmulShapes.h - products of a training step -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The products of a training step of config S (bench/peers/gpt_common.py), of
// its forward pass and of the gradients for inputs (dX) and weights (dW). Names
// say m x k x n and how a and b lie: T is transposed in memory.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_BENCH_ENGINE_MATMULSHAPES_H
#define SEGUE_BENCH_ENGINE_MATMULSHAPES_H

#include <cstdint>

namespace segue::bench {

struct MatmulShape {
  const char *name;
  int64_t batch, m, k, n;
  bool transposedA, transposedB;
};

inline constexpr MatmulShape kMatmulShapes[] = {
    {"1024x1024x1024", 1, 1024, 1024, 1024, false, false},
    {"qkv/2048x384x1152", 1, 2048, 384, 1152, false, false},
    {"qkv/2048x384x1152T", 1, 2048, 384, 1152, false, true},
    {"fc/2048x384x1536", 1, 2048, 384, 1536, false, false},
    {"fc/2048x384x1536T", 1, 2048, 384, 1536, false, true},
    {"out/2048x1536x384", 1, 2048, 1536, 384, false, false},
    {"out/2048x1536x384T", 1, 2048, 1536, 384, false, true},
    {"proj/2048x384x384", 1, 2048, 384, 384, false, false},
    {"proj/2048x384x384T", 1, 2048, 384, 384, false, true},
    {"head/2048x384x256", 1, 2048, 384, 256, false, false},
    {"head_dX/2048x256x384T", 1, 2048, 256, 384, false, true},
    {"qkv_dX/2048x1152x384T", 1, 2048, 1152, 384, false, true},
    {"qkv_dW/384Tx2048x1152", 1, 384, 2048, 1152, true, false},
    {"fc_dW/384Tx2048x1536", 1, 384, 2048, 1536, true, false},
    {"out_dW/1536Tx2048x384", 1, 1536, 2048, 384, true, false},
    {"proj_dW/384Tx2048x384", 1, 384, 2048, 384, true, false},
    {"rows/1x384x1152T", 1, 1, 384, 1152, false, true},
    {"rows/1x1536x384T", 1, 1, 1536, 384, false, true},
    {"rows/1x768x50257T", 1, 1, 768, 50257, false, true},
    {"rows/2x768x3072T", 1, 2, 768, 3072, false, true},
    {"rows/4x768x3072T", 1, 4, 768, 3072, false, true},
    {"rows/8x768x3072T", 1, 8, 768, 3072, false, true},
    {"small/16x256x384", 1, 16, 256, 384, false, false},
    {"scores/48x256x64x256T", 48, 256, 64, 256, false, true},
    {"values/48x256x256x64", 48, 256, 256, 64, false, false},
};

} // namespace segue::bench

#endif // SEGUE_BENCH_ENGINE_MATMULSHAPES_H
