//===- OneDnnMatmul.h - matmul by oneDNN ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// oneDNN's matmul has what the engine's own lacks: bf16 on AMX and AVX-512 BF16
// units. See OneDnnMatmul.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_ONEDNNMATMUL_H
#define SEGUE_RUNTIME_LIB_ENGINE_ONEDNNMATMUL_H

#include "Scratch.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <memory>

namespace segue::inline runtime {

/// Makes a plan, or returns null where oneDNN has no optimised kernel for the spec on this
/// processor (f16, operands without a unit stride, bf16 before AVX-512).
std::shared_ptr<const MatmulPlan> makeOneDnnMatmul(const MatmulSpec &spec, Threads threads,
                                                   std::shared_ptr<Scratch> scratch);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_ONEDNNMATMUL_H
