//===- DeviceMemory.cpp - who holds a device's memory ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An account is a pair of owner and phase. What each held at the high-water
// mark of its space is kept without copying the books at each new peak: peaks
// are numbered, and an account notes its bytes when it changes for the first
// time after a peak. One that has not changed since still holds them.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/DeviceMemory.h"
#include "AddressFollower.h"
#include <algorithm>
#include <cstdio>
#include <utility>

namespace segue::inline runtime {

static std::string inMiB(uint64_t bytes) {
  if (bytes < 1 << 20)
    return std::to_string(bytes) + " B";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f MiB", double(bytes) / (1 << 20));
  return text;
}

std::string MemoryOwner::str() const {
  std::string text = program.empty() ? "" : program + ": ";
  text += value.empty() ? "(unnamed)" : value;
  std::string rest;
  for (const std::string &part : {role, block.empty() ? "" : "block " + block, location})
    if (!part.empty())
      rest += (rest.empty() ? "" : ", ") + part;
  return rest.empty() ? text : text + " (" + rest + ")";
}

//===----------------------------------------------------------------------===//
// Out of memory
//===----------------------------------------------------------------------===//

static std::string tableOf(const std::vector<MemoryHolder> &holders, size_t lines) {
  std::string table;
  size_t shown = 0;
  uint64_t rest = 0, restCount = 0;
  for (const MemoryHolder &holder : holders) {
    if (!holder.liveBytes)
      continue;
    if (shown++ >= lines) {
      rest += holder.liveBytes, ++restCount;
      continue;
    }
    table += "\n  " + inMiB(holder.liveBytes) + " in " + std::to_string(holder.blocks) + "  " + holder.owner.str();
    if (!holder.phase.empty())
      table += " [" + holder.phase + "]";
  }
  if (restCount)
    table += "\n  " + inMiB(rest) + " of " + std::to_string(restCount) + " others";
  return table;
}

static std::string sentence(const OutOfMemory::Report &report) {
  std::string space(name(report.space));
  std::string text = "device \"" + report.device + "\": " + inMiB(report.wantedBytes) + " for " +
                     report.wantedBy.str() + " do not fit in " + space + ": budget " + inMiB(report.budgetBytes) +
                     ", held " + inMiB(report.liveBytes) + ", free " + inMiB(report.free.bytes) + " in " +
                     std::to_string(report.free.ranges) + " ranges, the largest " + inMiB(report.free.largestRange);
  text += report.tried.empty() ? "; nobody could make room" : "; asked to make room:";
  for (size_t i = 0; i < report.tried.size(); ++i)
    text += (i ? ", " : " ") + report.tried[i].first + " gave " + inMiB(report.tried[i].second);
  if (!report.stayed.empty())
    text += "; " + report.stayed;
  if (report.smallestBudgetBytes > report.capacityBytes)
    text += "; it would take " + std::to_string(report.smallestBudgetBytes) + " bytes, the device has " +
            std::to_string(report.capacityBytes);
  else if (report.smallestBudgetBytes > report.budgetBytes)
    text += "; the smallest budget that would do is " + inMiB(report.smallestBudgetBytes) + " (" +
            std::to_string(report.smallestBudgetBytes) + " bytes)";
  else
    text += "; the budget would do, but no free range is long enough";
  text += "; it is held by" + tableOf(report.holders, 12);
  return text;
}

// Braces: the sentence is made before the report moves.
OutOfMemory::OutOfMemory(Report report)
    : Error{ErrorCode::DeviceOom, sentence(report), std::make_shared<const Report>(std::move(report))} {}

//===----------------------------------------------------------------------===//
// Taking and giving
//===----------------------------------------------------------------------===//

DeviceMemory::DeviceMemory(RawMemory &device) : device_(device) {}
DeviceMemory::~DeviceMemory() = default;

/// The spaces are the derived device's to know, so not before it is built.
void DeviceMemory::loadCapacities() {
  if (loaded_)
    return;
  for (const SpaceInfo &info : device_.spaces())
    usage_[uint8_t(info.space)].given = usage_[uint8_t(info.space)].budget = info.capacityBytes;
  loaded_ = true;
}

/// Brings the figures of `account` up to date. Called before it changes.
void DeviceMemory::touch(Usage &usage, Account &account) {
  if (account.seen != usage.peakNumber) {
    account.seen = usage.peakNumber;
    account.atPeak = account.live;
  }
  if (account.reset != usage.resets) {
    account.reset = usage.resets;
    account.peak = account.live;
  }
}

/// Takes a planned block where the plan has it, and another block beside the plan's ranges
/// or, if there is no room, in what is free of them. An owner that is not of the plan gets
/// nothing of its ranges while a step goes by it.
MemoryBlock DeviceMemory::takeRaw(Usage &usage, Space space, uint64_t bytes, uint32_t alignment, OwnerId owner,
                                  Lifetime lifetime, uint64_t taken, Occupied occupied, bool *isOccupied) {
  bool fitsBudget = fits(usage.budget, usage.live, taken);
  if (!follower_ || space != Space::DeviceDram || !bytes)
    return fitsBudget ? device_.takeMemory(space, bytes, alignment, lifetime) : MemoryBlock();
  bool isAsked = asksPlan();
  if (isAsked && fitsBudget) {
    auto takeAt = [&](const AddressPlan::Block &block) {
      return device_.takeReserved(space, bytes, alignment, block.offset);
    };
    MemoryBlock block;
    const AddressPlan::Block *planned = follower_->next(owner, bytes);
    if (planned && !(block = takeAt(*planned)).data && occupied == Occupied::Tell) {
      *isOccupied = true;
      return {};
    }
    if (!block.data)
      follower_->elsewhere(owner, bytes, [&](const auto &other) { return (block = takeAt(other)).data != nullptr; });
    if (block.data) {
      follower_->advance(owner);
      ++addressFigures_.placed;
      return block;
    }
  }
  MemoryBlock block;
  if (fits(usage.budget, usage.live - liveInPlan_ + plannedBytes_, taken))
    block = device_.takeMemory(space, bytes, alignment, lifetime);
  if (!block.data && fitsBudget && (!isAsked || follower_->knows(owner)) &&
      (block = device_.takeReserved(space, bytes, alignment, std::nullopt)).data) {
    block.account = lentBit;
    lentBytes_ += taken;
  }
  if (isAsked && block.data) {
    bool isKnown = follower_->next(owner, bytes) != nullptr;
    follower_->advance(owner);
    ++addressFigures_.displaced;
    addressFigures_.lastDisplaced = inMiB(bytes) + " for " + owners_[owner].str() +
                                    (isKnown ? ": its address is held by others" : ": the plan has no such block");
  }
  return block;
}

MemoryBlock DeviceMemory::attempt(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner, Lifetime lifetime,
                                  Occupied occupied, bool *isOccupied) {
  alignment = std::max(alignment, device_.leastAlignment(space, bytes));
  uint64_t taken = device_.takenBytes(space, bytes, alignment);
  std::lock_guard lock(mutex_);
  loadCapacities();
  Usage &usage = usage_[uint8_t(space)];
  MemoryBlock block = takeRaw(usage, space, bytes, alignment, owner, lifetime, taken, occupied, isOccupied);
  if (!block.data)
    return {};
  uint32_t number = owner * maxPhases + phase_;
  block.account |= number;
  if (usage.accounts.size() <= number)
    usage.accounts.resize(number + 1);
  Account &account = usage.accounts[number];
  touch(usage, account);
  account.live += taken;
  account.peak = std::max(account.peak, account.live);
  ++account.blocks;
  usage.live += taken;
  if (bytes && isPlanned(space, block.data))
    liveInPlan_ += taken;
  if (usage.live > usage.peak) {
    usage.peak = usage.live;
    ++usage.peakNumber;
  }
  if (watcher_ && space == Space::DeviceDram && bytes)
    watcher_->onTaken(block.data, bytes, alignment, owner);
  return block;
}

MemoryBlock DeviceMemory::tryAllocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner,
                                      Lifetime lifetime) {
  return attempt(space, bytes, alignment, owner, lifetime, Occupied::GoElsewhere);
}

