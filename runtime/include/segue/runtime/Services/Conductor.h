//===- Conductor.h - who may use how much, and when -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Arbitrates what weight streaming, activation spilling and quantised weights
// compete for on one device: headroom, pinned memory, slots of the link. It
// allocates nothing and schedules nothing. Events come in, decisions go out;
// there is no clock, thread, device or file in it, so that a log of its events
// determines every decision (segue-run replay).
//
//   ConductorConfig config = ConductorConfig::read(reader);
//   Conductor conductor(config, config.limits(capacityBytes));
//   ServiceId weights = conductor.attach(adapter);
//   conductor.beginStep(0);
//   conductor.enterPhase(StepPhase::Forward);
//   conductor.enterBlock("h.0");
//   conductor.measure(allocatedBytes);
//   Grant grant = conductor.reserve({.id = 1, .owner = weights, .bytes = bytes});
//   TokenAnswer answer = conductor.acquireOrWait({.id = 2, .owner = weights});
//   conductor.complete(2, bytes, milliseconds);
//   conductor.releaseToken(2, weights);
//   conductor.endStep();
//
// Off is one null pointer: every call returns at once, grants are unlimited
// and tokens free.
//
// One thread: the one that submits. What copies report from other threads is
// brought to it as calls before its next one. Numbers of MiB in names, hints
// and records are 1,048,576 bytes.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_CONDUCTOR_H
#define SEGUE_RUNTIME_SERVICES_CONDUCTOR_H

#include "segue/runtime/Services/ConductorAdapter.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include <functional>

namespace segue::inline runtime {

class Conductor {
public:
  /// Functions by which Conductor tells the run around it. All may be empty.
  struct Hooks {
    /// One sentence for the log: adapters that failed.
    std::function<void(const std::string &)> warn;
    /// A telemetry record that is due: at STEP_END of every
    /// `telemetry_interval_steps`-th step, and of every aborted one.
    std::function<void(const Json &)> record;
    /// A token that was waited for is held from now on.
    std::function<void(uint64_t token)> granted;
    /// The step was aborted: waits until no transfer is in flight any more.
    /// May complete and release tokens.
    std::function<void()> drain;
    /// Every event with the answer it got under `expect`, as replay reads it.
    std::function<void(const Json &)> trace;
  };

  /// Numbers of the things that a service held when it was detached.
  struct Detached {
    size_t reservations = 0, tokens = 0, waiters = 0;
  };

  /// Off.
  Conductor();
  /// Off unless `config.enabled`. Constructs nothing if off.
  Conductor(const ConductorConfig &config, const ConductorLimits &limits, Hooks hooks = {});
  /// Detaches every adapter.
  ~Conductor();
  Conductor(Conductor &&) noexcept;
  Conductor &operator=(Conductor &&) noexcept;

  bool isEnabled() const { return manager_ != nullptr; }

  //===--------------------------------------------------------------------===//
  // Services
  //===--------------------------------------------------------------------===//

  /// A service without knobs. Throws InvalidArgument for a name in use.
  ServiceId registerOwner(std::string name);
  /// Saves the adapter's knobs; within a step, applies the hints. The adapter
  /// must outlive its attachment. Throws InvalidArgument for a name in use.
  ServiceId attach(ConductorAdapter &adapter);
  /// Releases what the service holds and waits for, FLOOR too, and restores
  /// its knobs. A service that still held something counts as an adapter
  /// error. Nothing happens for a service that is not there.
  Detached detach(ServiceId service);
  /// Nothing for a name that is not registered, and when off.
  std::optional<ServiceId> service(std::string_view name) const;

  //===--------------------------------------------------------------------===//
  // The course of a step. `secondsInOld` is how long the phase lasted that
  // ends; the record shows it, no decision depends on it.
  //===--------------------------------------------------------------------===//

