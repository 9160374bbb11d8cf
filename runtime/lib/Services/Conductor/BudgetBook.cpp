//===- BudgetBook.cpp - grants of device and pinned memory ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BudgetBook.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

/// The greatest measure in bytes: far above any cap, far below where a sum could wrap.
static constexpr int64_t greatestMeasure = int64_t(1) << 61;

void BudgetBook::addOwner(ServiceId owner) {
  if (owners_.size() <= size_t(owner))
    owners_.resize(size_t(owner) + 1);
}

void BudgetBook::measure(int64_t allocatedBytes) {
  if (allocatedBytes < 0)
    throw Error(ErrorCode::InvalidArgument,
                "the device cannot have " + std::to_string(allocatedBytes) + " bytes allocated");
  allocated_ = std::min(allocatedBytes, greatestMeasure);
}

bool BudgetBook::isInvalid(const ReservationRequest &request) const {
  return request.bytes <= 0 || (request.mode == BudgetMode::Soft && request.minBytes > request.bytes) ||
         table_.find(request.id);
}

int64_t BudgetBook::capRoom(const ReservationRequest &request) const {
  if (request.resource == BudgetResource::Pinned)
    return pinnedCap_ - pinned_;
  return (request.mode == BudgetMode::Burst ? hardCap_ : softCap_) - used(BudgetResource::Vram);
}

int64_t BudgetBook::ceilingRoom(const ReservationRequest &request) const {
  if (request.mode != BudgetMode::Soft && request.mode != BudgetMode::Burst)
    return unbounded;
  const OwnerBooks &owner = owners_[size_t(request.owner)];
  size_t resource = size_t(request.resource);
  return owner.ceiling[resource] == unbounded ? unbounded : owner.ceiling[resource] - owner.granted[resource];
}

/// The least that satisfies a request.
int64_t BudgetBook::target(const ReservationRequest &request) {
  return request.mode == BudgetMode::Soft ? std::max<int64_t>(1, request.minBytes) : request.bytes;
}

/// Returns what the mode's rule grants within that room; 0: denied.
int64_t BudgetBook::grantable(const ReservationRequest &request, const Room &room) {
  int64_t least = target(request), left = std::min(room.cap, room.ceiling);
  return left < least ? 0 : std::min(request.bytes, left);
}

Grant BudgetBook::reserve(const ReservationRequest &request, StepPhase phase, bool suppressed) {
  if (request.mode == BudgetMode::Ceiling) {
    enter(request, phase, 0);
    return {GrantStatus::Granted, 0, DenyReason::None, {}};
  }
  if (suppressed && request.resource == BudgetResource::Vram && request.priority <= Priority::Speculative)
    return {GrantStatus::Denied, 0, DenyReason::PhaseRuleSuppressedSpeculative, {}};

  Grant answer;
  Room room{capRoom(request), ceilingRoom(request)};
  answer.bytes = grantable(request, room);
  bool capFails = room.cap < target(request);
  if (answer.bytes == 0 && capFails && reclaimEnabled_ && request.resource == BudgetResource::Vram &&
      request.priority >= Priority::Required) {
    answer.reclaimed = planReclaim(request, room);
    for (auto [id, bytes] : answer.reclaimed) {
      Reservation &reservation = *table_.find(id);
      reservation.granted -= bytes;
      books(reservation.owner).granted[size_t(BudgetResource::Vram)] -= bytes;
      uncommitted_ -= bytes;
    }
    if (!answer.reclaimed.empty())
      answer.bytes = grantable(request, {capRoom(request), ceilingRoom(request)});
  }
  if (answer.bytes == 0) {
    answer.status = GrantStatus::Denied;
    if (!capFails)
      answer.reason = DenyReason::OwnerCeilingExceeded;
    else if (request.resource == BudgetResource::Pinned)
      answer.reason = DenyReason::PinnedCapExceeded;
    else
      answer.reason =
          request.mode == BudgetMode::Burst ? DenyReason::VramHardCapExceeded : DenyReason::VramSoftCapExceeded;
    return answer;
  }
  enter(request, phase, answer.bytes);
  answer.status = answer.bytes == request.bytes ? GrantStatus::Granted : GrantStatus::Partial;
  return answer;
}

