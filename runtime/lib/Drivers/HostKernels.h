//===- HostKernels.h - kernels of files on this processor -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Maps the ELF objects of a file and finds, for a kernel, the best variant that this
// CPU can run. The environment variable SEGUE_ISA=v3 keeps to x86-64-v3 on a machine
// with more (v4 is the default where it is there). An object is mapped once for all
// devices of the process, and as long as a handle is there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_HOSTKERNELS_H
#define SEGUE_LIB_DRIVERS_HOSTKERNELS_H

#include "segue/runtime/Device/Kernel.h"

namespace segue::inline runtime {

/// Does what Device::makeKernel promises, on devices whose kernels are code of this process. Any thread may call.
KernelRef makeHostKernel(const KernelSource &source);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_HOSTKERNELS_H
