//===- OwnDevice.h - a device for a while -----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_OWNDEVICE_H
#define SEGUE_LIB_SESSION_OWNDEVICE_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"

namespace segue::inline runtime {

/// A device that is opened for a while, as a twin is: at the end of this object, files that
/// outlive it let go of the device. It may be destroyed after or before the sessions on the
/// device.
class OwnDevice {
public:
  explicit OwnDevice(std::string_view spec) : device_(Device::open(spec)) {}
  ~OwnDevice() { releasePrograms(device_); }
  OwnDevice(const OwnDevice &) = delete;
  OwnDevice &operator=(const OwnDevice &) = delete;

  const DeviceRef &operator*() const { return device_; }
  Device *operator->() const { return device_.get(); }

private:
  DeviceRef device_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_OWNDEVICE_H