  /// IDLE → STEP_BEGIN: hints are the base again. Throws PhaseOrder, with
  /// nothing changed, within a step.
  void beginStep(int64_t step);
  /// False if `phase` is the present one: nothing happens. Throws PhaseOrder,
  /// with nothing changed, if it cannot follow.
  bool enterPhase(StepPhase phase, double secondsInOld = 0);
  /// The boundary before a block. Throws PhaseOrder between steps.
  void enterBlock(std::string_view block);
  /// → STEP_END → IDLE.
  void endStep(double secondsInOld = 0);
  /// → IDLE from anywhere in a step, which is told to `drain`. Returns the
  /// tokens that were waited for, first come first: their owners answer
  /// STEP_ABORTED. All other tokens are freed, and so are reservations of
  /// scope phase and step, except FLOOR. Throws PhaseOrder between steps.
  std::vector<uint64_t> abortStep(double secondsInOld = 0);

  StepPhase phase() const;
  /// Returns the hints that were pushed last.
  const RuntimeLimitHints &hints() const;

  /// The compiled order of the step with its planned peaks, for hints ahead of
  /// the pressure and for `slots: auto`. Throws PhaseOrder within a step.
  void setPlan(std::vector<PlannedBlock> plan);
  /// The map holds from the next STEP_BEGIN on.
  void setBlockPrecision(BlockPrecisionMap map);

  //===--------------------------------------------------------------------===//
  // Budget
  //===--------------------------------------------------------------------===//

  /// The allocated bytes of the device's allocator, not its cached reserve.
  void measure(int64_t vramAllocatedBytes);
  /// Never throws; a denial has its reason.
  Grant reserve(const ReservationRequest &request);
  /// Memory was really allocated, or freed, under a reservation. Throws
  /// InvalidArgument, with nothing changed, for an id that is not live and for
  /// more than is left.
  void commit(uint64_t id, int64_t bytes);
  void uncommit(uint64_t id, int64_t bytes);
  /// Throws InvalidArgument for an id that is not live.
  void release(uint64_t id);

  /// Bytes that count against the caps; 0 when off.
  int64_t usedBytes(BudgetResource resource) const;
  /// Live reservations in the order of their grant.
  std::vector<ReservationHolder> holders() const;
  /// The holders as text, a line each, for the error of a failed allocation.
  std::string holdersTable() const;

  //===--------------------------------------------------------------------===//
  // Slots of the link
  //===--------------------------------------------------------------------===//

  /// Never waits.
  TokenAnswer tryAcquire(const TokenRequest &request);
  /// Waiting if REQUIRED or CRITICAL: `granted` tells when, or `releaseToken`
  /// by its result. Others are as tryAcquire.
  TokenAnswer acquireOrWait(const TokenRequest &request);
  /// A wait has lasted `slot_wait_timeout_ms`: it goes on over the limit.
  /// Throws TokenInvalid if nobody waits for `token`.
  TokenAnswer timeOut(uint64_t token);
  /// The wait is given up. Throws TokenInvalid if nobody waits for `token`.
  void cancelWait(uint64_t token);
  /// A transfer went well: its figures count for the direction's bandwidth.
  /// Throws TokenInvalid unless `token` is held and not completed yet.
  void complete(uint64_t token, int64_t bytes, double milliseconds);
  /// Frees the slot, also of a transfer that failed. Returns the token that
  /// has it now, if one waited. Throws TokenInvalid, with nothing changed, for
  /// a token that is not held, or not by `owner`.
  std::optional<uint64_t> releaseToken(uint64_t token, ServiceId owner);
  /// Gives a token back, whoever holds it.
  std::optional<uint64_t> releaseToken(uint64_t token);

  int inflight(LinkDirection direction) const;
  /// Measured, GB/s (10⁹); nothing before the first completed transfer.
  std::optional<double> bandwidth(LinkDirection direction) const;

  //===--------------------------------------------------------------------===//
  // Records
  //===--------------------------------------------------------------------===//

  /// The telemetry record of the step so far, or of the one that ended last.
  /// Null when off.
  Json record() const;
private:
  /// Shows tests what is inside.
  friend struct ConductorInspection;
  struct Manager;
  std::unique_ptr<Manager> manager_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CONDUCTOR_H
