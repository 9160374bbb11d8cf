//===- SimFaults.h - what goes wrong on a simulated device ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Draws the faults of an adversarial device from its seed: copies over the link
// that fail, allocations that fail, a budget that shrinks and comes back, waits
// that run out of time. Each kind has a generator of its own, so that one does
// not shift the others. Copies fail also at a chosen place, on any device.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMFAULTS_H
#define SEGUE_LIB_DRIVERS_SIMFAULTS_H

#include "SimProfile.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <atomic>
#include <mutex>
#include <optional>
#include <random>

namespace segue::inline runtime {

class SimFaults {
public:
  explicit SimFaults(const SimProfile &profile);

  /// Returns true if a copy over the link is to fail. Called once per copy.
  bool copyFails(bool toDevice);
  /// Called once per copy from or to a disk below the host's memory.
  bool diskFails() { return happens(disk_, failCopy_); }
  /// Called once per try to take memory of the device or page-locked memory.
  bool allocationFails(Space space) {
    bool isPlace = space == Space::DeviceDram && dram_.isNext();
    return happens(allocations_, failAlloc_) || isPlace;
  }
  /// Returns true if a wait that has a limit reaches it.
  bool timeRunsOut() { return happens(stalls_, stall_); }

  /// At times caps device_dram at a part of its budget, at times ends
  /// that. Called by the thread that submits, for each entry.
  void moveBudget(DeviceMemory &memory);

private:
  bool happens(std::mt19937_64 &random, double chance);

  /// Copies of a direction, or tries to allocate, some of which fail.
  struct Place {
    SimProfile::FaultRange fails;
    std::atomic<uint64_t> tries{0};
    bool isNext() {
      uint64_t number = ++tries; // the first is 1
      return number >= fails.first && number - fails.first < fails.count;
    }
  };

  double failCopy_, failAlloc_, shrink_, stall_;
  Place toDevice_, toHost_, dram_;
  std::mutex mutex_;
  std::mt19937_64 copies_, allocations_, budgets_, stalls_, disk_;
  std::optional<DeviceMemory::CapHandle> shrunk_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMFAULTS_H
