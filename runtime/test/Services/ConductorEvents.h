//===- ConductorEvents.h - random events for Conductor ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_CONDUCTOREVENTS_H
#define SEGUE_RUNTIME_TEST_SERVICES_CONDUCTOREVENTS_H

#include "Services/ConductorRig.h"
#include "segue/runtime/Error.h"
#include <random>
#include <set>

namespace segue {

/// Does random things to a Conductor, legal and not, and keeps its own books of
/// what must be true. Sizes are whole MiB up to 40, with caps of 100 and 120.
class ConductorEvents {
public:
  static constexpr const char *config =
      R"({"vram_soft_cap_mb": 100, "vram_hard_cap_mb": 120, "pinned_cap_mb": 60, "h2d_slots": 2, "d2h_slots": 1,
          "contention_checks": 1, "telemetry_interval_steps": 1})";
  static constexpr int64_t softCap = 100 * MiB, hardCap = 120 * MiB, pinnedCap = 60 * MiB;

  explicit ConductorEvents(uint64_t seed) : random_(seed) {}

  void step(ConductorRig &rig) {
    switch (pick(12)) {
    case 0:
    case 1:
      return phase(rig);
    case 2:
      return quietly([&] { rig.conductor.enterBlock("h." + std::to_string(pick(4))); });
    case 3:
      return rig.conductor.measure(pick(130) * MiB);
    case 4:
    case 5:
    case 6:
      return reserve(rig);
    case 7:
      return change(rig);
    case 8:
    case 9:
      return acquire(rig);
    default:
      return finish(rig);
    }
  }

  /// Gives back everything that is held.
  void releaseAll(ConductorRig &rig) {
    for (int64_t id = 1; id <= lastId_; ++id) {
      quietly([&] { rig.conductor.cancelWait(id); });
      quietly([&] { rig.conductor.releaseToken(id); });
    }
    for (const ReservationHolder &holder : rig.conductor.holders())
      rig.conductor.release(holder.id);
  }

private:
  int64_t pick(int64_t count) { return int64_t(random_() % uint64_t(count)); }
  template <typename E> E any(int64_t count) { return E(pick(count)); }
  int64_t oldId() { return 1 + pick(lastId_ + 1); }

  /// A call that may be refused.
  template <typename Call> void quietly(Call call) {
    try {
      call();
    } catch (const Error &) {
    }
  }

  void phase(ConductorRig &rig) {
    switch (pick(5)) {
    case 0:
      return quietly([&] { rig.conductor.beginStep(++step_); });
    case 1:
      return quietly([&] { rig.conductor.endStep(); });
    case 2:
      if (pick(4) == 0)
        quietly([&] { rig.conductor.abortStep(); });
      return;
    default:
      return quietly([&] { rig.conductor.enterPhase(any<StepPhase>(6)); });
    }
  }

  void reserve(ConductorRig &rig) {
    ReservationRequest request;
    request.id = uint64_t(pick(8) ? ++lastId_ : oldId());
    request.owner = any<ServiceId>(3); // a, b, or nobody
    request.bytes = (pick(41) - 1) * MiB;
    request.mode = any<BudgetMode>(5);
    request.resource = any<BudgetResource>(2);
    request.priority = any<Priority>(4);
    request.scope = any<BudgetScope>(3);
    request.minBytes = 1 + pick(10) * MiB;
    Grant grant = rig.conductor.reserve(request);
    if (grant.bytes == 0)
      return;
    EXPECT_LE(grant.bytes, request.bytes);
    int64_t cap = request.resource == BudgetResource::Pinned ? pinnedCap
                  : request.mode == BudgetMode::Burst        ? hardCap
                                                             : softCap;
    EXPECT_LE(rig.conductor.usedBytes(request.resource), cap);
    for (auto [id, bytes] : grant.reclaimed)
      EXPECT_GT(bytes, 0);
  }

  void change(ConductorRig &rig) {
    uint64_t id = uint64_t(oldId());
    int64_t bytes = pick(20) * MiB;
    quietly([&] {
      switch (pick(3)) {
      case 0:
        return rig.conductor.commit(id, bytes);
      case 1:
        return rig.conductor.uncommit(id, bytes);
      default:
        return rig.conductor.release(id);
      }
    });
  }

  void acquire(ConductorRig &rig) {
    TokenRequest request;
    request.id = uint64_t(++lastId_);
    request.owner = any<ServiceId>(3);
    request.direction = any<LinkDirection>(2);
    request.priority = any<Priority>(4);
    TokenAnswer answer = pick(2) ? rig.conductor.tryAcquire(request) : rig.conductor.acquireOrWait(request);
    if (request.priority <= Priority::Speculative) {
      EXPECT_NE(answer.status, TokenStatus::Waiting);
    }
  }

  void finish(ConductorRig &rig) {
    uint64_t id = uint64_t(std::max<int64_t>(1, lastId_ - pick(12)));
    quietly([&] {
      if (pick(3) == 0)
        rig.conductor.complete(id, 1 + pick(1000000), double(1 + pick(10)));
      switch (pick(8)) {
      case 0:
        rig.conductor.timeOut(id);
        return;
      case 1:
        return rig.conductor.cancelWait(id);
      case 2:
        rig.conductor.releaseToken(id, any<ServiceId>(2));
        return;
      default:
        rig.conductor.releaseToken(id);
        return;
      }
    });
  }

  std::mt19937_64 random_;
  int64_t lastId_ = 0, step_ = 0;
};

} // namespace segue

#endif // SEGUE_RUNTIME_TEST_SERVICES_CONDUCTOREVENTS_H