MemoryBlock DeviceMemory::allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner, Lifetime lifetime) {
  if (!device_.hasSpace(space))
    throw Error(ErrorCode::Unsupported,
                "device \"" + device_.name() + "\" has no space " + std::string(segue::name(space)));
  stir(space);
  MemoryBlock block;
  // A block is taken where a plan has it, if somebody is about to leave there; otherwise anywhere.
  auto take = [&] {
    bool isOccupied;
    do {
      isOccupied = false;
      block = attempt(space, bytes, alignment, owner, lifetime, Occupied::Tell, &isOccupied);
    } while (isOccupied && awaitRoom_ && awaitRoom_());
    if (isOccupied)
      block = tryAllocate(space, bytes, alignment, owner, lifetime);
    return block.data != nullptr;
  };
  auto takeTogether = [&] { return compact(space, bytes, alignment) && take(); };
  if (take() || takeTogether())
    return block;

  std::vector<std::shared_ptr<Maker>> makers;
  {
    std::lock_guard lock(mutex_);
    for (const std::weak_ptr<Maker> &entry : makers_)
      if (auto maker = entry.lock())
        makers.push_back(std::move(maker));
  }
  std::vector<std::pair<std::string, uint64_t>> tried;
  for (const auto &maker : makers) {
    tried.push_back({maker->name, 0});
    // The maker is asked again while it gives: bytes that are enough may lie where no move brings them together.
    for (uint64_t live = liveBytes(space);;) {
      uint64_t freed = maker->make(space, bytes);
      tried.back().second += freed;
      if (freed && (take() || takeTogether()))
        return block;
      if (uint64_t before = std::exchange(live, liveBytes(space)); !freed || live >= before)
        break;
    }
  }
  OutOfMemory::Report report = this->report(space, bytes, alignment, owner);
  report.tried = std::move(tried);
  throw OutOfMemory(std::move(report));
}

