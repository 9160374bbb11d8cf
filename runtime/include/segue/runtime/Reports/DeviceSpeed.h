//===- DeviceSpeed.h - the most that a device can do ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The two figures that bound a command: how fast the device multiplies, and how fast its
// memory is. Those of the profile that the device's spec names, or else measured at once
// as `segue-run profile-device` measures them.
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_DEVICESPEED_H
#define SEGUE_RUNTIME_REPORTS_DEVICESPEED_H

#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

struct DeviceSpeed {
  /// The speed of products: f32 on a processor, bf16 on a GPU.
  double flopsPerSecond = 0;
  /// The speed of memory beyond all caches; each byte that is read or written counts.
  double bytesPerSecond = 0;
  /// Where the figures come from: "AMD EPYC, measured in 1 s" or "laptop.json".
  std::string source;
};

/// Returns the speed of `device` with the threads that it has. Without a profile in its spec it
/// is measured, for about `seconds`, in some 110 MiB of this machine's memory or in up to
/// 512 MiB of a GPU's; nobody else should use the device meanwhile. Throws what
/// readDeviceProfile and measureDevice throw, and InvalidArgument for a profile without
/// flops or membw.
DeviceSpeed speedOf(const Device &device, double seconds = 1);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_DEVICESPEED_H
