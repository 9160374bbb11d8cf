//===- LowBit.cu - rotation and low rank beside 4-bit codes ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What LowBitForms.h says, with its bits.
//
//===----------------------------------------------------------------------===//

#include "Gpu.h"

#include "BuiltinArgs.h"

using namespace segue::cuda;

GPU_KERNEL(rotateRows, RotateArgs) {
  GPU_SHARED float numbers[gpu::blockThreads];
  unsigned thread = gpu::thread();
  for (int64_t block = gpu::block(); block < args.blocks; block += gpu::blocks()) {
    float *mine = args.data + block * gpu::blockThreads + thread;
    float value = *mine;
    for (unsigned distance = 1; distance < gpu::blockThreads; distance *= 2) {
      numbers[thread] = value;
      gpu::waitForBlock();
      float other = numbers[thread ^ distance];
      value = thread & distance ? other - value : value + other;
      gpu::waitForBlock();
    }
    *mine = value * 0.0625f;
  }
}

GPU_KERNEL(addLowRank, LowRankArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.count * args.columns; i += gpu::indexStep()) {
    int64_t row = i / args.columns, column = i % args.columns;
    float sum = args.rows[i];
    for (int64_t r = 0; r < args.rank; ++r)
      sum += args.a[row * args.rank + r] * args.b[r * args.columns + column];
    args.rows[i] = sum;
  }
}
