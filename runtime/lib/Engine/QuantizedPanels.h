//===- QuantizedPanels.h - products of codes by widened panels --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_QUANTIZEDPANELS_H
#define SEGUE_RUNTIME_LIB_ENGINE_QUANTIZEDPANELS_H

#include "Scratch.h"
#include "VectorKernels.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <atomic>
#include <memory>

namespace segue::inline runtime {

/// Makes a plan for any spec without problem. Each run of it adds one to `calls`.
std::shared_ptr<const QuantizedMatmulPlan> makeQuantizedPanels(const QuantizedMatmulSpec &spec, Threads threads,
                                                               std::shared_ptr<Scratch> scratch,
                                                               const VectorKernels &kernels,
                                                               std::shared_ptr<std::atomic<uint64_t>> calls);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_QUANTIZEDPANELS_H
