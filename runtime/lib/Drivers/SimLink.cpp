//===- SimLink.cpp - the wire between host and device ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimLink.h"
#include <algorithm>
#include <cstring>
#include <thread>

namespace segue::inline runtime {

void SimLink::carry(void *target, const void *source, uint64_t bytes) {
  auto duration = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(latencySeconds_ + double(bytes) / bytesPerSecond_));
  Clock::time_point done;
  {
    std::lock_guard lock(mutex_);
    done = freeAt_ = std::max(freeAt_, Clock::now()) + duration;
  }
  if (bytes)
    std::memcpy(target, source, bytes);
  std::this_thread::sleep_until(done);
}

} // namespace segue::inline runtime
