//===- RowMatmul.h - products of one row ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of one row with a matrix whose columns lie along the sum: a linear layer that
// generates a token. Each weight is read once, where it lies. See RowMatmul.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_ROWMATMUL_H
#define SEGUE_RUNTIME_LIB_ENGINE_ROWMATMUL_H

#include "VectorKernels.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <memory>

namespace segue::inline runtime {

/// Makes a plan for a spec without problem whose elements are f32, or null where panels are
/// faster. Results have the bits of makePanelMatmul's.
std::shared_ptr<const MatmulPlan> makeRowMatmul(const MatmulSpec &spec, Threads threads, const VectorKernels &kernels);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_ROWMATMUL_H