/// Blocks of a plan have their addresses, and who watches knows blocks by theirs.
bool DeviceMemory::mayMove(Space space) const {
  std::lock_guard lock(mutex_);
  return space == Space::DeviceDram && !follower_ && !watcher_;
}

void DeviceMemory::stir(Space space) {
  if (rangeMaker_ && rangeMaker_->isRestless() && mayMove(space))
    exclusively_([&] { rangeMaker_->stir(); });
}

bool DeviceMemory::compact(Space space, uint64_t bytes, uint32_t alignment) {
  if (!rangeMaker_ || !mayMove(space))
    return false;
  {
    std::lock_guard lock(mutex_);
    const Usage &usage = usage_[uint8_t(space)];
    if (!fits(usage.budget, usage.live, device_.takenBytes(space, bytes, alignment)))
      return false;
  }
  bool made = false;
  exclusively_([&] { made = rangeMaker_->makeRange(bytes, std::max(alignment, device_.leastAlignment(space, bytes))); });
  return made;
}

void DeviceMemory::free(Space space, void *data, uint64_t bytes, uint32_t alignment, uint32_t accountNumber,
                        const Fence &lastUse) noexcept {
  uint64_t taken = device_.takenBytes(space, bytes, alignment);
  std::lock_guard lock(mutex_);
  if (watcher_ && space == Space::DeviceDram && bytes)
    watcher_->onGiven(data);
  if (bytes && isPlanned(space, data)) {
    liveInPlan_ -= taken;
    lentBytes_ -= accountNumber & lentBit ? taken : 0;
  }
  device_.giveMemory(space, data, bytes, alignment, lastUse);
  Usage &usage = usage_[uint8_t(space)];
  Account &account = usage.accounts[accountNumber & ~lentBit];
  touch(usage, account);
  account.live -= taken;
  --account.blocks;
  usage.live -= taken;
}

OutOfMemory::Report DeviceMemory::report(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner) const {
  OutOfMemory::Report report;
  uint64_t taken = device_.takenBytes(space, bytes, alignment);
  report.device = device_.name();
  report.space = space;
  report.wantedBytes = bytes;
  report.holders = holders(space);
  report.free = device_.freeMemory(space);
  std::lock_guard lock(mutex_);
  const Usage &usage = usage_[uint8_t(space)];
  report.wantedBy = owners_[owner];
  report.budgetBytes = usage.budget;
  if (space == Space::DeviceDram)
    report.stayed = stayed_;
  report.liveBytes = usage.live;
  report.smallestBudgetBytes = std::max(usage.budget, usage.live + taken);
  for (const SpaceInfo &info : device_.spaces())
    if (info.space == space)
      report.capacityBytes = info.capacityBytes;
  return report;
}

