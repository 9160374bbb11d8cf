//===- CudaSpecs.h - which GPUs a program of tests opens --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_CUDASPECS_H
#define SEGUE_TEST_CUDA_CUDASPECS_H

#include <string>
#include <vector>

namespace segue::test {

/// Specs of the fake driver, or of the GPU of this machine.
std::vector<std::string> cudaSpecs();

} // namespace segue::test

#endif // SEGUE_TEST_CUDA_CUDASPECS_H
