//===- AllocationsTest.cpp - what a submit takes from the heap ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Counts by operators of its own, in place of which sanitizers have theirs:
// built without them alone.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"
#include <cstdlib>
#include <gtest/gtest.h>
#include <new>

using namespace segue;
using namespace segue::test;

static thread_local uint64_t allocations = 0;

__attribute__((noinline)) void *operator new(std::size_t bytes) {
  ++allocations;
  if (void *data = std::malloc(bytes ? bytes : 1))
    return data;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void *data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void *data, std::size_t) noexcept { std::free(data); }

// A plan that was made is only followed.
TEST(SubmitTest, ThirdSubmitDoesNotAllocate) {
  DeviceRef device = Device::open("cpu:threads=1");
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  Executor executor(device, binary.program("forward"));
  std::vector<Tensor> inputs, outputs(1);
  for (int i = 0; i < 2; ++i)
    inputs.push_back(Tensor::zeros(device, TensorDesc({64}, ElementType::f32)));
  executor.run(inputs, outputs);
  executor.run(inputs, outputs);
  uint64_t before = allocations;
  for (int i = 0; i < 100; ++i)
    executor.run(inputs, outputs);
  EXPECT_EQ(allocations, before);
  outputs[0] = Tensor::zeros(device, TensorDesc({64}, ElementType::f32));
  EXPECT_GT(allocations, before) << "the count counts";
}
