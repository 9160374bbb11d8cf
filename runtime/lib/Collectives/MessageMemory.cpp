//===- MessageMemory.cpp - memory of messages under way -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MessageMemory.h"
#include "segue/runtime/Collectives/Interconnect.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <numeric>

namespace segue::inline runtime {

std::shared_ptr<Storage> MessageMemory::allocate(uint64_t bytes) {
  OwnerId owner = device_->memory().intern({.value = std::string(messageOwner)});
  try {
    return Storage::allocate(device_, Space::HostPinned, bytes, alignment, owner);
  } catch (const Error &) { // copies are slower from memory that is not page-locked, and not wrong
    return Storage::allocate(device_, Space::Host, bytes, alignment, owner);
  }
}

std::shared_ptr<Storage> MessageMemory::take(uint64_t bytes) {
  // Memory of a message that was larger than all of this goes first.
  if (!fits(bytes) && heldBytes_ <= mostBytes_) {
    auto serves = [&](const Run &run) { return run.isGiven && run.storage->bytes() >= bytes; };
    if (auto run = std::ranges::find_if(runs_, serves); run != runs_.end()) {
      std::shared_ptr<Storage> storage = std::move(run->storage);
      runs_.erase(run);
      storage->renew();
      return runs_.emplace_back(storage).storage;
    }
  }
  for (auto run = runs_.begin(); run != runs_.end() && !fits(bytes);) {
    if (!run->isGiven) {
      ++run;
      continue;
    }
    // An arena gives out bytes that are still in use with the fence of that; the system gives out others.
    if (device_->runsInline() || run->storage->space() == Space::Host)
      device_->wait(run->storage->uses());
    setHeld(heldBytes_ - run->storage->bytes());
    run = runs_.erase(run);
  }
  std::shared_ptr<Storage> storage = allocate(bytes);
  setHeld(heldBytes_ + bytes);
  return runs_.emplace_back(storage).storage;
}

void MessageMemory::given(const std::shared_ptr<Storage> &storage) {
  for (Run &run : runs_)
    if (run.storage == storage)
      run.isGiven = true;
}

void MessageMemory::clear() {
  runs_.clear();
  setHeld(0);
}

void MessageMemory::setHeld(uint64_t bytes) {
  heldBytes_ = bytes;
  peakBytes_ = std::max(peakBytes_, heldBytes_);
  device_->transfer().holdForMessages(bytes);
}

uint64_t MessageMemory::mostFor(std::span<const uint64_t> messages) const {
  if (messages.empty())
    return 0;
  uint64_t all = std::accumulate(messages.begin(), messages.end(), uint64_t(0));
  return std::max(std::min(all, mostBytes_), *std::ranges::max_element(messages));
}

} // namespace segue::inline runtime
