//===- ConductorTypes.h - the words of Conductor ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The requests of services to Conductor, and its answers, are plain values. Each
// enumeration has its names as logs and telemetry spell them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_CONDUCTORTYPES_H
#define SEGUE_RUNTIME_SERVICES_CONDUCTORTYPES_H

#include "segue/runtime/EnumNames.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Program/Events.h"
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// The number of a registered service, within the Conductor that gave it.
enum class ServiceId : uint32_t {};

/// The place of a run in its step: Phase of Events.h, or Idle, the time between steps.
enum class StepPhase : uint8_t { Idle, StepBegin, Forward, Backward, Optimizer, StepEnd };
inline StepPhase stepPhase(Phase phase) { return StepPhase(uint8_t(phase) + 1); }

enum class BudgetResource : uint8_t { Vram, Pinned };
enum class BudgetMode : uint8_t { Hard, Soft, Burst, Floor, Ceiling };
/// The priorities in ascending order: a later one is stronger.
enum class Priority : uint8_t { Background, Speculative, Required, Critical };
/// The end of a reservation's life: its release, the end of the phase in which it was
/// granted, or STEP_END.
enum class BudgetScope : uint8_t { Manual, Phase, Step };
enum class LinkDirection : uint8_t { H2d, D2h };
enum class GrantStatus : uint8_t { Granted, Partial, Denied };
enum class TokenStatus : uint8_t { Acquired, Denied, Waiting };

enum class DenyReason : uint8_t {
  None,
  InvalidRequest,
  UnknownOwner,
  NotInStep,
  PhaseRuleSuppressedSpeculative,
  OwnerCeilingExceeded,
  VramSoftCapExceeded,
  VramHardCapExceeded,
  PinnedCapExceeded,
  H2dSlotsExhausted,
  D2hSlotsExhausted,
};
inline constexpr size_t denyReasonCount = 11;

template <> std::span<const std::string_view> namesOf<StepPhase>();
template <> std::span<const std::string_view> namesOf<BudgetResource>();
template <> std::span<const std::string_view> namesOf<BudgetMode>();
template <> std::span<const std::string_view> namesOf<Priority>();
template <> std::span<const std::string_view> namesOf<BudgetScope>();
template <> std::span<const std::string_view> namesOf<LinkDirection>();
template <> std::span<const std::string_view> namesOf<GrantStatus>();
template <> std::span<const std::string_view> namesOf<TokenStatus>();
template <> std::span<const std::string_view> namesOf<DenyReason>();

struct ReservationRequest {
  /// A number chosen by the caller, unique among live reservations.
  uint64_t id = 0;
  ServiceId owner{};
  /// The bytes wanted; for a ceiling, the bound.
  int64_t bytes = 0;
  BudgetMode mode = BudgetMode::Hard;
  BudgetResource resource = BudgetResource::Vram;
  Priority priority = Priority::Required;
  BudgetScope scope = BudgetScope::Manual;
  /// For SOFT, the least bytes that are of any use.
  int64_t minBytes = 1;
};

struct Grant {
  GrantStatus status = GrantStatus::Granted;
  int64_t bytes = 0;
  DenyReason reason = DenyReason::None;
  /// The reservations that others lost for it, with their bytes, in the order taken.
  std::vector<std::pair<uint64_t, int64_t>> reclaimed;
};

struct TokenRequest {
  /// A number chosen by the caller, unique among tokens held and waited for.
  uint64_t id = 0;
  ServiceId owner{};
  LinkDirection direction = LinkDirection::H2d;
  Priority priority = Priority::Required;
  /// The bytes of the transfer, for the record of an event log.
  int64_t bytes = 0;
};

struct TokenAnswer {
  TokenStatus status = TokenStatus::Acquired;
  DenyReason reason = DenyReason::None;
};

/// A live reservation, for the table of an out-of-memory error.
struct ReservationHolder {
  std::string owner;
  uint64_t id = 0;
  BudgetMode mode = BudgetMode::Hard;
  BudgetResource resource = BudgetResource::Vram;
  int64_t grantedBytes = 0, committedBytes = 0;
};

/// The stored form of each block: "h.0" → "int8".
using BlockPrecisionMap = std::map<std::string, std::string, std::less<>>;

/// The limits that every service is told at a phase boundary.
struct RuntimeLimitHints {
  int maxInflightH2d = 0, maxInflightD2h = 0;
  int prefetchWindowCap = 0;
  bool suppressSpeculative = false;
  /// The form of each block; null if nothing is prescribed.
  std::shared_ptr<const BlockPrecisionMap> blockPrecision;

  bool operator==(const RuntimeLimitHints &) const = default;
};

/// One block of the compiled order of a step.
struct PlannedBlock {
  StepPhase phase = StepPhase::Forward;
  std::string block;
  /// Device memory allocated at the worst moment within the block.
  int64_t peakBytes = 0;
  double computeSeconds = 0;
  /// Bytes that the link must bring before the block, and take away after it.
  int64_t h2dBytes = 0, d2hBytes = 0;
};

/// The priority of loading the block that lies `distance` blocks ahead in the
/// compiled order. The next one is needed for certain: were it speculative,
/// suppression would turn every block of the backward pass into a full stall.
inline Priority priorityOfLoad(int64_t distance) { return distance <= 1 ? Priority::Required : Priority::Speculative; }

// These write values as the answers of a replay and the events of a log spell them.
Json toJson(const RuntimeLimitHints &hints);
Json toJson(const Grant &grant);
Json toJson(const TokenAnswer &answer);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CONDUCTORTYPES_H
