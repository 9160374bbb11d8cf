//===- Conductor.cpp - who may use how much, and when ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of Conductor.h: nothing where it is off, the manager's work where
// it is on, and an event in the log where one is kept.
//
//===----------------------------------------------------------------------===//

#include "ConductorManager.h"
#include "../../JsonFields.h"
#include "segue/runtime/Mebibytes.h"
#include <climits>

namespace segue::inline runtime {

static std::string idText(uint64_t id) { return std::to_string(id); }

//===----------------------------------------------------------------------===//
// The event log
//===----------------------------------------------------------------------===//

void Conductor::Manager::trace(Json event, Json answer) {
  event["expect"] = std::move(answer);
  if (traceDepth > 0) {
    nested.push_back(std::move(event));
    return;
  }
  std::vector<Json> after = std::exchange(nested, {});
  if (event["op"] == "abort_step") {
    // While the link drains, transfers complete and give back their tokens.
    // The abort frees them in a replay, which has no link to wait for.
    std::erase_if(after, [](const Json &inner) { return inner["op"] == "release_token"; });
    for (Json &inner : after)
      hooks.trace(std::exchange(inner, Json()));
    after.clear();
  }
  hooks.trace(event);
  for (const Json &inner : after)
    hooks.trace(inner);
}

/// The answer to an event without one.
static Json noAnswer(bool) { return Json::object(); }

//===----------------------------------------------------------------------===//
// Construction and services
//===----------------------------------------------------------------------===//

Conductor::Conductor() = default;

Conductor::Conductor(const ConductorConfig &config, const ConductorLimits &limits, Hooks hooks) {
  if (config.enabled)
    manager_ = std::make_unique<Manager>(config, limits, std::move(hooks));
}

Conductor::~Conductor() = default;
Conductor::Conductor(Conductor &&) noexcept = default;
Conductor &Conductor::operator=(Conductor &&) noexcept = default;

ServiceId Conductor::registerOwner(std::string name) {
  if (!manager_)
    return ServiceId();
  return manager_->traced([&] { return jsonOf({{"op", "register"}, {"owner", name}}); },
                          [&] { return manager_->addService(name, nullptr); },
                          [](ServiceId) { return Json::object(); });
}

ServiceId Conductor::attach(ConductorAdapter &adapter) {
  if (!manager_)
    return ServiceId();
  std::string name = adapter.owner();
  return manager_->traced([&] { return jsonOf({{"op", "register"}, {"owner", name}}); },
                          [&] { return manager_->addService(name, &adapter); },
                          [](ServiceId) { return Json::object(); });
}

Conductor::Detached Conductor::detach(ServiceId service) {
  if (!manager_ || !manager_->isRegistered(service))
    return {};
  return manager_->traced(
      [&] { return jsonOf({{"op", "detach"}, {"owner", manager_->attached[size_t(service)].name}}); },
      [&] { return manager_->detach(service); },
      [](const Detached &held) {
        return jsonOf({{"reservations", held.reservations}, {"tokens", held.tokens}, {"waiters", held.waiters}});
      });
}

std::optional<ServiceId> Conductor::service(std::string_view name) const {
  return manager_ ? manager_->find(name) : std::nullopt;
}

//===----------------------------------------------------------------------===//
// The course of a step
//===----------------------------------------------------------------------===//

void Conductor::beginStep(int64_t step) {
  if (!manager_)
    return;
  Manager &m = *manager_;
  m.traced([&] { return jsonOf({{"op", "begin_step"}, {"step", step}}); },
           [&] {
             m.requireOutsideTransition();
             if (m.phase == StepPhase::StepBegin && m.step == step)
               return true;
             m.requireCanFollow(StepPhase::StepBegin);
             m.step = step;
             m.transition(StepPhase::StepBegin, 0);
             return true;
           },
           [&](bool) { return jsonOf({{"hints", toJson(m.policy.pushed())}}); });
}

bool Conductor::enterPhase(StepPhase phase, double secondsInOld) {
  if (!manager_)
    return false;
  Manager &m = *manager_;
  return m.traced([&] { return jsonOf({{"op", "phase"}, {"phase", nameOf(phase)}, {"duration_s", secondsInOld}}); },
                  [&] {
                    m.requireOutsideTransition();
                    if (m.phase == phase)
                      return false;
                    m.requireCanFollow(phase);
                    if (phase == StepPhase::StepBegin)
                      ++m.step;
                    m.transition(phase, secondsInOld);
                    return true;
                  },
                  [&](bool entered) {
                    Json answer = jsonOf({{"hints", toJson(m.policy.pushed())}});
                    if (!entered)
                      answer["noop"] = true;
                    return answer;
                  });
}

void Conductor::enterBlock(std::string_view block) {
  if (!manager_)
    return;
  Manager &m = *manager_;
  m.traced([&] { return jsonOf({{"op", "block"}, {"block", block}}); },
           [&] {
             m.enterBlock(block);
             return true;
           },
           [&](bool) { return jsonOf({{"hints", toJson(m.policy.pushed())}}); });
}

void Conductor::endStep(double secondsInOld) {
  if (!manager_)
    return;
  Manager &m = *manager_;
  m.traced([&] { return jsonOf({{"op", "end_step"}, {"duration_s", secondsInOld}}); },
           [&] {
             m.requireOutsideTransition();
             if (m.phase != StepPhase::StepEnd) {
               m.requireCanFollow(StepPhase::StepEnd);
               m.transition(StepPhase::StepEnd, secondsInOld);
             }
             m.transition(StepPhase::Idle, 0);
             return true;
           },
           [&](bool) {
             Json record = m.record();
             // The snapshots are of services, which a replay does not have.
             record.erase("runtime_snapshots");
             record.erase("adapter_errors");
             return record;
           });
}

std::vector<uint64_t> Conductor::abortStep(double secondsInOld) {
  if (!manager_)
    return {};
  Manager &m = *manager_;
  return m.traced([&] { return jsonOf({{"op", "abort_step"}, {"duration_s", secondsInOld}}); },
                  [&] { return m.abort(secondsInOld); },
                  [](const std::vector<uint64_t> &waiters) {
                    Json ids = Json::array();
                    for (uint64_t id : waiters)
                      ids.push_back(idText(id));
                    return jsonOf({{"aborted_waiters", ids}});
                  });
}

StepPhase Conductor::phase() const { return manager_ ? manager_->phase : StepPhase::Idle; }

const RuntimeLimitHints &Conductor::hints() const {
  static const RuntimeLimitHints unlimited{INT_MAX, INT_MAX, INT_MAX, false, nullptr};
  return manager_ ? manager_->policy.pushed() : unlimited;
}

static Json planEvent(const std::vector<PlannedBlock> &plan) {
  Json blocks = Json::array();
  for (const PlannedBlock &block : plan)
    blocks.push_back(jsonOf({{"phase", nameOf(block.phase)},
                             {"block", block.block},
                             {"peak_mb", toMiB(block.peakBytes)},
                             {"compute_s", block.computeSeconds},
                             {"h2d_mb", toMiB(block.h2dBytes)},
                             {"d2h_mb", toMiB(block.d2hBytes)}}));
  return jsonOf({{"op", "plan"}, {"blocks", std::move(blocks)}});
}

void Conductor::setPlan(std::vector<PlannedBlock> plan) {
  if (!manager_)
    return;
  Manager &m = *manager_;
  m.traced([&] { return planEvent(plan); },
           [&] {
             if (m.inStep())
               throw Error(ErrorCode::PhaseOrder,
                           "conductor: a plan is set between steps; this is " + std::string(nameOf(m.phase)));
             m.order = PlannedOrder(std::move(plan));
             return true;
           },
           noAnswer);
}

void Conductor::setBlockPrecision(BlockPrecisionMap map) {
  if (!manager_)
    return;
  Manager &m = *manager_;
  m.traced([&] { return jsonOf({{"op", "precision"}, {"blocks", map}}); },
           [&] {
             m.nextPrecision = std::make_shared<const BlockPrecisionMap>(std::move(map));
             return true;
           },
           noAnswer);
}

//===----------------------------------------------------------------------===//
// Budget
//===----------------------------------------------------------------------===//

void Conductor::measure(int64_t vramAllocatedBytes) {
  if (!manager_)
    return;
  manager_->traced([&] { return jsonOf({{"op", "measure"}, {"vram_allocated_mb", toMiB(vramAllocatedBytes)}}); },
                   [&] {
                     manager_->measure(vramAllocatedBytes);
                     return true;
                   },
                   noAnswer);
}

Grant Conductor::reserve(const ReservationRequest &request) {
  if (!manager_)
    return {GrantStatus::Granted, request.bytes, DenyReason::None, {}};
  Manager &m = *manager_;
  auto describe = [&] {
    Json event = jsonOf({{"op", "reserve"},
                         {"id", idText(request.id)},
                         {"owner", m.isRegistered(request.owner) ? m.attached[size_t(request.owner)].name : ""},
                         {"mb", toMiB(request.bytes)},
                         {"mode", nameOf(request.mode)},
                         {"resource", nameOf(request.resource)},
                         {"priority", nameOf(request.priority)},
                         {"scope", nameOf(request.scope)}});
    if (request.mode == BudgetMode::Soft)
      event["min_mb"] = toMiB(request.minBytes);
    return event;
  };
  return m.traced(describe, [&] { return m.reserve(request); }, [](const Grant &grant) { return toJson(grant); });
}

void Conductor::commit(uint64_t id, int64_t bytes) {
  if (!manager_)
    return;
  manager_->traced([&] { return jsonOf({{"op", "commit"}, {"id", idText(id)}, {"mb", toMiB(bytes)}}); },
                   [&] {
                     manager_->book.commit(id, bytes);
                     return true;
                   },
                   noAnswer);
}

void Conductor::uncommit(uint64_t id, int64_t bytes) {
  if (!manager_)
    return;
  manager_->traced([&] { return jsonOf({{"op", "uncommit"}, {"id", idText(id)}, {"mb", toMiB(bytes)}}); },
                   [&] {
                     manager_->book.uncommit(id, bytes);
                     return true;
                   },
                   noAnswer);
}

void Conductor::release(uint64_t id) {
  if (!manager_)
    return;
  manager_->traced([&] { return jsonOf({{"op", "release"}, {"id", idText(id)}}); },
                   [&] {
                     manager_->book.release(id);
                     return true;
                   },
                   noAnswer);
}

int64_t Conductor::usedBytes(BudgetResource resource) const { return manager_ ? manager_->book.used(resource) : 0; }

std::vector<ReservationHolder> Conductor::holders() const {
  std::vector<ReservationHolder> result;
  if (manager_)
    for (const Reservation &r : manager_->book.reservations())
      result.push_back({manager_->attached[size_t(r.owner)].name, r.id, r.mode, r.resource, r.granted, r.committed});
  return result;
}

std::string Conductor::holdersTable() const {
  std::string table;
  for (const ReservationHolder &holder : holders())
    table += "  " + holder.owner + ", reservation " + idText(holder.id) + ", " + std::string(nameOf(holder.mode)) +
             " " + std::string(nameOf(holder.resource)) + ": " + std::to_string(holder.grantedBytes) +
             " bytes granted, " + std::to_string(holder.committedBytes) + " committed\n";
  return table;
}

//===----------------------------------------------------------------------===//
// Slots of the link
//===----------------------------------------------------------------------===//

static Json tokenEvent(const char *op, const TokenRequest &request, std::string_view owner) {
  return jsonOf({{"op", op},
                 {"id", idText(request.id)},
                 {"owner", owner},
                 {"dir", nameOf(request.direction)},
                 {"priority", nameOf(request.priority)},
                 {"bytes", request.bytes}});
}

TokenAnswer Conductor::tryAcquire(const TokenRequest &request) {
  if (!manager_)
    return {};
  Manager &m = *manager_;
  return m.traced(
      [&] {
        return tokenEvent("acquire", request,
                          m.isRegistered(request.owner) ? m.attached[size_t(request.owner)].name : "");
      },
      [&] { return m.acquire(request, /*mayWait=*/false); }, [](const TokenAnswer &answer) { return toJson(answer); });
}

TokenAnswer Conductor::acquireOrWait(const TokenRequest &request) {
  if (!manager_)
    return {};
  Manager &m = *manager_;
  return m.traced(
      [&] {
        return tokenEvent("acquire_or_wait", request,
                          m.isRegistered(request.owner) ? m.attached[size_t(request.owner)].name : "");
      },
      [&] { return m.acquire(request, /*mayWait=*/true); }, [](const TokenAnswer &answer) { return toJson(answer); });
}

TokenAnswer Conductor::timeOut(uint64_t token) {
  if (!manager_)
    return {};
  return manager_->traced([&] { return jsonOf({{"op", "timeout"}, {"id", idText(token)}}); },
                          [&] { return manager_->timeOut(token); },
                          [](const TokenAnswer &answer) { return toJson(answer); });
}

void Conductor::cancelWait(uint64_t token) {
  if (!manager_)
    return;
  manager_->traced([&] { return jsonOf({{"op", "cancel"}, {"id", idText(token)}}); },
                   [&] {
                     manager_->slots.cancelWait(token);
                     return true;
                   },
                   noAnswer);
}

void Conductor::complete(uint64_t token, int64_t bytes, double milliseconds) {
  if (!manager_)
    return;
  manager_->traced(
      [&] { return jsonOf({{"op", "complete"}, {"id", idText(token)}, {"bytes", bytes}, {"duration_ms", milliseconds}}); },
      [&] {
        manager_->complete(token, bytes, milliseconds);
        return true;
      },
      noAnswer);
}

static Json waiterAnswer(const std::optional<uint64_t> &waiter) {
  return jsonOf({{"waiter", waiter ? Json(idText(*waiter)) : Json()}});
}

std::optional<uint64_t> Conductor::releaseToken(uint64_t token, ServiceId owner) {
  if (!manager_)
    return std::nullopt;
  Manager &m = *manager_;
  return m.traced(
      [&] {
        return jsonOf({{"op", "release_token"},
                       {"id", idText(token)},
                       {"owner", m.isRegistered(owner) ? m.attached[size_t(owner)].name : ""}});
      },
      [&] { return m.releaseToken(token, owner); }, waiterAnswer);
}

std::optional<uint64_t> Conductor::releaseToken(uint64_t token) {
  if (!manager_)
    return std::nullopt;
  return manager_->traced([&] { return jsonOf({{"op", "release_token"}, {"id", idText(token)}}); },
                          [&] { return manager_->releaseToken(token, std::nullopt); }, waiterAnswer);
}

int Conductor::inflight(LinkDirection direction) const { return manager_ ? manager_->slots.inflight(direction) : 0; }

std::optional<double> Conductor::bandwidth(LinkDirection direction) const {
  return manager_ ? manager_->gigabytesPerSecond[size_t(direction)] : std::nullopt;
}

//===----------------------------------------------------------------------===//
// Records
//===----------------------------------------------------------------------===//

Json Conductor::record() const { return manager_ ? manager_->record() : Json(); }

} // namespace segue::inline runtime
