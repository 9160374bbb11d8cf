//===- LayoutPairSpecs.cpp - devices for all pairs of layouts -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LayoutCases.h"

std::vector<std::string> segue::test::layoutPairSpecs() {
  std::string sim = "sim:latency=0s,link=1000GB/s,threads=1", streams = "sim:streams,latency=0s,link=1000GB/s,threads=1";
  return {"cpu:threads=1",
          "cpu:threads=2",
          sim,
          sim + ",adversarial=1",
          sim + ",adversarial=2,fail-copy=0.001",
          streams,
          streams + ",adversarial=1"};
}
