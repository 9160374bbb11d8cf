//===- AttentionBf16x256.cu - attention in bf16, 256 dims ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of TensorAttention.h for heads of 129 to 256 dims in bf16.
//
//===----------------------------------------------------------------------===//

#include "TensorAttention.h"

using namespace segue;
using namespace segue::cuda;

// A kernel names the blocks that a multiprocessor holds of it at a time, and the rows of a tile that it takes at once.
GPU_WARP_KERNEL(attendRowsBf16x256, AttentionKernelArgs, 1) {
  tensor::attendRows<ElementType::bf16, 256, 16>(args);
}
GPU_WARP_KERNEL(attendRowsGradBf16x256, AttentionKernelArgs, 1) {
  tensor::attendRowsGrad<ElementType::bf16, 256, 16>(args);
}
GPU_WARP_KERNEL(attendKeysGradBf16x256, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::bf16, 256, 16, tensor::KeySums::Keys>(args);
}
GPU_WARP_KERNEL(attendValuesGradBf16x256, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::bf16, 256, 16, tensor::KeySums::Values>(args);
}