//===----------------------------------------------------------------------===//
// Budgets
//===----------------------------------------------------------------------===//

void DeviceMemory::setBudget(Space space, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  loadCapacities();
  for (const SpaceInfo &info : device_.spaces())
    if (info.space == space) {
      usage_[uint8_t(space)].given = std::min(bytes, info.capacityBytes);
      limit(space);
    }
}

void DeviceMemory::limit(Space space) {
  Usage &usage = usage_[uint8_t(space)];
  usage.budget = usage.caps.empty() ? usage.given : std::min(usage.given, *usage.caps.begin());
  device_.limitMemory(space, usage.budget);
}

DeviceMemory::CapHandle DeviceMemory::addCap(Space space, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  loadCapacities();
  auto place = usage_[uint8_t(space)].caps.insert(bytes);
  CapHandle handle;
  handle.entry_ = std::shared_ptr<void>(nullptr, [this, space, place](void *) {
    std::lock_guard lock(mutex_);
    usage_[uint8_t(space)].caps.erase(place);
    limit(space);
  });
  limit(space);
  return handle;
}

uint64_t DeviceMemory::budget(Space space) const {
  std::lock_guard lock(mutex_);
  const_cast<DeviceMemory *>(this)->loadCapacities();
  return usage_[uint8_t(space)].budget;
}

DeviceMemory::RoomMakerHandle DeviceMemory::addRoomMaker(std::string name, int rank, RoomMaker maker) {
  auto entry = std::make_shared<Maker>(Maker{std::move(name), rank, std::move(maker)});
  std::lock_guard lock(mutex_);
  makers_.remove_if([](const std::weak_ptr<Maker> &old) { return old.expired(); });
  auto place = std::ranges::find_if(makers_, [&](const std::weak_ptr<Maker> &old) {
    auto other = old.lock();
    return other && other->rank > rank;
  });
  makers_.insert(place, entry);
  RoomMakerHandle handle;
  handle.entry_ = std::move(entry);
  return handle;
}

//===----------------------------------------------------------------------===//
// Certified addresses
//===----------------------------------------------------------------------===//

bool DeviceMemory::isPlanned(Space space, const void *data) const {
  return follower_ && space == Space::DeviceDram &&
         follower_->contains(uint64_t(static_cast<const std::byte *>(data) - planOrigin_));
}

bool DeviceMemory::followAddresses(AddressPlan plan, std::function<bool()> awaitRoom) {
  std::vector<OwnerId> owners;
  for (const AddressPlan::Line &line : plan.lines)
    owners.push_back(intern(line.owner));
  std::lock_guard lock(mutex_);
  const std::byte *origin = device_.reserveMemory(Space::DeviceDram, plan.ranges);
  if (!origin)
    return false;
  planOrigin_ = origin;
  plannedBytes_ = plan.bytes();
  liveInPlan_ = lentBytes_ = 0;
  follower_ = std::make_unique<AddressFollower>(std::move(plan), owners);
  awaitRoom_ = std::move(awaitRoom);
  addressFigures_ = {};
  ++addressPlans_;
  return true;
}

uint64_t DeviceMemory::addressPlan() const {
  std::lock_guard lock(mutex_);
  return follower_ ? addressPlans_ : 0;
}

void DeviceMemory::forgetAddresses() {
  std::lock_guard lock(mutex_);
  if (!follower_)
    return;
  device_.reserveMemory(Space::DeviceDram, {});
  follower_.reset();
  awaitRoom_ = nullptr;
  plannedBytes_ = liveInPlan_ = lentBytes_ = 0;
  addressFigures_ = {};
}

void DeviceMemory::restartAddresses() {
  std::lock_guard lock(mutex_);
  if (follower_)
    follower_->restart();
}

void DeviceMemory::beginPlannedStep() {
  std::lock_guard lock(mutex_);
  if (follower_)
    follower_->beginStep();
}

void DeviceMemory::noteStayed(std::string what) {
  std::lock_guard lock(mutex_);
  stayed_ = std::move(what);
}

bool DeviceMemory::asksPlan() const { return follower_ && follower_->isAsked() && !isBesidePlan_; }

