//===- Residency.cpp - where items are, and how they move -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

/// An item that must arrive is fetched so often, each time tried twice by the engine: to give
/// up would leave a step half done.
static constexpr int mostFetches = 8;

static Tensor emptyIn(const DeviceRef &device, TensorDesc given, Space space, OwnerId owner) {
  given.layout.space = space;
  given.layout.offset = 0;
  auto desc = std::make_shared<const TensorDesc>(std::move(given));
  auto storage = Storage::allocate(device, space, desc->spanBytes(), desc->layout.alignment, owner);
  return Tensor::in(std::move(storage), std::move(desc));
}

/// Where what finds no page-locked memory goes: what has no room on a disk has none in memory.
static Space lastHomeOf(const Device &device) { return device.hasSpace(Space::Disk) ? Space::Disk : Space::Host; }

Tensor emptyHome(const DeviceRef &device, TensorDesc desc, bool isPinned, OwnerId owner) {
  Space last = lastHomeOf(*device), space = isPinned ? device->transfer().homeFor(desc.spanBytes()) : last;
  if (space == last)
    return emptyIn(device, std::move(desc), last, owner);
  try {
    return emptyIn(device, desc, space, owner);
  } catch (const Error &error) { // what is free there lies in pieces
    if (error.code() != ErrorCode::DeviceOom)
      throw;
  }
  return emptyIn(device, std::move(desc), last, owner);
}

Residency::Residency(DeviceRef device) : device_(std::move(device)) {}

Residency::~Residency() {
  try {
    device_->drain(); // copies out write homes
  } catch (...) {     // a device that failed runs nothing any more
  }
}

//===----------------------------------------------------------------------===//
// The table
//===----------------------------------------------------------------------===//

bool Residency::isHome(const Tensor &tensor) const {
  return isHostSpace(tensor.desc().layout.space) && !device_->hasUnifiedMemory();
}

Item &Residency::adopt(const Tensor &home, std::string name, OwnerId owner,
                       std::shared_ptr<const TensorDesc> onDevice) {
  if (Item *item = findHome(home))
    return *item;
  Item::Id id = nextId_++;
  Item &item = items_.try_emplace(id, id, std::move(name), ItemLifetime::Session).first->second;
  item.owner = owner;
  item.onDevice = std::move(onDevice);
  item.put(Tier::Host, home, CopyState::Present);
  byHome_[home.storage()->id()] = &item;
  return item;
}

void Residency::forgetOwners() {
  for (auto &[storage, item] : byHome_)
    item->owner = 0;
}

Item &Residency::add(ItemSource &source, std::string name) {
  Item::Id id = nextId_++;
  Item &item = items_.try_emplace(id, id, std::move(name), ItemLifetime::Session).first->second;
  item.source_ = &source;
  item.isReported_ = true;
  item.put(Tier::Host, Tensor(), CopyState::Present);
  return item;
}

void Residency::giveHome(Item &item, const Tensor &home) {
  home.storage()->forgetOutcome();
  item.copy(Tier::Host).tensor = home;
  byHome_[home.storage()->id()] = &item;
}

Item &Residency::hold(const Tensor &value, std::string name, OwnerId owner, ItemLifetime lifetime) {
  Item::Id id = nextId_++;
  Item &item = items_.try_emplace(id, id, std::move(name), lifetime).first->second;
  item.owner = owner;
  item.onDevice = value.sharedDesc();
  item.put(Tier::Device, value, CopyState::Present);
  return item;
}

Item *Residency::find(Item::Id id) {
  auto found = items_.find(id);
  return found == items_.end() ? nullptr : &found->second;
}

Item *Residency::findHome(const Tensor &home) {
  auto found = byHome_.find(home.storage()->id());
  return found == byHome_.end() ? nullptr : found->second;
}

std::map<Item::Id, Item>::iterator Residency::erase(std::map<Item::Id, Item>::iterator item) {
  if (const Tensor &home = item->second.host().tensor)
    byHome_.erase(home.storage()->id());
  return items_.erase(item);
}

void Residency::forget(Item &item) { erase(items_.find(item.id)); }

void Residency::abandon(Item &item) {
  abandoned_.push_back({item.id, item.host().tensor});
  forget(item);
}

void Residency::forgetUnheld() {
  for (auto it = items_.begin(); it != items_.end();) {
    const Tensor &home = it->second.host().tensor;
    it = home && home.isSoleOwner() ? erase(it) : std::next(it);
  }
}

