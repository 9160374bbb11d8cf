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
    /// Gets a sentence for the log about adapters that failed.
    std::function<void(const std::string &)> warn;
    /// Gets a telemetry record when it is due: at STEP_END of every
    /// `telemetry_interval_steps`-th step, and of every aborted one.
    std::function<void(const Json &)> record;
    /// Called when a token that was waited for is held.
    std::function<void(uint64_t token)> granted;
    /// Called when the step is aborted: waits until no transfer is in flight any more. May
    /// complete and release tokens.
    std::function<void()> drain;
    /// Gets every event with the answer it got under `expect`, as replay reads it.
    std::function<void(const Json &)> trace;
  };

  /// Numbers of the things that a service held when it was detached.
  struct Detached {
    size_t reservations = 0, tokens = 0, waiters = 0;
  };

  /// Makes a Conductor that is off.
  Conductor();
  /// Makes a Conductor that is off unless `config.enabled`; one that is off constructs nothing.
  Conductor(const ConductorConfig &config, const ConductorLimits &limits, Hooks hooks = {});
  /// Detaches every adapter.
  ~Conductor();
  Conductor(Conductor &&) noexcept;
  Conductor &operator=(Conductor &&) noexcept;

  bool isEnabled() const { return manager_ != nullptr; }

  //===--------------------------------------------------------------------===//
  // Services
  //===--------------------------------------------------------------------===//

  /// Registers a service without knobs. Throws InvalidArgument for a name in use.
  ServiceId registerOwner(std::string name);
  /// Registers a service by its adapter: saves its knobs and, within a step, applies the
  /// hints. The adapter must outlive its attachment. Throws InvalidArgument for a name in
  /// use.
  ServiceId attach(ConductorAdapter &adapter);
  /// Releases what the service holds (FLOOR reservations too) and waits for, and restores
  /// its knobs. A service that still held something counts as an adapter error. Does
  /// nothing for a service that is not there.
  Detached detach(ServiceId service);
  /// Returns the service of that name; nothing if none is registered, and when off.
  std::optional<ServiceId> service(std::string_view name) const;

  //===--------------------------------------------------------------------===//
  // The course of a step. `secondsInOld` is how long the phase lasted that
  // ends; the record shows it, no decision depends on it.
  //===--------------------------------------------------------------------===//

  /// Goes from IDLE to STEP_BEGIN; hints are the base again. Throws PhaseOrder, with
  /// nothing changed, within a step.
  void beginStep(int64_t step);
  /// Enters a phase. Returns false, and does nothing, if `phase` is the present one. Throws
  /// PhaseOrder, with nothing changed, if it cannot follow.
  bool enterPhase(StepPhase phase, double secondsInOld = 0);
  /// Notes the boundary before a block. Throws PhaseOrder between steps.
  void enterBlock(std::string_view block);
  /// Goes to STEP_END and then to IDLE.
  void endStep(double secondsInOld = 0);
  /// Goes to IDLE from anywhere in a step, and calls `drain`. Returns the tokens that were
  /// waited for, first come first: their owners answer STEP_ABORTED. Frees all other
  /// tokens, and reservations of scope phase and step, except FLOOR. Throws PhaseOrder
  /// between steps.
  std::vector<uint64_t> abortStep(double secondsInOld = 0);

  StepPhase phase() const;
  /// Returns the hints that were pushed last.
  const RuntimeLimitHints &hints() const;

  /// Sets the compiled order of the step with its planned peaks, for hints ahead of the
  /// pressure and for `slots: auto`. Throws PhaseOrder within a step.
  void setPlan(std::vector<PlannedBlock> plan);
  /// Sets the map of precisions, which holds from the next STEP_BEGIN on.
  void setBlockPrecision(BlockPrecisionMap map);

  //===--------------------------------------------------------------------===//
  // Budget
  //===--------------------------------------------------------------------===//

  /// Notes the allocated bytes of the device's allocator, without its cached reserve.
  void measure(int64_t vramAllocatedBytes);
  /// Asks for a reservation. Never throws; a denial has its reason.
  Grant reserve(const ReservationRequest &request);
  /// Note that memory was really allocated, or freed, under a reservation. Throw
  /// InvalidArgument, with nothing changed, for an id that is not live and for more than is
  /// left.
  void commit(uint64_t id, int64_t bytes);
  void uncommit(uint64_t id, int64_t bytes);
  /// Ends a reservation. Throws InvalidArgument for an id that is not live.
  void release(uint64_t id);

  /// Returns the bytes that count against the caps; 0 when off.
  int64_t usedBytes(BudgetResource resource) const;
  /// Returns the live reservations in the order of their grant.
  std::vector<ReservationHolder> holders() const;
  /// Returns the holders as text, a line each, for the error of a failed allocation.
  std::string holdersTable() const;

  //===--------------------------------------------------------------------===//
  // Slots of the link
  //===--------------------------------------------------------------------===//

  /// Asks for a token; never waits.
  TokenAnswer tryAcquire(const TokenRequest &request);
  /// Asks for a token. A request of priority REQUIRED or CRITICAL may be answered by
  /// Waiting; then `granted`, or the result of `releaseToken`, tells when it is held. Other
  /// requests are answered as by tryAcquire.
  TokenAnswer acquireOrWait(const TokenRequest &request);
  /// Ends a wait that has lasted `slot_wait_timeout_ms`: its transfer goes on over the
  /// limit. Throws TokenInvalid if nobody waits for `token`.
  TokenAnswer timeOut(uint64_t token);
  /// Gives a wait up. Throws TokenInvalid if nobody waits for `token`.
  void cancelWait(uint64_t token);
  /// Notes that a transfer went well: its figures count for the direction's bandwidth.
  /// Throws TokenInvalid unless `token` is held and not completed yet.
  void complete(uint64_t token, int64_t bytes, double milliseconds);
  /// Frees the slot, also of a transfer that failed. Returns the token that has it now, if
  /// one waited. Throws TokenInvalid, with nothing changed, for a token that is not held,
  /// or not held by `owner`.
  std::optional<uint64_t> releaseToken(uint64_t token, ServiceId owner);
  /// Gives a token back, whoever holds it.
  std::optional<uint64_t> releaseToken(uint64_t token);

  int inflight(LinkDirection direction) const;
  /// Returns the measured bandwidth in GB/s (10⁹ bytes); nothing before the first completed transfer.
  std::optional<double> bandwidth(LinkDirection direction) const;

  //===--------------------------------------------------------------------===//
  // Records
  //===--------------------------------------------------------------------===//

  /// Returns the telemetry record of the step so far, or of the one that ended last; null
  /// when off.
  Json record() const;
private:
  /// Shows tests the inside.
  friend struct ConductorInspection;
  struct Manager;
  std::unique_ptr<Manager> manager_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CONDUCTOR_H
