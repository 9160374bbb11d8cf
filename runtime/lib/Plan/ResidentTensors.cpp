//===- ResidentTensors.cpp - what lives on the host and comes by block ----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/ResidentTensors.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

/// What an optimizer waits for is fetched so often, each time tried twice by the
/// engine: to give up would leave a step half done.
static constexpr int mostFetches = 8;

Tensor copyToHost(const DeviceRef &device, const Tensor &tensor, uint64_t &unpinned,
                  std::shared_ptr<TransferChecksum> checksum) {
  TransferOptions how;
  how.isPlanned = true;
  how.checksum = std::move(checksum);
  auto there = std::make_shared<TensorDesc>(tensor.desc());
  there->layout.space = Space::HostPinned;
  try {
    if (device->transfer().leavesRoomToStage(there->spanBytes()))
      return device->transfer().toLayout(device, tensor, there, how);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
  }
  ++unpinned;
  there = std::make_shared<TensorDesc>(*there);
  there->layout.space = Space::Host;
  return device->transfer().toLayout(device, tensor, there, how);
}

ResidentTensors::ResidentTensors(DeviceRef device) : device_(std::move(device)) {
  roomMaker_ = device_->memory().addRoomMaker("resident tensors", 0, [this](Space space, uint64_t wanted) {
    return space == Space::DeviceDram ? makeRoom(wanted) : 0;
  });
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
  return found != entries_.end() && found->second.device && (!found->second.isLeaving || found->second.stays);
}

bool ResidentTensors::holdsValueOf(Id id) const {
  auto found = entries_.find(id);
  return found != entries_.end() && found->second.device && (found->second.isChanged || found->second.isLeaving);
}

//===----------------------------------------------------------------------===//
// To the device
//===----------------------------------------------------------------------===//

void ResidentTensors::fetch(Entry &entry) {
  TransferOptions options;
  options.owner = entry.owner;
  options.isPlanned = true;
  entry.device = device_->transfer().copyTo(device_, entry.home, entry.there, options);
  counts_.fetched += 1;
  counts_.fetchedBytes += entry.there->spanBytes();
}

/// A copy that came to nothing is none; the home has its value.
void ResidentTensors::dropUnlessArriving(Entry &entry) {
  if (entry.device && !entry.isChanged && !entry.isLeaving && entry.device.storage()->failure())
    entry.device = Tensor();
}

/// What is needed again while its copy home is under way.
void ResidentTensors::stay(Entry &entry) {
  if (!entry.isLeaving || std::exchange(entry.stays, true) || !isPlaced_ || entry.device.storage()->failure())
    return;
  TransferOptions options;
  options.owner = entry.owner;
  options.isPlanned = true;
  entry.device = device_->transfer().copyTo(device_, entry.device, entry.there, options);
}

Tensor ResidentTensors::bring(const Tensor &home, const Value &value, bool isWritten, bool mustArrive) {
  poll();
  Entry &entry = entries_[idOf(home)];
  entry.home = home;
  if (!entry.owner)
    entry.owner = device_->memory().intern({.value = value.name, .role = std::string(name(value.role))});
  if (!entry.there)
    entry.there = value.sharedDesc;
  for (int tries = 1;; ++tries) {
    dropUnlessArriving(entry);
    if (!entry.device)
      fetch(entry);
    stay(entry);
    if (!mustArrive)
      break;
    device_->wait(entry.device.storage()->writes());
    const Error *failure = entry.device.storage()->failure();
    if (!failure)
      break;
    if (tries == mostFetches || entry.isChanged)
      throw failure->within("\"" + value.name + "\" lives on the host and could not be brought to the device");
  }
  entry.isChanged |= isWritten;
  return entry.device;
}

void ResidentTensors::fetch(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.there)
    return;
  Entry &entry = found->second;
  dropUnlessArriving(entry);
  if (!entry.device)
    fetch(entry);
  stay(entry);
}

Tensor ResidentTensors::take(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end())
    return Tensor();
  dropUnlessArriving(found->second);
  if (!found->second.device)
    fetch(found->second);
  stay(found->second);
  Tensor device = std::move(found->second.device);
  entries_.erase(found);
  return device;
}

//===----------------------------------------------------------------------===//
// Home
//===----------------------------------------------------------------------===//

void ResidentTensors::copyHome(Entry &entry) {
  entry.program = entry.home.storage()->outcomeIfAny();
  device_->transfer().copyInto(entry.device, entry.home, {.isPlanned = true});
  entry.isChanged = false;
  counts_.sentHome += 1;
  counts_.sentHomeBytes += entry.there->spanBytes();
}

/// The copy home has ended. If the link failed, and nothing else, the value is on
/// the device still, and the cause is returned.
std::optional<Error> ResidentTensors::finish(Entry &entry) {
  Storage &home = *entry.home.storage();
  std::shared_ptr<Outcome> program = std::move(entry.program);
  const Error *wrong = program ? program->error() : entry.device.storage()->failure();
  if (wrong && !home.failure())
    home.outcome()->fail(*wrong);
  if (!home.failure() || wrong || entry.device.storage()->failure()) {
    entry.isKept = false;
    return std::nullopt;
  }
  Error cause = *home.failure();
  home.forgetOutcome();
  entry.isChanged = true;
  ++counts_.kept;
  if (!std::exchange(entry.isKept, true) && warn_)
    warn_("a tensor that lives on the host, " + entry.home.desc().str() +
          ", could not be copied there and stays on the device: " + cause.what());
  return cause;
}

