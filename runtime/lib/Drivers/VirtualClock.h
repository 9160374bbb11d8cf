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

#include "segue/runtime/Device/Device.h"
#include <functional>

namespace segue::inline runtime {

class VirtualClock {
public:
  /// Returns the time at which all of `fence`, which was enqueued, is done: by
  /// Device::seconds(), which does not move; now, if it is done.
  virtual double endOf(const Fence &fence) const = 0;

  /// An entry of a queue, and when it begins and ends by Device::seconds().
  struct Entry {
    Queue queue;
    std::string_view label;
    const WorkCost &cost;
    double begin, end;
  };
  using Watcher = std::function<void(const Entry &)>;
  /// Has `watcher` told of each entry as it is enqueued, from here on; null: nobody. It calls no device. The thread that
  /// submits calls this.
  virtual void watch(Watcher watcher) = 0;

protected:
  ~VirtualClock() = default;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_VIRTUALCLOCK_H
