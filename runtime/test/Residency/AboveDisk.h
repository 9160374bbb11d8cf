//===- AboveDisk.h - devices with a disk below their host -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// DiskBelowHostTest.cpp is part of two programs of tests: one opens `sim`
// (SimAboveDisk.cpp), the other GPUs of the fake driver (GpuAboveDisk.cpp).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_RESIDENCY_ABOVEDISK_H
#define SEGUE_TEST_RESIDENCY_ABOVEDISK_H

#include "segue/runtime/Device/Device.h"
#include <string>
#include <vector>

namespace segue::inline runtime {
struct SpillSeam;
}

namespace segue::test {

/// A device with `options`, which name its memory and its disk, in one of its ways to order work.
DeviceRef openAboveDisk(const std::string &options, const std::string &way, const SpillSeam *seam);
/// The first is the usual one.
std::vector<std::string> waysAboveDisk();

} // namespace segue::test

#endif // SEGUE_TEST_RESIDENCY_ABOVEDISK_H
