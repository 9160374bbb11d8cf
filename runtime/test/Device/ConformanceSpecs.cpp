//===- ConformanceSpecs.cpp - the devices of the runtime itself -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConformanceTest.h"
#include "RenamedSim.h"

using namespace segue::test;

static std::vector<ConformanceSpec> specs() {
  std::vector<ConformanceSpec> specs = {
      {"cpu"},
      {"cpu:threads=1"},
      {"cpu:threads=3,dram=1MiB"},
      {"sim:dram=4MiB,pinned=2MiB,l1=64KiB,latency=1us"},
      {"sim:dram=1MiB,pinned=1MiB,l1=0,threads=1,h2d=2GB/s,d2h=1GB/s,latency=0s"},
      {"sim:virtual,dram=24GiB,pinned=64GiB,l1=50MiB,threads=2"},
      {"sim:virtual,l1=0,launch=0s,latency=0s"},
      {"renamed:dram=1MiB,pinned=1MiB,l1=64KiB,latency=0s"},
      {"sim:streams,dram=1MiB,pinned=1MiB,l1=64KiB,latency=0s"},
      {"renamed:virtual,l1=0"},
      {"cpu:dram=1MiB,pinned=1MiB,threads=2,disk=.?capacity=2MiB"},
      {"sim:dram=1MiB,host=2MiB,l1=64KiB,latency=0s,threads=2,disk=.?capacity=2MiB"},
      {"sim:streams,dram=1MiB,host=2MiB,l1=0,latency=0s,threads=2,disk=.?capacity=2MiB,adversarial=8"},
      {"sim:virtual,dram=1GiB,pinned=2MiB,disk=2GiB,diskread=2GB/s"},
  };
  for (int seed = 0; seed < 8; ++seed)
    for (const char *driver : {"sim:", "sim:streams,"})
      specs.push_back({driver + std::string("dram=1MiB,pinned=1MiB,l1=64KiB,threads=2,adversarial=") + std::to_string(seed)});
  return specs;
}

INSTANTIATE_TEST_SUITE_P(All, ConformanceTest, testing::ValuesIn(specs()), nameOf);
