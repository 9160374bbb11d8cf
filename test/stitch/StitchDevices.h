//===- StitchDevices.h - where random stitchings are played -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// RandomStitchTest.cpp is part of two programs of tests: one plays on simulated devices
// (SimStitchDevices.cpp), the other on the fake driver of GPUs (GpuStitchDevices.cpp).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_STITCHDEVICES_H
#define SEGUE_TEST_STITCH_STITCHDEVICES_H

#include <cstdint>
#include <random>
#include <string>

namespace segue::test {

struct StitchDevices {
  /// Of the stitching, and of its joined program.
  std::string spec, joinedSpec;
  uint64_t seed = 0;
  /// True if copies and allocations fail now and then.
  bool isFaulty = false;
};

/// The stitchings of a check, and the orders in which each is played.
extern const uint64_t usualStitchings, usualOrders;

StitchDevices drawDevices(std::mt19937_64 &random, uint64_t seed);

/// Called before a stitching is played for the `pass`-th time: a driver that can draws another order.
void beginOrder(const StitchDevices &devices, uint64_t pass);

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_STITCHDEVICES_H
