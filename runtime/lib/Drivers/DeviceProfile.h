//===- DeviceProfile.h - a device's figures in a file -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A profile says what a device has and how fast it is, as `segue-run profile-device`
// measures it or someone writes it down: a JSON object of options, as texts with units.
//
//   {"version": 1, "about": "a laptop", "dram": "15GiB", "flops": "120GFLOP/s",
//    "membw": "14GB/s", "h2d": "2.1GB/s", "d2h": "1.1GB/s", "latency": "80us"}
//
// Keys: dram, host, pinned, l1, disk (bytes); link, h2d, d2h (bytes per second over the
// link: of a disk below memory h2d reads it and d2h writes it), latency (of each copy),
// flops, membw (of kernels), launch (of each kernel), hostmem (memcpy of the host on one
// thread), diskread, diskwrite (of a disk below the host's memory), threads. `about`, and an
// object `measured` of further figures, are for people. `version` is 1, also where it is not there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DEVICEPROFILE_H
#define SEGUE_LIB_DRIVERS_DEVICEPROFILE_H

#include "DeviceOptions.h"

namespace segue::inline runtime {

/// Returns the options in the profile `path`, for a device of `driver`. Throws IoFailed for
/// a file that cannot be read, FileCorrupt for one that is no such object, VersionUnsupported
/// for one of a later version, InvalidArgument for unknown keys and for values that are
/// neither texts nor whole numbers; a quantity is checked when it is asked for.
DeviceOptions readDeviceProfile(std::string_view driver, const std::string &path);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DEVICEPROFILE_H
