//===- ConductorRig.h - a Conductor with its surroundings -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORRIG_H
#define SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORRIG_H

#include "Services/ConductorInspection.h"
#include "segue/runtime/Services/Conductor.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace segue {

inline constexpr int64_t MiB = 1048576;
/// The caps of the tables of docs/specs/conductor.md.
inline constexpr const char *workedCaps = R"({"vram_soft_cap_mb": 22000, "vram_hard_cap_mb": 23500})";

/// A Conductor that is on, with two owners, whose hooks are noted down.
class ConductorRig {
public:
  explicit ConductorRig(const std::string &config = workedCaps) {
    Json object = Json::parse(config);
    if (!object.contains("enabled"))
      object["enabled"] = true;
    ConfigReader reader(object, "memory.stagehand.conductor_config", ConfigReader::Files::Ignore);
    ConductorConfig read = ConductorConfig::read(reader);
    Conductor::Hooks hooks;
    hooks.warn = [this](const std::string &text) { warnings.push_back(text); };
    hooks.record = [this](const Json &record) { records.push_back(record); };
    hooks.granted = [this](uint64_t token) { granted.push_back(token); };
    hooks.drain = [this] {
      if (drain)
        drain();
    };
    conductor = Conductor(read, read.limits(std::nullopt), std::move(hooks));
    a = conductor.registerOwner("a");
    b = conductor.registerOwner("b");
  }
  ConductorRig(const ConductorRig &) = delete;

  void measure(double mib) { conductor.measure(int64_t(mib * double(MiB))); }
  Grant reserve(BudgetMode mode, int64_t mib, ReservationRequest rest = {}) {
    rest.id = ++lastId;
    if (rest.owner == ServiceId())
      rest.owner = a;
    rest.mode = mode;
    rest.bytes = mib * MiB;
    return conductor.reserve(rest);
  }
  TokenAnswer acquire(uint64_t id, LinkDirection direction, Priority priority = Priority::Required) {
    return conductor.tryAcquire({.id = id, .owner = a, .direction = direction, .priority = priority});
  }
  TokenAnswer wait(uint64_t id, LinkDirection direction, Priority priority = Priority::Required) {
    return conductor.acquireOrWait({.id = id, .owner = a, .direction = direction, .priority = priority});
  }
  /// To the phase by the shortest way from IDLE.
  void go(StepPhase phase, int64_t step = 0) {
    static constexpr StepPhase way[] = {StepPhase::Forward, StepPhase::Backward, StepPhase::Optimizer,
                                        StepPhase::StepEnd};
    conductor.beginStep(step);
    for (StepPhase next : way)
      if (next <= phase)
        conductor.enterPhase(next);
  }
  int window() const { return conductor.hints().prefetchWindowCap; }
  bool suppressed() const { return conductor.hints().suppressSpeculative; }

  std::vector<std::string> warnings;
  std::vector<Json> records;
  std::vector<uint64_t> granted;
  std::function<void()> drain;
  Conductor conductor;
  ServiceId a{}, b{};
  uint64_t lastId = 0;
};

/// Expects what a request got.
inline void expectGrant(const Grant &grant, GrantStatus status, int64_t mib, DenyReason reason = DenyReason::None) {
  EXPECT_EQ(nameOf(grant.status), nameOf(status));
  EXPECT_EQ(grant.bytes, mib * MiB);
  EXPECT_EQ(nameOf(grant.reason), nameOf(reason));
}
inline void expectDenied(const Grant &grant, DenyReason reason) { expectGrant(grant, GrantStatus::Denied, 0, reason); }
inline void expectToken(const TokenAnswer &answer, TokenStatus status, DenyReason reason = DenyReason::None) {
  EXPECT_EQ(nameOf(answer.status), nameOf(status));
  EXPECT_EQ(nameOf(answer.reason), nameOf(reason));
}

} // namespace segue

#endif // SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORRIG_H
