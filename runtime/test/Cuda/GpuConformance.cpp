//===- GpuConformance.cpp - conformance of cuda:0 on a GPU ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Device/ConformanceTest.h"
#include "../Transfer/LayoutCases.h"
#include "CudaSpecs.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Disk/SpillFile.h"
#include "segue/runtime/Error.h"
#include <cstdio>

using namespace segue;
using namespace segue::test;

static const bool isKnown = (useCuda(), true);

std::vector<std::string> segue::test::cudaSpecs() {
  return {"cuda:0,dram=16MiB,pinned=8MiB", "cuda:0,dram=64MiB,pinned=64MiB", "cuda:0,pinned=256MiB"};
}

std::vector<std::string> segue::test::layoutPairSpecs() { return {"cuda:0,dram=256MiB,pinned=256MiB"}; }

static std::vector<ConformanceSpec> specs() {
  std::vector<ConformanceSpec> specs;
  for (const std::string &spec : cudaSpecs())
    specs.push_back({spec, /*hasTheBitsOfTheCpu=*/false});
  try {
    SpillFile::open(".", 1 << 20);
    specs.push_back({"cuda:0,dram=16MiB,host=8MiB,disk=.?capacity=4MiB", /*hasTheBitsOfTheCpu=*/false});
  } catch (const Error &error) {
    std::fprintf(stderr, "no disk below the host's memory is tried: %s\n", error.what());
  }
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Gpu, ConformanceTest, testing::ValuesIn(specs()), nameOf);
