//===- AttentionF16x64.cu - attention in f16, 64 dims --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of TensorAttention.h for heads of at most 64 dims in f16.
//
//===----------------------------------------------------------------------===//

#include "TensorAttention.h"

using namespace segue;
using namespace segue::cuda;

// A kernel names the blocks that a multiprocessor holds of it at a time, and the rows of a tile that it takes at once.
GPU_WARP_KERNEL(attendRowsF16x64, AttentionKernelArgs, 2) {
  tensor::attendRows<ElementType::f16, 64, 32>(args);
}
GPU_WARP_KERNEL(attendRowsGradF16x64, AttentionKernelArgs, 2) {
  tensor::attendRowsGrad<ElementType::f16, 64, 16>(args);
}
GPU_WARP_KERNEL(attendKeysGradF16x64, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::f16, 64, 32, tensor::KeySums::Both>(args);
}
