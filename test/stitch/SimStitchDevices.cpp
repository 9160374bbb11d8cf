//===- SimStitchDevices.cpp - random stitchings on simulated devices ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On devices that are adversarial, most of them, or a cpu, against the joined program on a cpu.
//
//===----------------------------------------------------------------------===//

#include "StitchDevices.h"

using namespace segue::test;

const uint64_t segue::test::usualStitchings = 100, segue::test::usualOrders = 2;

StitchDevices segue::test::drawDevices(std::mt19937_64 &random, uint64_t seed) {
  // Half of the others run bodies when they are enqueued.
  std::string sim = seed % 2 ? "sim:" : "sim:streams,";
  std::string common = "latency=0s,link=1000GB/s,threads=1,dram=64MiB,pinned=16MiB,l1=1MiB";
  StitchDevices devices{.joinedSpec = "cpu:threads=1", .seed = seed};
  switch (random() % 10) {
  case 0:
    devices.spec = "cpu:threads=1";
    break;
  case 1:
    devices.spec = sim + common;
    break;
  case 2:
  case 3:
    devices.isFaulty = true;
    devices.spec = sim + common + ",fail-copy=0.15,fail-alloc=0.05,shrink=0.001,adversarial=" + std::to_string(seed);
    break;
  default:
    devices.spec = sim + common + ",adversarial=" + std::to_string(seed);
  }
  return devices;
}

void segue::test::beginOrder(const StitchDevices &, uint64_t) {} // an adversary goes on drawing
