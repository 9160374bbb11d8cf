//===- PanelMatmul.h - matmul in f32 by packed panels -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The engine's own matmul: operands of any strides are packed block by block
// into panels and multiplied by VectorKernels. See PanelMatmul.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_PANELMATMUL_H
#define SEGUE_RUNTIME_LIB_ENGINE_PANELMATMUL_H

#include "Scratch.h"
#include "VectorKernels.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <memory>

namespace segue::inline runtime {

/// The depth that is summed up at once, before the next such block is added.
inline constexpr int64_t kPanelDepth = 384;

/// Makes a plan for any spec without problem; 16-bit operands are widened. The sum of an
/// element has the same order whatever the number of threads.
std::shared_ptr<const MatmulPlan> makePanelMatmul(const MatmulSpec &spec, Threads threads,
                                                  std::shared_ptr<Scratch> scratch, const VectorKernels &kernels);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_PANELMATMUL_H
