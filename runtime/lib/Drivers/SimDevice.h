//===- SimDevice.h - a discrete accelerator made of threads -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMDEVICE_H
#define SEGUE_LIB_DRIVERS_SIMDEVICE_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

struct SpillSeam;

/// Makes a simulated device; the options are those of SimProfile.h. Throws also what SpillFile::open throws.
DeviceRef openSimDevice(const DeviceOptions &options);
/// `seam`: of tests, which let the disk fail; outlives the device.
DeviceRef openSimDevice(const DeviceOptions &options, const SpillSeam *seam);
/// The twin of that device, which is not made.
std::string simTwin(const DeviceOptions &options);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMDEVICE_H
