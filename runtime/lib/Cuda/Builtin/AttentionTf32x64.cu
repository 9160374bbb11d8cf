//===- AttentionTf32x64.cu - attention in TF32, 64 dims -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of TensorAttention.h for heads of at most 64 dims in f32, multiplied as TF32.
//
//===----------------------------------------------------------------------===//

#include "TensorAttention.h"

using namespace segue;
using namespace segue::cuda;

// A kernel names the blocks that a multiprocessor holds of it at a time, and the rows of a tile that it takes at once.
GPU_WARP_KERNEL(attendRowsTf32x64, AttentionKernelArgs, 1) {
  tensor::attendRows<ElementType::f32, 64, 32>(args);
}
GPU_WARP_KERNEL(attendRowsGradTf32x64, AttentionKernelArgs, 1) {
  tensor::attendRowsGrad<ElementType::f32, 64, 32>(args);
}
GPU_WARP_KERNEL(attendKeysGradTf32x64, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::f32, 64, 16, tensor::KeySums::Keys>(args);
}
GPU_WARP_KERNEL(attendValuesGradTf32x64, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::f32, 64, 32, tensor::KeySums::Values>(args);
}
