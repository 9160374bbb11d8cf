//===- ConductorManager.cpp - Conductor where it is on --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConductorManager.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static RuntimeLimitHints configuredHints(const ConductorLimits &limits) {
  return {limits.h2dSlots, limits.d2hSlots, limits.prefetchWindow, false, nullptr};
}

Conductor::Manager::Manager(const ConductorConfig &config, const ConductorLimits &limits, Hooks hooks)
    : config(config), limits(limits), hooks(std::move(hooks)), book(limits, config.reclaimEnabled),
      policy(configuredHints(limits), config.backwardPressureThreshold, config.contentionChecks) {
  setSlotLimits();
}

Conductor::Manager::~Manager() {
  inTransition = true; // nobody waits for a report or a slot any more
  hooks = {};
  for (size_t i = attached.size(); i-- > 0;)
    if (attached[i].adapter)
      callAdapter(i, [](ConductorAdapter &adapter) { adapter.restoreKnobs(); });
}

//===----------------------------------------------------------------------===//
// Services
//===----------------------------------------------------------------------===//

std::optional<ServiceId> Conductor::Manager::find(std::string_view name) const {
  for (size_t i = 0; i < attached.size(); ++i)
    if (attached[i].present && attached[i].name == name)
      return ServiceId(i);
  return std::nullopt;
}

ServiceId Conductor::Manager::addService(std::string name, ConductorAdapter *adapter) {
  if (find(name))
    throw Error(ErrorCode::InvalidArgument, "conductor: an owner \"" + name + "\" is registered already");
  ServiceId id = ServiceId(attached.size());
  attached.push_back({std::move(name), nullptr, true});
  book.addOwner(id);
  if (!adapter)
    return id;
  try {
    adapter->saveKnobs();
  } catch (...) {
    attached.pop_back(); // as if it had never come
    throw;
  }
  attached[size_t(id)].adapter = adapter;
  if (inStep() && !inTransition) {
    callAdapter(size_t(id), [&](ConductorAdapter &a) { a.applyHints(policy.pushed(), phase); });
    reportAdapterErrors();
  }
  return id;
}

Conductor::Detached Conductor::Manager::detach(ServiceId service) {
  if (!isRegistered(service))
    return {};
  Detached held;
  held.reservations = book.releaseIf([&](const Reservation &r) { return r.owner == service; });
  held.waiters = slots.dropWaiters(service);
  held.tokens = slots.dropTokens(service);
  if (held.reservations + held.waiters + held.tokens > 0)
    noteAdapterError(size_t(service), "it was detached while it held " + std::to_string(held.reservations) +
                                          " reservations and " + std::to_string(held.tokens) +
                                          " tokens, and waited for " + std::to_string(held.waiters) +
                                          "; they are released");
  if (attached[size_t(service)].adapter)
    callAdapter(size_t(service), [](ConductorAdapter &a) { a.restoreKnobs(); });
  attached[size_t(service)].adapter = nullptr;
  attached[size_t(service)].present = false;
  for (LinkDirection direction : linkDirections)
    promoteWaiters(direction);
  if (!inTransition)
    reportAdapterErrors();
  return held;
}

void Conductor::Manager::noteAdapterError(size_t index, std::string_view what) {
  ++counters.adapterErrors;
  adapterErrors +=
      (adapterErrors.empty() ? "" : "; ") + ("service \"" + attached[index].name + "\": ") + std::string(what);
}

