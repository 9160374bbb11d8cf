//===- RenamedSim.h - a driver that nobody knows by name --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A test that includes this can open `sim` as `renamed`: whoever tests a device's
// name instead of asking the device fails there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_DEVICE_RENAMEDSIM_H
#define SEGUE_TEST_DEVICE_RENAMEDSIM_H

#include "../../lib/Drivers/Drivers.h"
#include "../../lib/Drivers/SimDevice.h"

namespace segue::test {
inline const bool isSimRenamed = (addDriver({"renamed", openSimDevice}), true);
} // namespace segue::test

#endif // SEGUE_TEST_DEVICE_RENAMEDSIM_H
