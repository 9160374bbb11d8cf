//===- SlabDevices.h - which devices serve slabs in a program ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABDEVICES_H
#define SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABDEVICES_H

#include <string>
#include <vector>

/// Specs of the devices on which a program of tests serves slabs and multiplies with their codes.
std::vector<std::string> slabDevices();

#endif // SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABDEVICES_H