void Residency::forgetStep() {
  for (auto it = items_.begin(); it != items_.end();)
    it = it->second.lifetime == ItemLifetime::Step ? erase(it) : std::next(it);
}

//===----------------------------------------------------------------------===//
// To the device
//===----------------------------------------------------------------------===//

void Residency::drop(Item &item, Tier tier) {
  if (item.at(tier).exists())
    item.enter(tier, CopyState::Absent);
  if (const Tensor &home = item.at(tier).tensor; home && tier == Tier::Host)
    byHome_.erase(home.storage()->id());
  item.copy(tier).tensor = Tensor();
}

/// A copy that came to nothing is none; the host has its value.
void Residency::dropFailed(Item &item) {
  if (item.device().exists() && item.isBeside(Tier::Device) && item.device().state != CopyState::Leaving &&
      item.device().tensor.storage()->failure())
    drop(item, Tier::Device);
}

void Residency::startFetch(Item &item) {
  TransferOptions options;
  options.owner = item.owner;
  options.isPlanned = true;
  options.checksum = item.checksum_;
  Tensor there = device_->transfer().copyTo(device_, item.host().tensor, item.onDevice, options);
  item.enter(Tier::Device, CopyState::Coming);
  item.put(Tier::Device, std::move(there), CopyState::Coming);
  counts_.fetched += 1;
  counts_.fetchedBytes += item.onDevice->spanBytes();
}

/// One whose next copy lies over a part of this one leaves first.
bool Residency::stay(Item &item) {
  if (item.device().state != CopyState::Leaving)
    return false;
  item.isRescued_ = true;
  if (std::exchange(item.stays_, true) || !isPlaced_ || item.device().tensor.storage()->failure())
    return true;
  const Storage &storage = *item.device().tensor.storage();
  DeviceMemory::NextPlace next = device_->memory().nextPlace(storage.data(), storage.bytes(), item.owner);
  if (next == DeviceMemory::NextPlace::Here)
    return true;
  if (next == DeviceMemory::NextPlace::Overlapping) {
    item.stays_ = item.isRescued_ = false;
    while (item.device().state == CopyState::Leaving)
      awaitDeparture();
    if (!item.device().exists()) // else its copy to the host failed
      startFetch(item);
    return true;
  }
  TransferOptions options;
  options.owner = item.owner;
  options.isPlanned = true;
  item.copy(Tier::Device).tensor =
      device_->transfer().copyTo(device_, item.device().tensor, item.onDevice, options);
  return true;
}

bool Residency::fetchInto(Item &item, const Tensor &place, const TransferOptions &how) {
  item.enter(Tier::Device, CopyState::Coming);
  place.storage()->forgetOutcome();
  try {
    if (!item.source_->fetchInto(place, how)) {
      item.enter(Tier::Device, CopyState::Absent);
      return false;
    }
  } catch (const Error &error) {
    place.storage()->outcome()->fail(error);
  }
  item.onDevice = place.sharedDesc();
  item.put(Tier::Device, place, CopyState::Coming);
  comingTo(Tier::Device).push_back(item.id);
  return true;
}

bool Residency::tryFetch(Item &item, const TransferOptions &how) {
  Tensor there = device_->transfer().toLayout(device_, item.host().tensor, item.onDevice, how);
  if (!there)
    return false;
  item.enter(Tier::Device, CopyState::Coming);
  item.put(Tier::Device, std::move(there), CopyState::Coming);
  item.isReported_ = true;
  comingTo(Tier::Device).push_back(item.id);
  return true;
}

void Residency::fetch(Item &item) {
  dropFailed(item);
  if (!item.device().exists())
    startFetch(item);
  stay(item);
}

Tensor Residency::need(Item &item, bool isWritten, bool mustArrive) {
  poll();
  for (int tries = 1;; ++tries) {
    fetch(item);
    if (!mustArrive)
      break;
    const Storage &storage = *item.device().tensor.storage();
    device_->wait(storage.writes());
    const Error *failure = storage.failure();
    if (!failure)
      break;
    if (tries == mostFetches || !item.isBeside(Tier::Device))
      throw failure->within("\"" + item.name + "\" lives on the host and could not be brought to the device");
  }
  if (isWritten)
    item.write();
  else if (item.isReported_ && item.device().state == CopyState::Coming)
    item.enter(Tier::Device, CopyState::Present); // for work that waits for its fence
  return item.device().tensor;
}