void Conductor::Manager::reportAdapterErrors() {
  if (adapterErrors.empty())
    return;
  std::string message = "conductor, " + std::string(nameOf(phase)) + ": " + std::exchange(adapterErrors, {});
  if (hooks.warn)
    hooks.warn(message);
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

static bool canFollow(StepPhase old, StepPhase next) {
  if (next == StepPhase::Idle)
    return old == StepPhase::StepEnd;
  if (old == StepPhase::Idle)
    return next == StepPhase::StepBegin;
  auto phase = [](StepPhase part) { return Phase(int(part) - int(StepPhase::StepBegin)); };
  return runtime::canFollow(phase(old), phase(next));
}

void Conductor::Manager::requireOutsideTransition() const {
  if (inTransition)
    throw Error(ErrorCode::PhaseOrder,
                "conductor: an adapter asked for a phase or block in the middle of a transition");
}

void Conductor::Manager::requireCanFollow(StepPhase next) const {
  if (canFollow(phase, next))
    return;
  std::string allowed;
  for (size_t i = 0; i < stepPhaseCount; ++i)
    if (canFollow(phase, StepPhase(i)))
      allowed += (allowed.empty() ? "" : " or ") + std::string(nameOf(StepPhase(i)));
  throw Error(ErrorCode::PhaseOrder, "conductor: " + std::string(nameOf(next)) + " cannot follow " +
                                         std::string(nameOf(phase)) + "; " + allowed + " can");
}

namespace {
/// True as long as it lives.
class Flag {
public:
  explicit Flag(bool &flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }

private:
  bool &flag_;
};
} // namespace

// The order of docs/specs/conductor.md, by its numbers; (1) is the caller's requireCanFollow.
void Conductor::Manager::transition(StepPhase next, double secondsInOld) {
  {
    Flag flag(inTransition);
    StepPhase old = phase;
    forEachAdapter([&](ConductorAdapter &adapter) { adapter.onPhaseEnd(old); }); // (2)
    book.releaseIf([&](const Reservation &r) {                                   // (3)
      return (r.scope == BudgetScope::Phase && r.phase == old) ||
             (r.scope == BudgetScope::Step && (next == StepPhase::StepEnd || next == StepPhase::Idle));
    });
    counters.seconds[size_t(old)] += secondsInOld; // (4)
    phase = next;
    block.clear();
    if (next == StepPhase::StepBegin) // (5)
      resetStep();
    counters.entered[size_t(next)] = true;
    order.enterPhase(next);
    evaluate();                                                                     // (6)
    pushHints();                                                                    // (7)
    forEachAdapter([&](ConductorAdapter &adapter) { adapter.onPhaseBegin(next); }); // (8)
  }
  reportAdapterErrors();
  if (next == StepPhase::StepEnd && step % config.telemetryIntervalSteps == 0) // (9)
    writeRecord();
}

void Conductor::Manager::resetStep() {
  policy.reset(baseHints());
  setSlotLimits();
  counters = StepCounters();
  counters.pressureMax = pressure();
  for (LinkDirection direction : linkDirections)
    notePeak(direction);
}

/// The configured limits; with `slots: auto`, at most what hides the transfers
/// of a step at the measured bandwidths.
RuntimeLimitHints Conductor::Manager::baseHints() const {
  RuntimeLimitHints base = configuredHints(limits);
  base.blockPrecision = nextPrecision;
  if (config.slots == ConductorConfig::Slots::Fixed)
    return base;
  auto bytesPerSecond = [&](LinkDirection direction) { return *gigabytesPerSecond[size_t(direction)] * 1e9; };
  if (gigabytesPerSecond[size_t(LinkDirection::H2d)]) {
    double speed = bytesPerSecond(LinkDirection::H2d);
    if (std::optional<int> needed = order.slotsToHide(LinkDirection::H2d, speed))
      base.maxInflightH2d = std::min(base.maxInflightH2d, *needed);
    if (std::optional<int> needed = order.windowToHide(speed))
      base.prefetchWindowCap = std::min(base.prefetchWindowCap, *needed);
  }
  if (gigabytesPerSecond[size_t(LinkDirection::D2h)])
    if (std::optional<int> needed = order.slotsToHide(LinkDirection::D2h, bytesPerSecond(LinkDirection::D2h)))
      base.maxInflightD2h = std::min(base.maxInflightD2h, *needed);
  return base;
}

void Conductor::Manager::evaluate() {
  double expected = double(std::max(book.allocated(), order.nextPeakBytes())) / double(book.hardCap());
  bool wasSuppressed = policy.pushed().suppressSpeculative;
  bool isFull = slots.isFull(LinkDirection::H2d) && slots.isFull(LinkDirection::D2h);
  policy.evaluate(phase, expected, isFull);
  setSlotLimits();
  if (policy.pushed().suppressSpeculative && !wasSuppressed) {
    counters.suppressedAt = nameOf(phase);
    if (!block.empty())
      counters.suppressedAt += "/" + block;
  }
}

void Conductor::Manager::pushHints() {
  forEachAdapter([&](ConductorAdapter &adapter) { adapter.applyHints(policy.pushed(), phase); });
  // STEP_BEGIN may have raised a limit.
  for (LinkDirection direction : linkDirections)
    promoteWaiters(direction);
}

void Conductor::Manager::enterBlock(std::string_view name) {
  requireOutsideTransition();
  if (!inStep())
    throw Error(ErrorCode::PhaseOrder, "conductor: block \"" + std::string(name) + "\" between steps; begin one first");
  block = name;
  order.enterBlock(phase, name);
  if (config.evaluateOn != ConductorConfig::EvaluateOn::Block)
    return;
  int h2d = policy.pushed().maxInflightH2d, d2h = policy.pushed().maxInflightD2h;
  int window = policy.pushed().prefetchWindowCap;
  bool suppress = policy.pushed().suppressSpeculative;
  evaluate();
  const RuntimeLimitHints &now = policy.pushed();
  if (now.maxInflightH2d == h2d && now.maxInflightD2h == d2h && now.prefetchWindowCap == window &&
      now.suppressSpeculative == suppress)
    return; // nothing that a service does not know
  {
    Flag flag(inTransition);
    pushHints();
  }
  reportAdapterErrors();
}

std::vector<uint64_t> Conductor::Manager::abort(double secondsInOld) {
  requireOutsideTransition();
  if (!inStep())
    throw Error(ErrorCode::PhaseOrder, "conductor: there is no step to abort");
  std::vector<uint64_t> waiters = slots.abortWaiters();
  {
    Flag flag(inTransition);
    forEachAdapter([&](ConductorAdapter &adapter) { adapter.onPhaseEnd(phase); });
    if (hooks.drain)
      hooks.drain();
    slots.dropTokens(std::nullopt);
    book.releaseIf([](const Reservation &r) { return r.scope != BudgetScope::Manual && r.mode != BudgetMode::Floor; });
    counters.seconds[size_t(phase)] += secondsInOld;
    counters.aborted = true;
    phase = StepPhase::Idle;
    block.clear();
    order.enterPhase(phase);
    forEachAdapter([&](ConductorAdapter &adapter) { adapter.onPhaseBegin(phase); });
  }
  reportAdapterErrors();
  writeRecord();
  return waiters;
}

void Conductor::Manager::writeRecord() {
  if (config.telemetry.enabled && hooks.record)
    hooks.record(record());
}

//===----------------------------------------------------------------------===//
// Budget
//===----------------------------------------------------------------------===//

void Conductor::Manager::measure(int64_t bytes) {
  book.measure(bytes);
  counters.pressureMax = std::max(counters.pressureMax, pressure());
}

/// The rules that need no arithmetic.
DenyReason Conductor::Manager::refusal(const ReservationRequest &request) const {
  if (book.isInvalid(request))
    return DenyReason::InvalidRequest;
  if (!isRegistered(request.owner))
    return DenyReason::UnknownOwner;
  if (request.scope != BudgetScope::Manual && !inStep())
    return DenyReason::NotInStep;
  return DenyReason::None;
}

Grant Conductor::Manager::reserve(const ReservationRequest &request) {
  Grant answer;
  answer.reason = refusal(request);
  if (answer.reason != DenyReason::None)
    answer.status = GrantStatus::Denied;
  else
    answer = book.reserve(request, phase, policy.pushed().suppressSpeculative);
  counters.ceilingExceeded += book.takeCeilingExceeded();
  switch (answer.status) {
  case GrantStatus::Granted:
    ++counters.grants;
    break;
  case GrantStatus::Partial:
    ++counters.partials;
    break;
  case GrantStatus::Denied:
    ++counters.denies;
    ++counters.reasons[size_t(answer.reason)];
    break;
  }
  if (answer.reclaimed.empty())
    return answer;
  for (auto [id, bytes] : answer.reclaimed) {
    counters.reclaimedBytes += bytes;
    // Told after all is decided; a callback may have released the next one.
    if (const Reservation *loser = book.find(id); loser && attached[size_t(loser->owner)].adapter)
      callAdapter(size_t(loser->owner),
                  [id = id, bytes = bytes](ConductorAdapter &adapter) { adapter.onReclaimed(id, bytes); });
  }
  if (!inTransition)
    reportAdapterErrors();
  return answer;
}

//===----------------------------------------------------------------------===//
// Slots of the link
//===----------------------------------------------------------------------===//

void Conductor::Manager::setSlotLimits() {
  slots.setLimit(LinkDirection::H2d, std::min(limits.h2dSlots, policy.pushed().maxInflightH2d));
  slots.setLimit(LinkDirection::D2h, std::min(limits.d2hSlots, policy.pushed().maxInflightD2h));
}

void Conductor::Manager::notePeak(LinkDirection direction) {
  int &peak = counters.peak[size_t(direction)];
  peak = std::max(peak, slots.inflight(direction));
}

DenyReason Conductor::Manager::refusal(const TokenRequest &request) const {
  if (!isRegistered(request.owner))
    return DenyReason::UnknownOwner;
  if (slots.isKnown(request.id))
    return DenyReason::InvalidRequest;
  if (request.priority <= Priority::Speculative && policy.pushed().suppressSpeculative)
    return DenyReason::PhaseRuleSuppressedSpeculative;
  if (slots.isFull(request.direction))
    return request.direction == LinkDirection::H2d ? DenyReason::H2dSlotsExhausted : DenyReason::D2hSlotsExhausted;
  return DenyReason::None;
}

TokenAnswer Conductor::Manager::acquire(const TokenRequest &request, bool mayWait) {
  DenyReason reason = refusal(request);
  if (reason == DenyReason::None) {
    slots.hold(request);
    notePeak(request.direction);
    return {TokenStatus::Acquired, DenyReason::None};
  }
  bool isExhausted = reason == DenyReason::H2dSlotsExhausted || reason == DenyReason::D2hSlotsExhausted;
  if (mayWait && isExhausted && request.priority >= Priority::Required) {
    slots.wait(request);
    return {TokenStatus::Waiting, reason};
  }
  ++counters.tokenDenials[size_t(request.direction)];
  ++counters.reasons[size_t(reason)];
  return {TokenStatus::Denied, reason};
}

TokenAnswer Conductor::Manager::timeOut(uint64_t token) {
  slots.timeOut(token);
  ++counters.slotOverruns;
  for (LinkDirection direction : linkDirections)
    notePeak(direction);
  return {TokenStatus::Acquired, DenyReason::None};
}

void Conductor::Manager::complete(uint64_t token, int64_t bytes, double milliseconds) {
  if (bytes < 0 || !(milliseconds >= 0) || !std::isfinite(milliseconds))
    throw Error(ErrorCode::InvalidArgument, "token " + std::to_string(token) + ": a transfer of " +
                                                std::to_string(bytes) + " bytes in " + std::to_string(milliseconds) +
                                                " ms is none");
  std::optional<double> &average = gigabytesPerSecond[size_t(slots.markCompleted(token))];
  double sample = double(bytes) / (milliseconds * 1e6);
  if (bytes == 0 || !std::isfinite(sample))
    return; // too short to tell
  average = average ? 0.8 * *average + 0.2 * sample : sample;
}

std::optional<uint64_t> Conductor::Manager::releaseToken(uint64_t token, std::optional<ServiceId> owner) {
  if (ServiceId holder = slots.ownerOf(token); owner && holder != *owner)
    throw Error(ErrorCode::TokenInvalid,
                "token " + std::to_string(token) + " is held by \"" + attached[size_t(holder)].name + "\", not by " +
                    (size_t(*owner) < attached.size() ? "\"" + attached[size_t(*owner)].name + "\"" : "a known owner"));
  return promoteWaiters(slots.release(token));
}

std::optional<uint64_t> Conductor::Manager::promoteWaiters(LinkDirection direction) {
  std::optional<uint64_t> first;
  while (std::optional<uint64_t> token = slots.promote(direction)) {
    first = first ? first : token;
    notePeak(direction);
    if (hooks.granted)
      hooks.granted(*token);
  }
  return first;
}

} // namespace segue::inline runtime
