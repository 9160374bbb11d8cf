//===- SimAboveDisk.cpp - a simulated device above a disk -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Drivers/SimDevice.h"
#include "AboveDisk.h"

using namespace segue;

DeviceRef segue::test::openAboveDisk(const std::string &options, const std::string &way, const SpillSeam *seam) {
  return openSimDevice(DeviceOptions("sim", options + ",l1=0,threads=1,latency=0s" + way), seam);
}

// Whatever order the queues run in, and whichever copies fail.
std::vector<std::string> segue::test::waysAboveDisk() {
  std::vector<std::string> ways = {"", ",streams"};
  for (int seed = 0; seed < 6; ++seed)
    for (std::string way : {",", ",streams,"})
      ways.push_back(way + "adversarial=" + std::to_string(seed) + (seed % 2 ? ",fail-copy=0.02" : ""));
  return ways;
}
