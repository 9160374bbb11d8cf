//===- Relayout.h - any layout to any layout on a GPU -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_RELAYOUT_H
#define SEGUE_LIB_CUDA_RELAYOUT_H

#include "BuiltinKernels.h"
#include "segue/runtime/Transfer/CopyPlan.h"

namespace segue::inline runtime::cuda {

/// Does what Device::relayout promises, between places in the memory of the device, with
/// the bits of plan.run().
void relayoutOnDevice(BuiltinKernels &kernels, const CopyPlan &plan, const std::byte *source, std::byte *target);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_RELAYOUT_H
