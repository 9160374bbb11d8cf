//===- StoredGpuStitchDevices.cpp - random stitchings on any GPU ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The stitchings of GpuStitchDevices.cpp from pieces that SegueGpuStitchTests has stored
// (StoredPieces.h), on the GPU that is there (tools/gpu-check): no compiler is needed, and
// nothing but the GPU draws the order.
//
//===----------------------------------------------------------------------===//

#include "StitchDevices.h"
#include "segue/runtime/Cuda/CudaDriver.h"

using namespace segue::test;

static const bool isKnown = (segue::useCuda(), true);

const uint64_t segue::test::usualStitchings = 40, segue::test::usualOrders = 2;

StitchDevices segue::test::drawDevices(std::mt19937_64 &random, uint64_t seed) {
  // The fake fails for some of them. The next numbers are to be those that it drew.
  (void)random();
  std::string spec = "cuda:0,dram=64MiB,pinned=16MiB";
  return {spec, spec, seed, /*isFaulty=*/false};
}

void segue::test::beginOrder(const StitchDevices &, uint64_t) {}
