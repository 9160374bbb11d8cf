//===- SimLink.h - the wire between host and device -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One direction of the link. Bytes are really copied; the call returns when
// the link of the profile would have carried them. Copies that meet follow
// each other.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMLINK_H
#define SEGUE_LIB_DRIVERS_SIMLINK_H

#include <chrono>
#include <cstdint>
#include <mutex>

namespace segue::inline runtime {

class SimLink {
public:
  SimLink(double bytesPerSecond, double latencySeconds)
      : bytesPerSecond_(bytesPerSecond), latencySeconds_(latencySeconds) {}

  /// Blocks for latency + bytes / bandwidth, or as long as the copy takes.
  void carry(void *target, const void *source, uint64_t bytes);

private:
  using Clock = std::chrono::steady_clock;

  double bytesPerSecond_, latencySeconds_;
  std::mutex mutex_;
  Clock::time_point freeAt_{};
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMLINK_H
