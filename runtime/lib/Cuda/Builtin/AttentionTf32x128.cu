//===- AttentionTf32x128.cu - attention in TF32, 128 dims -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of TensorAttention.h for heads of 65 to 128 dims in f32, multiplied as TF32.
//
//===----------------------------------------------------------------------===//

#include "TensorAttention.h"

using namespace segue;
using namespace segue::cuda;

// A kernel names the blocks that a multiprocessor holds of it at a time, and the rows of a tile that it takes at once.
GPU_WARP_KERNEL(attendRowsTf32x128, AttentionKernelArgs, 1) {
  tensor::attendRows<ElementType::f32, 128, 16>(args);
}
GPU_WARP_KERNEL(attendRowsGradTf32x128, AttentionKernelArgs, 1) {
  tensor::attendRowsGrad<ElementType::f32, 128, 16>(args);
}
GPU_WARP_KERNEL(attendKeysGradTf32x128, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::f32, 128, 16, tensor::KeySums::Keys>(args);
}
GPU_WARP_KERNEL(attendValuesGradTf32x128, AttentionKernelArgs, 1) {
  tensor::attendKeysGrad<ElementType::f32, 128, 16, tensor::KeySums::Values>(args);
}