Tensor Residency::take(Item &item) {
  fetch(item);
  Tensor there = item.device().tensor;
  forget(item);
  return there;
}

//===----------------------------------------------------------------------===//
// To the host
//===----------------------------------------------------------------------===//

static std::shared_ptr<const TensorDesc> onHost(const Tensor &tensor, Space space) {
  auto desc = std::make_shared<TensorDesc>(tensor.desc());
  desc->layout.space = space;
  return desc;
}

/// Queues the copy of the device's value to the item's home, which is made where
/// there is none.
void Residency::copyToHost(Item &item) {
  TransferOptions options;
  options.isPlanned = !takesTokens_;
  options.owner = item.owner;
  item.checksum_ = checksCopies_ ? std::make_shared<TransferChecksum>() : nullptr;
  options.checksum = item.checksum_;
  const Tensor &value = item.device().tensor;
  TransferEngine &engine = device_->transfer();
  Tensor home = item.host().tensor;
  if (item.source_) {
    item.saved_ = item.source_->saveFrom(value, item.savedVersion_);
  } else if (home) {
    item.program_ = home.storage()->outcomeIfAny();
    engine.copyInto(value, home, options);
  } else {
    Space last = lastHomeOf(*device_), space = engine.homeFor(value.desc().spanBytes());
    try {
      if (space != last)
        home = engine.toLayout(device_, value, onHost(value, space), options);
    } catch (const Error &error) {
      if (error.code() != ErrorCode::DeviceOom)
        throw;
    }
    if (!home) {
      counts_.unpinned += last == Space::Host;
      home = engine.toLayout(device_, value, onHost(value, last), options);
    }
    byHome_[home.storage()->id()] = &item;
  }
  if (item.host().exists()) // the value before is written over
    item.enter(Tier::Host, CopyState::Absent);
  item.enter(Tier::Host, CopyState::Coming);
  item.put(Tier::Host, std::move(home), CopyState::Coming);
  counts_.left += 1;
  counts_.leftBytes += item.onDevice->spanBytes();
}

/// If the link failed, and nothing else, the value is on the device still, and the cause
/// is returned.
std::optional<Error> Residency::takeHomeFailure(Item &item) {
  Storage &home = *item.host().tensor.storage();
  std::shared_ptr<Outcome> program = std::move(item.program_);
  const Error *ofDevice = item.device().tensor.storage()->failure();
  const Error *wrong = program ? program->error() : ofDevice;
  if (wrong && !home.failure())
    home.outcome()->fail(*wrong);
  if (item.isReported_ && !home.failure() && isGood_ && !isGood_(item))
    home.outcome()->fail(Error(ErrorCode::ChecksumMismatch, "other bytes came than left"));
  if (!home.failure() || wrong || ofDevice)
    return std::nullopt;
  Error cause = *home.failure();
  home.forgetOutcome();
  return cause;
}

/// The copy to the host has ended.
std::optional<Error> Residency::finishCopy(Item &item) {
  std::optional<Error> cause = item.source_ ? item.source_->takeSaveFailure() : takeHomeFailure(item);
  if (!cause) {
    if (std::exchange(item.isKept_, false))
      device_->memory().noteStayed({});
    item.savedVersion_ = item.host().version;
    item.enter(Tier::Host, CopyState::Present);
    return std::nullopt;
  }
  item.enter(Tier::Host, CopyState::Absent);
  ++counts_.kept;
  device_->memory().noteStayed("\"" + item.name + "\" could not leave: " + cause->what());
  if (!std::exchange(item.isKept_, true) && warn_)
    warn_("\"" + item.name + "\"" + (item.source_ ? "" : ", " + item.onDevice->str() + ",") +
          " could not be copied to the host and stays on the device: " + cause->what());
  return cause;
}

void Residency::arriveOnHost(Item &item) {
  std::optional<Error> failure = finishCopy(item);
  bool failed = failure.has_value();
  if (item.isReported_)
    ends_.push_back({item.id, Tier::Host, std::move(failure)});
  if (failed || std::exchange(item.stays_, false) || item.isStale(Tier::Host))
    item.enter(Tier::Device, CopyState::Present);
  else
    drop(item, Tier::Device);
}

/// The copy of a reported item to the device has ended.
void Residency::arriveOnDevice(Item &item) {
  std::optional<Error> failure;
  if (const Error *error = item.device().tensor.storage()->failure())
    failure = *error;
  if (failure)
    drop(item, Tier::Device);
  else
    item.enter(Tier::Device, CopyState::Present);
  bool again = !failure || !item.source_ || item.source_->mayFetchAgain(*failure);
  ends_.push_back({item.id, Tier::Device, std::move(failure), again});
}

