//===- SimFaults.cpp - what goes wrong on a simulated device --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimFaults.h"

namespace segue::inline runtime {

SimFaults::SimFaults(const SimProfile &profile)
    : failCopy_(profile.failCopy), failAlloc_(profile.failAlloc), shrink_(profile.shrink), stall_(profile.stall),
      toDevice_{profile.failToDevice}, toHost_{profile.failToHost}, dram_{profile.failDram}, copies_(profile.adversary.value_or(0) + 1),
      allocations_(profile.adversary.value_or(0) + 2), budgets_(profile.adversary.value_or(0) + 3),
      stalls_(profile.adversary.value_or(0) + 4), disk_(profile.adversary.value_or(0) + 5) {}

bool SimFaults::copyFails(bool toDevice) {
  bool isPlace = (toDevice ? toDevice_ : toHost_).isNext();
  return happens(copies_, failCopy_) || isPlace;
}

bool SimFaults::happens(std::mt19937_64 &random, double chance) {
  if (chance <= 0)
    return false;
  std::lock_guard lock(mutex_);
  return double(random() >> 11) * 0x1p-53 < chance;
}

void SimFaults::moveBudget(DeviceMemory &memory) {
  if (shrink_ >= 1 || !happens(budgets_, shrunk_ ? 1.0 / 8 : 1.0 / 16))
    return;
  if (shrunk_)
    shrunk_.reset();
  else
    shrunk_ = memory.addCap(Space::DeviceDram, uint64_t(double(memory.budget(Space::DeviceDram)) * shrink_));
}

} // namespace segue::inline runtime
