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

#ifndef SEGUE_LIB_DRIVERS_DRIVERS_H
#define SEGUE_LIB_DRIVERS_DRIVERS_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

struct Driver {
  /// The name before the colon, whose characters live as long as the process.
  std::string_view name;
  DeviceRef (*open)(const DeviceOptions &options);
  /// Says what Device::twin of that device would, without opening it; null for a driver
  /// that has to ask the device.
  std::string (*twin)(const DeviceOptions &options) = nullptr;
};

/// Returns the spec of the device of virtual time on which steps for the device `spec` are
/// planned, or nothing for a device without one. Where the driver can do without, nothing
/// is opened, taken or reserved. For `cpu` without a disk it is that of a cpu above a disk
/// that has room for everything. Throws what Device::open throws.
std::optional<std::string> twinOf(std::string_view spec);

/// Returns true if the device `spec` is opened for that, as only it can tell.
bool isOpenedForTwin(std::string_view spec);

/// Makes Device::open know `driver`. Called before any other thread opens a device.
void addDriver(const Driver &driver);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DRIVERS_H