void ResidentTensors::arrive(Entry &entry) {
  entry.isLeaving = false;
  if (!finish(entry) && !std::exchange(entry.stays, false))
    entry.device = Tensor();
}

void ResidentTensors::poll() {
  while (!leaving_.empty()) {
    auto found = entries_.find(leaving_.front());
    bool isLeaving = found != entries_.end() && found->second.isLeaving;
    if (isLeaving && !device_->isDone(found->second.home.storage()->writes()))
      return;
    leaving_.pop_front();
    if (isLeaving)
      arrive(found->second);
  }
}

void ResidentTensors::awaitOldest() {
  if (auto found = entries_.find(leaving_.front()); found != entries_.end() && found->second.isLeaving)
    device_->wait(found->second.home.storage()->writes());
  poll();
}

bool ResidentTensors::awaitDeparture() {
  if (leaving_.empty())
    return false;
  awaitOldest();
  return true;
}

void ResidentTensors::settle() {
  while (!leaving_.empty())
    awaitOldest();
}

void ResidentTensors::leave(Id id) {
  poll();
  auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.device)
    return;
  Entry &entry = found->second;
  while (entry.isLeaving && entry.isChanged) // one after the other; what was changed stays till then
    awaitOldest();
  entry.stays = false;
  if (entry.device && entry.isChanged) {
    copyHome(entry);
    // Where there are no bytes, nothing fails.
    if (device_->hasBytes()) {
      entry.isLeaving = true;
      leaving_.push_back(id);
    }
  }
  if (!entry.isLeaving)
    entry.device = Tensor();
}

void ResidentTensors::leaveAll() {
  for (auto &[id, entry] : entries_)
    leave(id);
}

void ResidentTensors::leaveAgain() {
  for (auto &[id, entry] : entries_)
    if (entry.isKept && entry.device.isSoleOwner())
      leave(id);
}

/// What is on its way home first; then what could not go, once more; then what is
/// at home, too, and would have to come again.
uint64_t ResidentTensors::makeRoom(uint64_t wanted) {
  DeviceMemory &memory = device_->memory();
  uint64_t before = memory.liveBytes(Space::DeviceDram), budget = memory.budget(Space::DeviceDram);
  auto live = [&] { return memory.liveBytes(Space::DeviceDram); };
  auto isEnough = [&] { return live() < before && live() + wanted <= budget; };
  if (!device_->hasBytes())
    return 0;
  while (!leaving_.empty() && !isEnough())
    awaitOldest();
  if (!isEnough()) {
    leaveAgain();
    settle();
  }
  for (auto it = entries_.begin(); it != entries_.end() && !isEnough(); ++it)
    if (Entry &entry = it->second; entry.device && !entry.isChanged && entry.device.isSoleOwner())
      entry.device = Tensor();
  return before - std::min(before, live());
}

Tensor ResidentTensors::sendHome(const Tensor &tensor) {
  poll();
  Tensor home = copyToHost(device_, tensor, counts_.unpinned);
  if (home.storage() == tensor.storage())
    return home;
  Entry &entry = entries_[idOf(home)];
  entry.home = home;
  entry.there = tensor.sharedDesc();
  counts_.sentHome += 1;
  counts_.sentHomeBytes += tensor.desc().spanBytes();
  if (device_->hasBytes()) {
    entry.device = tensor;
    entry.isLeaving = true;
    leaving_.push_back(idOf(home));
  }
  return home;
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
  settle();
  Fence copies;
  std::vector<Entry *> sent;
  for (auto &[id, entry] : entries_) {
    if (entry.device && entry.isChanged) {
      copyHome(entry);
      sent.push_back(&entry);
    }
    copies.join(entry.home.storage()->writes());
  }
  if (!copies.empty())
    device_->wait(copies);
  std::optional<Error> failure;
  for (Entry *entry : sent)
    if (std::optional<Error> cause = finish(*entry); cause && !failure)
      failure = std::move(cause);
  for (auto &[id, entry] : entries_)
    if (const Error *error = entry.home.storage()->failure(); error && !failure)
      failure = *error;
  if (failure)
    throw failure->within("a tensor that lives on the host could not be brought home");
}

void ResidentTensors::dropCopies() {
  leaving_.clear();
  for (auto &[id, entry] : entries_)
    dropCopy(id);
}

void ResidentTensors::dropCopy(Id id) {
  auto found = entries_.find(id);
  if (found == entries_.end())
    return;
  Entry &entry = found->second;
  entry.device = Tensor();
  entry.isChanged = entry.isLeaving = entry.stays = entry.isKept = false;
  entry.program = nullptr;
}

} // namespace segue::inline runtime
