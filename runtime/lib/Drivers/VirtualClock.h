//===- VirtualClock.h - a device that knows the times to come ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A device of virtual time is also a VirtualClock, for code that takes times without waiting:
//
//   if (auto *clock = dynamic_cast<const VirtualClock *>(&device))
//     double end = clock->endOf(fence);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_VIRTUALCLOCK_H
#define SEGUE_LIB_DRIVERS_VIRTUALCLOCK_H

#include "segue/runtime/Fence.h"

namespace segue::inline runtime {

class VirtualClock {
public:
  /// Returns the time at which all of `fence`, which was enqueued, is done: by
  /// Device::seconds(), which does not move; now, if it is done.
  virtual double endOf(const Fence &fence) const = 0;

protected:
  ~VirtualClock() = default;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_VIRTUALCLOCK_H
