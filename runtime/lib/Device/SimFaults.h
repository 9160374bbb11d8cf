//===- SimFaults.h - what goes wrong on a simulated device ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Draws the faults of an adversarial device from its seed: copies over the link
// that fail, allocations that fail, a budget that shrinks and comes back. Each
// kind has a generator of its own, so that one does not shift the others.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DEVICE_SIMFAULTS_H
#define SEGUE_LIB_DEVICE_SIMFAULTS_H

#include "SimProfile.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <mutex>
#include <random>

namespace segue::inline runtime {

class SimFaults {
public:
  explicit SimFaults(const SimProfile &profile);

  bool copyFails() { return happens(copies_, failCopy_); }
  bool allocationFails() { return happens(allocations_, failAlloc_); }

  /// At times sets the budget of device_dram to a part of what it is, at times
  /// back. Called by the thread that submits, for each entry.
  void moveBudget(DeviceMemory &memory);

private:
  bool happens(std::mt19937_64 &random, double chance);

  double failCopy_, failAlloc_, shrink_;
  std::mutex mutex_;
  std::mt19937_64 copies_, allocations_, budgets_;
  bool isShrunk_ = false;
  uint64_t fullBytes_ = 0, shrunkBytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DEVICE_SIMFAULTS_H
