//===- ResidentTensors.cpp - what lives on the host and comes by block ----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/ResidentTensors.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

Tensor copyToHost(const DeviceRef &device, const Tensor &tensor, uint64_t &unpinned) {
  auto there = std::make_shared<TensorDesc>(tensor.desc());
  there->layout.space = Space::HostPinned;
  try {
    return device->transfer().toLayout(device, tensor, there, {.isPlanned = true});
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
  }
  ++unpinned;
  there = std::make_shared<TensorDesc>(*there);
  there->layout.space = Space::Host;
  return device->transfer().toLayout(device, tensor, there, {.isPlanned = true});
}

ResidentTensors::~ResidentTensors() {
  try {
    device_->drain(); // copies out write homes
  } catch (...) {     // a device that failed runs nothing any more
  }
}

bool ResidentTensors::isHome(const Tensor &tensor) const {
  return isHostSpace(tensor.desc().layout.space) && !device_->hasUnifiedMemory();
}

bool ResidentTensors::isOnDevice(Id id) const {
  auto found = entries_.find(id);
  return found != entries_.end() && found->second.device;
}

void ResidentTensors::fetch(Entry &entry) {
  TransferOptions options;
  options.owner = entry.owner;
  options.isPlanned = true;
  entry.device = device_->transfer().copyTo(device_, entry.home, entry.there, options);
  counts_.fetched += 1;
  counts_.fetchedBytes += entry.there->spanBytes();
}

void ResidentTensors::copyHome(Entry &entry) {
  device_->transfer().copyInto(entry.device, entry.home, {.isPlanned = true});
  entry.isChanged = false;
  counts_.sentHome += 1;
  counts_.sentHomeBytes += entry.there->spanBytes();
}

Tensor ResidentTensors::bring(const Tensor &home, const Value &value, bool isWritten) {
  Entry &entry = entries_[idOf(home)];
  entry.home = home;
  if (!entry.owner)
    entry.owner = device_->memory().intern({.value = value.name, .role = std::string(name(value.role))});
  if (!entry.there)
    entry.there = value.sharedDesc;
  if (!entry.device)
    fetch(entry);
  entry.isChanged |= isWritten;
  return entry.device;
}

void ResidentTensors::fetch(Id id) {
  auto found = entries_.find(id);
  if (found != entries_.end() && !found->second.device && found->second.there)
    fetch(found->second);
}

void ResidentTensors::leave(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.device)
    return;
  if (found->second.isChanged)
    copyHome(found->second);
  found->second.device = Tensor();
}

void ResidentTensors::leaveAll() {
  for (auto &[id, entry] : entries_)
    leave(id);
}

Tensor ResidentTensors::sendHome(const Tensor &tensor) {
  Tensor home = copyToHost(device_, tensor, counts_.unpinned);
  if (home.storage() == tensor.storage())
    return home;
  Entry &entry = entries_[idOf(home)];
  entry.home = home;
  entry.there = tensor.sharedDesc();
  counts_.sentHome += 1;
  counts_.sentHomeBytes += tensor.desc().spanBytes();
  return home;
}

Tensor ResidentTensors::take(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end())
    return Tensor();
  if (!found->second.device)
    fetch(found->second);
  Tensor device = std::move(found->second.device);
  entries_.erase(found);
  return device;
}

bool ResidentTensors::forgetUnheld(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end())
    return true;
  if (!found->second.home.isSoleOwner())
    return false;
  entries_.erase(found);
  return true;
}

void ResidentTensors::forgetUnheld() {
  std::erase_if(entries_, [](const auto &item) { return item.second.home.isSoleOwner(); });
}

void ResidentTensors::flush() {
  Fence copies;
  for (auto &[id, entry] : entries_) {
    if (entry.device && entry.isChanged)
      copyHome(entry);
    copies.join(entry.home.storage()->writes());
  }
  if (!copies.empty())
    device_->wait(copies);
  for (auto &[id, entry] : entries_)
    if (const Error *failure = entry.home.storage()->failure())
      throw failure->within("a tensor that lives on the host could not be brought home");
}

void ResidentTensors::dropCopies() {
  for (auto &[id, entry] : entries_) {
    entry.device = Tensor();
    entry.isChanged = false;
  }
}

void ResidentTensors::dropCopy(Id id) {
  if (auto found = entries_.find(id); found != entries_.end()) {
    found->second.device = Tensor();
    found->second.isChanged = false;
  }
}

} // namespace segue::inline runtime
