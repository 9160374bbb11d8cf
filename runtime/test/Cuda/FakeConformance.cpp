//===- FakeConformance.cpp - conformance of cuda:N on a fake driver -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The code that drives a GPU, in four orders of the fake.
//
//===----------------------------------------------------------------------===//

#include "../Device/ConformanceTest.h"
#include "../Services/SquareQ/SlabDevices.h"
#include "../Transfer/LayoutCases.h"
#include "CudaSpecs.h"
#include "OnFakeCuda.h"

using namespace segue;
using namespace segue::test;

std::vector<std::string> segue::test::cudaSpecs() {
  std::vector<std::string> specs;
  for (int gpu = 0; gpu < 4; ++gpu)
    specs.push_back("cuda:" + std::to_string(gpu) + ",dram=16MiB,pinned=8MiB" + (gpu == 3 ? ",l1=1MiB" : ""));
  return specs;
}

static std::vector<ConformanceSpec> specs() {
  std::vector<ConformanceSpec> specs;
  for (const std::string &spec : cudaSpecs())
    specs.push_back({spec, /*hasTheBitsOfTheCpu=*/false});
  specs.push_back({"cuda:7,dram=16MiB,host=8MiB,disk=.?capacity=4MiB", /*hasTheBitsOfTheCpu=*/false});
  return specs;
}

std::vector<std::string> segue::test::layoutPairSpecs() { return {"cuda:4,dram=32MiB,pinned=16MiB"}; }

std::vector<std::string> slabDevices() {
  return {"cuda:0,dram=64MiB,pinned=16MiB", "cuda:3,dram=64MiB,pinned=16MiB"};
}

INSTANTIATE_TEST_SUITE_P(Fake, ConformanceTest, testing::ValuesIn(specs()), nameOf);
