//===- CudaTestParts.h - what tests of cuda:N share -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_CUDATESTPARTS_H
#define SEGUE_TEST_CUDA_CUDATESTPARTS_H

#include "segue/runtime/Memory/RawMemory.h"
#include <gtest/gtest.h>
#include <string>
#include <string_view>

namespace segue::test {

inline constexpr Space dram = Space::DeviceDram;
inline constexpr uint64_t mib = 1 << 20;

inline void expectWords(const std::string &message, std::string_view words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

} // namespace segue::test

#endif // SEGUE_TEST_CUDA_CUDATESTPARTS_H
