//===- GradientSum.h - sums of gradients ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Gradients meet if a value has several readers, if a parameter is tied, and
// over micro-batches. Sums are kept in f32 whatever the gradients are.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_GRADIENTSUM_H
#define SEGUE_RUNTIME_LIB_SESSION_GRADIENTSUM_H

#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// Makes a gradient a sum that may be written to: of f32, dense, and nobody else's. Copies it only where it is not.
void ownSum(Tensor &sum);

/// Does sum += gradient. A null sum takes the tensor itself, without a copy; later ones are
/// added in place, in dense f32. The shapes are the same.
void addGradient(Tensor &sum, Tensor gradient);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_GRADIENTSUM_H