/// Returns the fence that ends the copy to `tier` which is under way.
const Fence &Residency::endOf(const Item &item, Tier tier) const {
  const Tensor &tensor = item.at(tier).tensor;
  return tensor ? tensor.storage()->writes() : item.saved_;
}

void Residency::arrive(Item &item, Tier tier) { tier == Tier::Device ? arriveOnDevice(item) : arriveOnHost(item); }

void Residency::poll(Tier tier) {
  for (Item *item = oldest(tier); item && device_->isDone(endOf(*item, tier)); item = oldest(tier))
    arrive(*item, tier);
}

void Residency::poll() {
  poll(Tier::Device);
  for (; !abandoned_.empty() && device_->isDone(abandoned_.front().home.storage()->writes()); abandoned_.pop_front())
    ends_.push_back({abandoned_.front().item, Tier::Host});
  poll(Tier::Host);
}

bool Residency::awaitDeparture() {
  Item *item = oldest(Tier::Host);
  if (!item)
    return false;
  device_->wait(endOf(*item, Tier::Host));
  poll();
  return true;
}

std::optional<Residency::End> Residency::takeEnd(Tier tier, bool waits) {
  poll();
  if (auto end = std::ranges::find(ends_, tier, &End::tier); end != ends_.end())
    return takeEnd(end);
  Item *item = waits ? oldest(tier) : nullptr;
  return item ? awaitEnd(*item) : std::nullopt;
}

std::optional<Residency::End> Residency::awaitEnd(Item &item) {
  auto noticed = [&] { return std::ranges::find(ends_, item.id, &End::item); };
  for (size_t tier = 0; tier < tierNames.size() && noticed() == ends_.end(); ++tier)
    if (item.at(Tier(tier)).state == CopyState::Coming) {
      device_->wait(endOf(item, Tier(tier)));
      arrive(item, Tier(tier));
    }
  auto end = noticed();
  return end == ends_.end() ? std::nullopt : std::optional(takeEnd(end));
}

Residency::End Residency::takeEnd(std::vector<End>::iterator end) {
  End taken = std::move(*end);
  ends_.erase(end);
  return taken;
}

void Residency::settle() {
  while (awaitDeparture())
    continue;
  for (const Abandoned &each : abandoned_)
    device_->wait(each.home.storage()->writes());
  poll();
}

Item *Residency::oldest(Tier tier) {
  for (std::deque<Item::Id> &coming = comingTo(tier); !coming.empty(); coming.pop_front())
    if (Item *item = find(coming.front()); item && item->at(tier).state == CopyState::Coming)
      return item;
  return nullptr;
}

bool Residency::leave(Item &item) {
  poll();
  // One after the other: what was changed stays until the value before has arrived.
  while (item.device().state == CopyState::Leaving && item.device().version != item.host().version)
    awaitDeparture();
  item.stays_ = item.isRescued_ = false;
  if (!item.device().exists() || item.device().state == CopyState::Leaving)
    return true;
  if (item.isBeside(Tier::Device)) {
    drop(item, Tier::Device);
    return true;
  }
  if (!item.source_ && device_->hasUnifiedMemory())
    return false;
  if (item.device().state == CopyState::Coming)
    item.enter(Tier::Device, CopyState::Present);
  copyToHost(item);
  item.enter(Tier::Device, CopyState::Leaving);
  if (device_->hasBytes() || item.isReported_)
    comingTo(Tier::Host).push_back(item.id);
  else
    arriveOnHost(item); // where there are no bytes, nothing fails
  return true;
}

void Residency::leaveTo(Item &item, const Tensor &home, const TransferOptions &how) {
  home.storage()->forgetOutcome();
  device_->transfer().copyInto(item.device().tensor, home, how);
  item.isReported_ = true;
  byHome_[home.storage()->id()] = &item;
  item.enter(Tier::Host, CopyState::Coming);
  item.put(Tier::Host, home, CopyState::Coming);
  item.enter(Tier::Device, CopyState::Leaving);
  comingTo(Tier::Host).push_back(item.id);
}

void Residency::leaveAll() {
  for (auto &[id, item] : items_)
    leave(item);
}

