//===- AttentionKernels.h - attention by kernels of the runtime -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans of attention for a GPU without a library: on tensor cores for bf16 and f16
// (Builtin/TensorAttention.h), and in f32 for all else (Builtin/Attention.cu).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_ATTENTIONKERNELS_H
#define SEGUE_LIB_CUDA_ATTENTIONKERNELS_H

#include "BuiltinKernels.h"

namespace segue::inline runtime::cuda {

/// Makes plans that launch `kernels`, which must outlive them. Throws Unsupported, `device`
/// in the message, for more than 2^31 - 1 rows, keys, dims or heads in all.
std::shared_ptr<const AttentionPlan> planAttention(const std::string &device, BuiltinKernels &kernels,
                                                   const AttentionSpec &spec);
std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const std::string &device, BuiltinKernels &kernels,
                                                           const AttentionGradSpec &spec);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_ATTENTIONKERNELS_H
