//===- Timestamp.h - when a queue came to a place ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_TIMESTAMP_H
#define SEGUE_RUNTIME_DEVICE_TIMESTAMP_H

#include <atomic>
#include <cmath>
#include <memory>

namespace segue::inline runtime {

/// The time at which a queue came to a stamp, by Device::seconds(). The device sets it
/// before the fence of the entry is done; any thread may read it.
class Timestamp {
public:
  bool isKnown() const { return !std::isnan(seconds()); }
  /// Returns NaN until the queue has come there, and on a device without bytes.
  double seconds() const { return seconds_.load(std::memory_order_acquire); }
  /// Called by the device.
  void set(double seconds) { seconds_.store(seconds, std::memory_order_release); }

private:
  std::atomic<double> seconds_{NAN};
};
using TimestampRef = std::shared_ptr<Timestamp>;

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_TIMESTAMP_H
