//===- BudgetBook.h - grants of device and pinned memory --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// These are the budget rules of Conductor. Against the caps of the device counts
//
//   used(vram) = allocated + Σ over live vram reservations (granted − committed)
//
// since committed bytes are in the allocator's figure already; pinned memory
// is counted as granted. Sums are kept, not computed. All byte counts are
// signed: a measured allocation may exceed every cap, and the room left is
// then 0, never a wrapped number.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_BUDGETBOOK_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_BUDGETBOOK_H

#include "IdTable.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include "segue/runtime/Services/ConductorTypes.h"
#include <functional>

namespace segue::inline runtime {

struct Reservation {
  uint64_t id = 0;
  /// The place in the order of the grants.
  uint64_t sequence = 0;
  ServiceId owner{};
  BudgetMode mode = BudgetMode::Hard;
  BudgetResource resource = BudgetResource::Vram;
  Priority priority = Priority::Required;
  BudgetScope scope = BudgetScope::Manual;
  /// The phase in which it was granted.
  StepPhase phase = StepPhase::Idle;
  int64_t granted = 0, committed = 0;
  /// The bound, if it is a CEILING.
  int64_t ceiling = 0;
};

class BudgetBook {
public:
  BudgetBook(const ConductorLimits &limits, bool reclaimEnabled)
      : softCap_(limits.softCapBytes), hardCap_(limits.hardCapBytes), pinnedCap_(limits.pinnedCapBytes),
        reclaimEnabled_(reclaimEnabled) {}

  /// Adds an owner, who may hold reservations from here on.
  void addOwner(ServiceId owner);

  void measure(int64_t allocatedBytes);
  int64_t allocated() const { return allocated_; }
  int64_t used(BudgetResource resource) const {
    return resource == BudgetResource::Vram ? allocated_ + uncommitted_ : pinned_;
  }
  int64_t uncommitted() const { return uncommitted_; }
  int64_t hardCap() const { return hardCap_; }

  /// Decides in the order of docs/specs/conductor.md, from its third rule on: the caller
  /// has checked that the owner is known and the scope fits the phase.
  Grant reserve(const ReservationRequest &request, StepPhase phase, bool suppressed);
  /// Returns true if the request makes no sense by itself.
  bool isInvalid(const ReservationRequest &request) const;

  /// These throw InvalidArgument with nothing changed.
  void commit(uint64_t id, int64_t bytes);
  void uncommit(uint64_t id, int64_t bytes);
  void release(uint64_t id);
  /// Releases all reservations that match; returns how many.
  size_t releaseIf(const std::function<bool(const Reservation &)> &matches);

  /// Returns how many HARD and FLOOR grants passed a ceiling since the last call.
  uint64_t takeCeilingExceeded() { return std::exchange(ceilingExceeded_, 0); }

  /// Returns live reservations in the order of their grants.
  std::vector<Reservation> reservations() const;
  /// Returns one live reservation, or null.
  const Reservation *find(uint64_t id) const { return table_.find(id); }
  uint64_t nextSequence() const { return nextSequence_; }

private:
  static constexpr int64_t unbounded = INT64_MAX;
  struct OwnerBooks {
    int64_t granted[2] = {0, 0};
    /// The lowest live ceiling.
    int64_t ceiling[2] = {unbounded, unbounded};
  };
  struct Room {
    int64_t cap, ceiling;
  };

  OwnerBooks &books(ServiceId owner) { return owners_[size_t(owner)]; }
  /// Returns the room below the cap, which is negative if the cap is exceeded.
  int64_t capRoom(const ReservationRequest &request) const;
  int64_t ceilingRoom(const ReservationRequest &request) const;
  static int64_t target(const ReservationRequest &request);
  static int64_t grantable(const ReservationRequest &request, const Room &room);
  std::vector<std::pair<uint64_t, int64_t>> planReclaim(const ReservationRequest &request, Room room) const;
  void enter(const ReservationRequest &request, StepPhase phase, int64_t granted);
  void leave(const Reservation &reservation);
  void lowestCeiling(ServiceId owner, BudgetResource resource);
  Reservation &live(uint64_t id);

  int64_t softCap_, hardCap_, pinnedCap_;
  bool reclaimEnabled_;
  int64_t allocated_ = 0, uncommitted_ = 0, pinned_ = 0;
  uint64_t nextSequence_ = 0, ceilingExceeded_ = 0;
  std::vector<OwnerBooks> owners_;
  IdTable<Reservation> table_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_BUDGETBOOK_H
