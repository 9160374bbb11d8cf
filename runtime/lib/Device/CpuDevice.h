//===- CpuDevice.h - this machine's processors ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DEVICE_CPUDEVICE_H
#define SEGUE_LIB_DEVICE_CPUDEVICE_H

#include "segue/runtime/Device/Device.h"
#include <map>

namespace segue::inline runtime {

/// Makes a cpu device. Known options: "threads".
DeviceRef openCpuDevice(const std::map<std::string, std::string> &options);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DEVICE_CPUDEVICE_H
