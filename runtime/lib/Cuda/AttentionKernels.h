//===- AttentionKernels.h - attention by kernels of the runtime -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans of attention for a GPU without a library: on tensor cores for bf16, f16, and f32
// where TF32 is asked for (Builtin/TensorAttention.h), and in f32 for all else
// (Builtin/Attention.cu).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_ATTENTIONKERNELS_H
#define SEGUE_LIB_CUDA_ATTENTIONKERNELS_H

#include "BuiltinKernels.h"

namespace segue::inline runtime::cuda {

/// Makes plans that launch `kernels`, which must outlive them. Throws Unsupported, `device`
/// in the message, for more than 2^31 - 1 rows, keys, dims or heads in all. With `tf32`,
/// operands of f32 are rounded to TF32 for their products.
std::shared_ptr<const AttentionPlan> planAttention(const std::string &device, BuiltinKernels &kernels,
                                                   const AttentionSpec &spec, bool tf32);
std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const std::string &device, BuiltinKernels &kernels,
                                                           const AttentionGradSpec &spec, bool tf32);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_ATTENTIONKERNELS_H
