//===- KernelTarget.h - what kernels this process runs ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_KERNELTARGET_H
#define SEGUE_RUNTIME_DEVICE_KERNELTARGET_H

#include <string>

namespace segue::inline runtime {

/// Returns the instruction set whose kernels this process runs where a
/// binary has them: "x86-64-v4" where the processor has it and the
/// environment does not say SEGUE_ISA=v3, else "x86-64-v3". From any thread.
std::string kernelTarget();

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_KERNELTARGET_H