/// Returns what to take from whom so that the request is satisfied; nothing if even
/// all of it would not do.
std::vector<std::pair<uint64_t, int64_t>> BudgetBook::planReclaim(const ReservationRequest &request, Room room) const {
  std::vector<const Reservation *> candidates;
  for (const Reservation &entry : table_.entries())
    if (entry.resource == BudgetResource::Vram && (entry.mode == BudgetMode::Soft || entry.mode == BudgetMode::Burst) &&
        entry.priority < request.priority && entry.granted > entry.committed)
      candidates.push_back(&entry);
  std::sort(candidates.begin(), candidates.end(), [](const Reservation *a, const Reservation *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->sequence > b->sequence;
  });
  std::vector<std::pair<uint64_t, int64_t>> taken;
  for (const Reservation *candidate : candidates) {
    int64_t missing = target(request) - room.cap;
    if (missing <= 0)
      break;
    int64_t bytes = std::min(missing, candidate->granted - candidate->committed);
    taken.push_back({candidate->id, bytes});
    room.cap += bytes;
    if (candidate->owner == request.owner && room.ceiling != unbounded)
      room.ceiling += bytes; // the owner holds less
  }
  if (grantable(request, room) == 0)
    taken.clear();
  return taken;
}

void BudgetBook::enter(const ReservationRequest &request, StepPhase phase, int64_t granted) {
  Reservation entry;
  entry.id = request.id;
  entry.sequence = nextSequence_++;
  entry.owner = request.owner;
  entry.mode = request.mode;
  entry.resource = request.resource;
  entry.priority = request.priority;
  entry.scope = request.scope;
  entry.phase = phase;
  entry.granted = granted;
  entry.ceiling = request.mode == BudgetMode::Ceiling ? request.bytes : 0;
  table_.insert(entry);
  OwnerBooks &owner = books(request.owner);
  size_t resource = size_t(request.resource);
  if (entry.mode == BudgetMode::Ceiling)
    owner.ceiling[resource] = std::min(owner.ceiling[resource], entry.ceiling);
  owner.granted[resource] += entry.granted;
  if (entry.resource == BudgetResource::Vram)
    uncommitted_ += entry.granted - entry.committed;
  else
    pinned_ += entry.granted;
  if (request.mode != BudgetMode::Ceiling && owner.granted[resource] > owner.ceiling[resource])
    ++ceilingExceeded_;
}

/// Takes a reservation, which is out of the table already, off the sums.
void BudgetBook::leave(const Reservation &entry) {
  books(entry.owner).granted[size_t(entry.resource)] -= entry.granted;
  if (entry.resource == BudgetResource::Vram)
    uncommitted_ -= entry.granted - entry.committed;
  else
    pinned_ -= entry.granted;
  if (entry.mode == BudgetMode::Ceiling)
    lowestCeiling(entry.owner, entry.resource);
}

void BudgetBook::lowestCeiling(ServiceId owner, BudgetResource resource) {
  int64_t lowest = unbounded;
  for (const Reservation &entry : table_.entries())
    if (entry.mode == BudgetMode::Ceiling && entry.owner == owner && entry.resource == resource)
      lowest = std::min(lowest, entry.ceiling);
  books(owner).ceiling[size_t(resource)] = lowest;
}

Reservation &BudgetBook::live(uint64_t id) {
  Reservation *entry = table_.find(id);
  if (!entry)
    throw Error(ErrorCode::InvalidArgument,
                "reservation " + std::to_string(id) + " is not live: it was denied, released, or ended with its scope");
  return *entry;
}

void BudgetBook::commit(uint64_t id, int64_t bytes) {
  Reservation &entry = live(id);
  if (bytes < 0 || bytes > entry.granted - entry.committed)
    throw Error(ErrorCode::InvalidArgument, "reservation " + std::to_string(id) + ": " + std::to_string(bytes) +
                                                " bytes to commit, " + std::to_string(entry.granted - entry.committed) +
                                                " of " + std::to_string(entry.granted) + " are left");
  entry.committed += bytes;
  if (entry.resource == BudgetResource::Vram)
    uncommitted_ -= bytes;
}

void BudgetBook::uncommit(uint64_t id, int64_t bytes) {
  Reservation &entry = live(id);
  if (bytes < 0 || bytes > entry.committed)
    throw Error(ErrorCode::InvalidArgument, "reservation " + std::to_string(id) + ": " + std::to_string(bytes) +
                                                " bytes to uncommit, " + std::to_string(entry.committed) +
                                                " are committed");
  entry.committed -= bytes;
  if (entry.resource == BudgetResource::Vram)
    uncommitted_ += bytes;
}

void BudgetBook::release(uint64_t id) {
  Reservation entry = live(id);
  table_.erase(id);
  leave(entry);
}

size_t BudgetBook::releaseIf(const std::function<bool(const Reservation &)> &matches) {
  size_t released = 0;
  for (size_t i = table_.entries().size(); i-- > 0;) {
    Reservation entry = table_.entries()[i];
    if (!matches(entry))
      continue;
    // The last entry takes its place; those behind i were looked at already.
    table_.erase(entry.id);
    leave(entry);
    ++released;
  }
  return released;
}

std::vector<Reservation> BudgetBook::reservations() const {
  std::vector<Reservation> sorted(table_.entries().begin(), table_.entries().end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Reservation &a, const Reservation &b) { return a.sequence < b.sequence; });
  return sorted;
}

} // namespace segue::inline runtime
