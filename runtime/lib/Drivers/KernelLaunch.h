//===- KernelLaunch.h - kernels on this machine's threads -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Launches kernels and lays tensors out anew on every device whose kernels are code, and
// whose memory is memory, of this machine.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_KERNELLAUNCH_H
#define SEGUE_LIB_DRIVERS_KERNELLAUNCH_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Threads.h"

namespace segue::inline runtime {

/// Does what Device::launch promises, with a HostKernel on up to `most` of `threads`.
void launchKernel(const Threads &threads, const Kernel &kernel, std::span<void *const> args, int64_t range, int64_t grain,
                  int most);

/// Does what Device::relayout promises, on up to `threads` threads.
void relayoutHere(const CopyPlan &plan, const void *source, void *target, int threads);

/// Returns the error of a relayout that was to quantise a row with NaN or infinity.
Error nonFiniteRow(int64_t row);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_KERNELLAUNCH_H
