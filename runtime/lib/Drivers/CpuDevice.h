//===- CpuDevice.h - this machine's processors ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_CPUDEVICE_H
#define SEGUE_LIB_DRIVERS_CPUDEVICE_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

/// Makes a cpu device. Options: `threads=N` (default: all), `dram=SIZE`, the
/// capacity of device_dram (default: the machine's memory), `profile=FILE`, its speeds
/// (DeviceProfile.h), which bound commands in a profile of a run.
DeviceRef openCpuDevice(const DeviceOptions &options);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_CPUDEVICE_H