void DeviceMemory::setBesidePlan(bool isBeside) {
  std::lock_guard lock(mutex_);
  isBesidePlan_ = isBeside;
}

DeviceMemory::NextPlace DeviceMemory::nextPlace(const void *data, uint64_t bytes, OwnerId owner) {
  std::lock_guard lock(mutex_);
  const AddressPlan::Block *planned = asksPlan() ? follower_->next(owner, bytes) : nullptr;
  if (!planned)
    return NextPlace::Elsewhere;
  uint64_t next = planned->offset, now = uint64_t(static_cast<const std::byte *>(data) - planOrigin_);
  if (next != now)
    return std::max(next, now) - std::min(next, now) < bytes ? NextPlace::Overlapping : NextPlace::Elsewhere;
  follower_->advance(owner);
  ++addressFigures_.placed;
  return NextPlace::Here;
}

void DeviceMemory::endPlannedStep() {
  std::lock_guard lock(mutex_);
  if (follower_)
    follower_->endStep();
}

bool DeviceMemory::isInPlannedStep() const {
  std::lock_guard lock(mutex_);
  return follower_ && follower_->isInStep();
}

uint64_t DeviceMemory::lentBytes() const {
  std::lock_guard lock(mutex_);
  return lentBytes_;
}

AddressFigures DeviceMemory::addressFigures() const {
  std::lock_guard lock(mutex_);
  return addressFigures_;
}

void DeviceMemory::watch(MemoryWatcher *watcher) {
  std::lock_guard lock(mutex_);
  watcher_ = watcher;
}

//===----------------------------------------------------------------------===//
// The books
//===----------------------------------------------------------------------===//

OwnerId DeviceMemory::intern(const MemoryOwner &owner) {
  if (owner == MemoryOwner{})
    return 0;
  std::lock_guard lock(mutex_);
  auto [it, isNew] = ownerIds_.try_emplace(owner, OwnerId(owners_.size()));
  if (isNew)
    owners_.push_back(owner);
  return it->second;
}

MemoryOwner DeviceMemory::owner(OwnerId id) const {
  std::lock_guard lock(mutex_);
  return owners_[id];
}

void DeviceMemory::setPhase(std::string_view phase) {
  std::lock_guard lock(mutex_);
  auto known = std::ranges::find(phases_, phase);
  if (known == phases_.end() && phases_.size() < maxPhases)
    known = phases_.insert(phases_.end(), std::string(phase));
  phase_ = known == phases_.end() ? 0 : uint32_t(known - phases_.begin());
}

uint64_t DeviceMemory::liveBytes(Space space) const {
  std::lock_guard lock(mutex_);
  return usage_[uint8_t(space)].live;
}

uint64_t DeviceMemory::peakBytes(Space space) const {
  std::lock_guard lock(mutex_);
  return usage_[uint8_t(space)].peak;
}

void DeviceMemory::resetPeak() {
  std::lock_guard lock(mutex_);
  for (Usage &usage : usage_) {
    usage.peak = usage.live;
    ++usage.peakNumber;
    ++usage.resets;
  }
}

std::vector<MemoryHolder> DeviceMemory::holders(Space space) const {
  std::lock_guard lock(mutex_);
  const Usage &usage = usage_[uint8_t(space)];
  std::vector<MemoryHolder> holders;
  for (uint32_t i = 0; i < usage.accounts.size(); ++i) {
    const Account &account = usage.accounts[i];
    uint64_t atPeak = account.seen == usage.peakNumber ? account.atPeak : account.live;
    uint64_t peak = account.reset == usage.resets ? account.peak : account.live;
    if (account.live || atPeak)
      holders.push_back({owners_[i / maxPhases], phases_[i % maxPhases], account.live, account.blocks, peak, atPeak});
  }
  std::ranges::sort(holders, [](const MemoryHolder &a, const MemoryHolder &b) {
    return std::tie(b.liveBytes, b.bytesAtPeak, a.owner, a.phase) <
           std::tie(a.liveBytes, a.bytesAtPeak, b.owner, b.phase);
  });
  return holders;
}

std::string DeviceMemory::holdersTable(Space space, size_t lines) const { return tableOf(holders(space), lines); }

} // namespace segue::inline runtime
