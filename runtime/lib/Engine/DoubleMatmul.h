//===- DoubleMatmul.h - matmul in f64 ---------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of f64, which no library here has on CPUs. See DoubleMatmul.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_DOUBLEMATMUL_H
#define SEGUE_RUNTIME_LIB_ENGINE_DOUBLEMATMUL_H

#include "Scratch.h"
#include "VectorKernels.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <memory>

namespace segue::inline runtime {

/// A plan for any spec of f64 without problem. The sum of an element has the same
/// order whatever the number of threads.
std::shared_ptr<const MatmulPlan> makeDoubleMatmul(const MatmulSpec &spec, Threads threads,
                                                   std::shared_ptr<Scratch> scratch, const VectorKernels &kernels);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_DOUBLEMATMUL_H
