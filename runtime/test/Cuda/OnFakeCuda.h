//===- OnFakeCuda.h - a program of tests on the fake driver -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One file of a program includes this: `cuda:N` is the fake in it, and no test may do what
// no program may do with a driver.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_ONFAKECUDA_H
#define SEGUE_TEST_CUDA_ONFAKECUDA_H

#include "FakeCuda.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include <cstdlib>
#include <gtest/gtest.h>

namespace segue::test {

inline const bool isFake = (setenv("SEGUE_CUDA_LIBRARY", SEGUE_FAKE_CUDA, 1),
                            setenv("SEGUE_CUBLASLT_LIBRARY", SEGUE_FAKE_CUBLASLT, 1),
                            setenv("SEGUE_NCCL_LIBRARY", SEGUE_FAKE_NCCL, 1), useCuda(), true);

/// Looks after every test.
class NoMisuse final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo &) override { fakecuda::reset(); }
  void OnTestEnd(const testing::TestInfo &) override {
    EXPECT_EQ(fakecuda::misuse(), "");
    fakecuda::reset();
  }
};
inline const bool isListening = (testing::UnitTest::GetInstance()->listeners().Append(new NoMisuse), true);

} // namespace segue::test

#endif // SEGUE_TEST_CUDA_ONFAKECUDA_H