std::vector<HeldBlock> Residency::blocksThatLeave() const {
  std::vector<HeldBlock> blocks;
  for (const auto &[id, item] : items_)
    if (const Tensor &here = item.device().tensor;
        item.device().exists() && here.isSoleOwner() &&
        (item.isBeside(Tier::Device) || item.source_ || !device_->hasUnifiedMemory()))
      blocks.push_back({here.storage()->data(), here.storage()->bytes()});
  return blocks;
}

void Residency::leaveKept() {
  for (auto &[id, item] : items_)
    if (item.isKept_ && item.device().exists() && item.device().tensor.isSoleOwner())
      leave(item);
}

/// Items that leave go first; then those that could not, once more; then those that
/// the host has, too, and that would have to come again.
uint64_t Residency::makeRoom(uint64_t wanted) {
  DeviceMemory &memory = device_->memory();
  uint64_t before = memory.liveBytes(Space::DeviceDram), budget = memory.budget(Space::DeviceDram);
  auto live = [&] { return memory.liveBytes(Space::DeviceDram); };
  auto isEnough = [&] { return live() < before && live() + wanted <= budget; };
  if (!device_->hasBytes())
    return 0;
  while (!isEnough() && awaitDeparture())
    continue;
  if (!isEnough()) {
    leaveKept();
    settle();
  }
  for (auto it = items_.begin(); it != items_.end() && !isEnough(); ++it)
    if (Item &item = it->second; item.device().exists() && item.device().state != CopyState::Leaving &&
                                 item.isBeside(Tier::Device) && item.device().tensor.isSoleOwner())
      drop(item, Tier::Device);
  return before - std::min(before, live());
}

//===----------------------------------------------------------------------===//
// Homes
//===----------------------------------------------------------------------===//

void Residency::writeBack() {
  settle();
  Fence copies;
  std::vector<Item *> sent;
  for (auto &[id, item] : items_) {
    bool hasHome = item.source_ || item.host().tensor;
    if (hasHome && item.device().exists() && item.isStale(Tier::Host)) {
      copyToHost(item);
      sent.push_back(&item);
    }
    if (hasHome)
      copies.join(endOf(item, Tier::Host));
  }
  if (!copies.empty())
    device_->wait(copies);
  std::optional<Error> failure;
  for (Item *item : sent)
    if (std::optional<Error> cause = finishCopy(*item); cause && !failure)
      failure = std::move(cause);
  for (auto &[id, item] : items_)
    if (const Tensor &home = item.host().tensor; home && home.storage()->failure() && !failure)
      failure = *home.storage()->failure();
  if (failure)
    throw failure->within("a tensor that lives on the host could not be brought home");
}

void Residency::writeBack(Item &item) {
  if (!item.device().exists() || !item.isStale(Tier::Host))
    return;
  copyToHost(item);
  device_->wait(endOf(item, Tier::Host));
  if (std::optional<Error> cause = finishCopy(item))
    throw cause->within("\"" + item.name + "\" could not be brought home");
}

void Residency::await(const Tensor &home) {
  Item *item = findHome(home);
  const Tensor &newest = item && item->device().exists() && item->isStale(Tier::Host) ? item->device().tensor : home;
  wait(newest);
}

bool Residency::holdsNewer(const Tensor &home) {
  Item *item = findHome(home);
  return item && item->device().exists() && item->isStale(Tier::Host);
}

std::optional<uint64_t> Residency::hashAtHome(const Tensor &home) {
  Item *item = findHome(home);
  if (!item || item->isStale(Tier::Host) || !item->checksum_ || !item->checksum_->isSet())
    return std::nullopt;
  // Else these are other bytes than those at home.
  const Layout &there = item->onDevice->layout, &here = home.desc().layout;
  bool isSame = there.storage == here.storage && there.tile == here.tile && there.strides == here.strides;
  return isSame ? std::optional(item->checksum_->value()) : std::nullopt;
}

void Residency::homeWritten(Item &item) {
  item.savedVersion_ = ++item.version_;
  item.put(Tier::Host, item.host().tensor, CopyState::Present);
  if (item.device().exists())
    drop(item, Tier::Device);
  item.stays_ = item.isKept_ = false;
  item.program_ = nullptr;
  item.checksum_ = nullptr;
}

void Residency::homeWritten(const Tensor &home) {
  if (Item *item = findHome(home))
    homeWritten(*item);
}

void Residency::homesWritten() {
  comingTo(Tier::Host).clear();
  for (auto &[id, item] : items_)
    if (item.host().tensor)
      homeWritten(item);
}

} // namespace segue::inline runtime
