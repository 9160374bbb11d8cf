//===- Drivers.h - who opens devices ----------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Device::open finds a driver by what stands before the colon of a spec. Tests add
// drivers of their own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DEVICE_DRIVERS_H
#define SEGUE_LIB_DEVICE_DRIVERS_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

struct Driver {
  /// Lives as long as the process.
  std::string_view name;
  DeviceRef (*open)(const DeviceOptions &options);
};

/// Device::open knows `driver` from now on. Called before any other thread opens a
/// device.
void addDriver(const Driver &driver);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DEVICE_DRIVERS_H
