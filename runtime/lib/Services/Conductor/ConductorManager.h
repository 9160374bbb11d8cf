//===- ConductorManager.h - Conductor where it is on ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Puts the parts together: services, phases, budget, slots, policy and the
// counters of the step. Conductor.h says what each call does.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_CONDUCTORMANAGER_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_CONDUCTORMANAGER_H

#include "BudgetBook.h"
#include "HintPolicy.h"
#include "PlannedOrder.h"
#include "TransferSlots.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/Conductor.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr size_t stepPhaseCount = 6;
static constexpr LinkDirection linkDirections[] = {LinkDirection::H2d, LinkDirection::D2h};

/// Counts what a step did; zero at STEP_BEGIN.
struct StepCounters {
  bool entered[stepPhaseCount] = {};
  double seconds[stepPhaseCount] = {};
  uint64_t grants = 0, partials = 0, denies = 0;
  /// The numbers of denials of reservations and tokens, by reason.
  uint64_t reasons[denyReasonCount] = {};
  int peak[2] = {0, 0};
  uint64_t tokenDenials[2] = {0, 0};
  uint64_t slotOverruns = 0, ceilingExceeded = 0, adapterErrors = 0;
  int64_t reclaimedBytes = 0;
  double pressureMax = 0;
  /// The place where speculative work was suppressed first, "BACKWARD/h.3"; empty if it was not.
  std::string suppressedAt;
  bool aborted = false;
};

struct Conductor::Manager {
  Manager(const ConductorConfig &config, const ConductorLimits &limits, Hooks hooks);
  /// Restores the knobs of every service, also after an error.
  ~Manager();

  //===--------------------------------------------------------------------===//
  // Services
  //===--------------------------------------------------------------------===//

  ServiceId addService(std::string name, ConductorAdapter *adapter);
  Detached detach(ServiceId service);
  std::optional<ServiceId> find(std::string_view name) const;
  bool isRegistered(ServiceId service) const {
    return size_t(service) < attached.size() && attached[size_t(service)].present;
  }

  /// Calls every adapter in order. One that throws is counted, and the others are called
  /// all the same.
  template <typename Call> void forEachAdapter(Call call) {
    // The loop goes by index, since a callback may attach or detach.
    for (size_t i = 0; i < attached.size(); ++i)
      if (attached[i].adapter)
        callAdapter(i, call);
  }
  template <typename Call> void callAdapter(size_t index, Call call) {
    try {
      call(*attached[index].adapter);
    } catch (const std::exception &error) {
      noteAdapterError(index, error.what());
    } catch (...) {
      noteAdapterError(index, "an unknown exception");
    }
  }
  void noteAdapterError(size_t index, std::string_view what);
  /// Warns of all errors since the last call in one sentence.
  void reportAdapterErrors();

  //===--------------------------------------------------------------------===//
  // Steps
  //===--------------------------------------------------------------------===//

  void requireOutsideTransition() const;
  void requireCanFollow(StepPhase next) const;
  void transition(StepPhase next, double secondsInOld);
  void enterBlock(std::string_view name);
  std::vector<uint64_t> abort(double secondsInOld);
  void resetStep();
  void evaluate();
  void pushHints();
  void writeRecord();
  RuntimeLimitHints baseHints() const;
  double pressure() const { return double(book.allocated()) / double(book.hardCap()); }
  bool inStep() const { return phase != StepPhase::Idle; }

  //===--------------------------------------------------------------------===//
  // Budget and slots
  //===--------------------------------------------------------------------===//

  void measure(int64_t bytes);
  Grant reserve(const ReservationRequest &request);
  DenyReason refusal(const ReservationRequest &request) const;
  TokenAnswer acquire(const TokenRequest &request, bool mayWait);
  DenyReason refusal(const TokenRequest &request) const;
  TokenAnswer timeOut(uint64_t token);
  void complete(uint64_t token, int64_t bytes, double milliseconds);
  std::optional<uint64_t> releaseToken(uint64_t token, std::optional<ServiceId> owner);
  void setSlotLimits();
  /// Gives free slots to those who wait; returns the first of them.
  std::optional<uint64_t> promoteWaiters(LinkDirection direction);
  void notePeak(LinkDirection direction);

  //===--------------------------------------------------------------------===//
  // Records
  //===--------------------------------------------------------------------===//

  Json record();
  /// Hands an event to the log. The events of a callback in the middle of a call come after
  /// the call, whose decision they did not change.
  void trace(Json event, Json answer);
  /// Does `call`. If a log is kept, writes the event that `describe` makes and the answer
  /// that `answer` makes of the result, or of the error.
  template <typename Describe, typename Call, typename Answer>
  auto traced(Describe describe, Call call, Answer answer) {
    if (!hooks.trace)
      return call();
    Json event = describe();
    ++traceDepth;
    try {
      auto result = call();
      --traceDepth;
      trace(std::move(event), answer(result));
      return result;
    } catch (const Error &error) {
      --traceDepth;
      trace(std::move(event), Json{{"error", errorCodeName(error.code())}});
      throw;
    }
  }

  struct Attached {
    std::string name;
    ConductorAdapter *adapter = nullptr;
    bool present = true;
  };

  ConductorConfig config;
  ConductorLimits limits;
  Hooks hooks;

  std::vector<Attached> attached; // by ServiceId
  std::string adapterErrors;      // not reported yet
  std::vector<Json> nested;       // events of callbacks, not traced yet
  int traceDepth = 0;
  bool inTransition = false;

  StepPhase phase = StepPhase::Idle;
  int64_t step = -1;
  std::string block; // the present one; empty before the first of a phase

  BudgetBook book;
  TransferSlots slots;
  HintPolicy policy;
  PlannedOrder order;
  std::shared_ptr<const BlockPrecisionMap> nextPrecision;
  std::optional<double> gigabytesPerSecond[2];
  StepCounters counters;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_CONDUCTORMANAGER_H
