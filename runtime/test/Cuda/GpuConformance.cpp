//===- GpuConformance.cpp - conformance of cuda:0 on a GPU ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Collectives/CollectivesConformance.h"
#include "../Device/ConformanceTest.h"
#include "../Transfer/LayoutCases.h"
#include "CudaSpecs.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Cuda/Nccl.h"
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

/// Ranks that send by NCCL, as many as there are GPUs: of one, too, which makes all calls. What NCCL takes for itself
/// counts.
static std::vector<CollectivesCase> ranks() {
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1); // as Cuda/Nccl.h says of ranks in one process
  auto byNccl = [](DeviceRef device, std::shared_ptr<Transport> transport, const CollectiveOptions &options) {
    return joinRanks(std::move(device), std::move(transport),
                     {.collectives = options,
                      .way = options.addsInOrder ? MessageWay::Automatic : MessageWay::Nccl});
  };
  try {
    std::vector<GpuDescription> gpus = describeGpus();
    uint64_t bytes = std::min(gpus.at(0).memoryBytes / 4, uint64_t(4) << 30);
    static const std::string device = "cuda:RANK,pinned=8MiB,dram=" + std::to_string(bytes);
    return {{device.c_str(), byNccl, /*addsInOrder=*/false, std::min(int(gpus.size()), 4)}};
  } catch (const std::exception &error) {
    std::fprintf(stderr, "no ranks on GPUs are tried: %s\n", error.what());
    return {};
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CollectivesConformance);
INSTANTIATE_TEST_SUITE_P(Nccl, CollectivesConformance, testing::ValuesIn(ranks()));
