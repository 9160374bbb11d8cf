//===- PlannedActor.h - tensors leave by a plan -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `mode: planned` of Activation Stagehand as an actor: PlannedResidency in the
// place of the watermarks, with the same telemetry. Without a plan nothing
// leaves.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_PLANNEDACTOR_H
#define SEGUE_LIB_SERVICES_ACTORS_PLANNEDACTOR_H

#include "BlockClock.h"
#include "PlannedMeter.h"
#include "ServiceContext.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Plan/PlannedResidency.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include "segue/runtime/Telemetry/TelemetryConfig.h"
#include <nlohmann/json.hpp>
#include <optional>

namespace segue::inline runtime {

class PlannedActor final : public ForwardEvents {
public:
  /// Makes the actor. `section` is the config's as it was written: a plan has no use for
  /// some of its keys, and a warning says so.
  PlannedActor(ServiceContext &context, const ActivationStagehandConfig &config, const Json &section);
  ~PlannedActor() override;

  /// Follows a plan from the next step on. Conductor gets the peaks that the plan leaves to
  /// each block, and is asked for the page-locked memory: throws ConfigError where
  /// pinned_cap_mb is less. A plan that wants more than the one in force, and does not get
  /// it, is not followed. `addresses` holds the places of its blocks; without them they lie
  /// anywhere.
  void follow(const StepProfile &profile, const ResidencyPlan &plan, std::optional<AddressPlan> addresses);
  /// Sends all that lives on the host away from the device; the next step is the plan's first.
  void beginAgain();
  PlannedResidency &planned() { return planned_; }
  /// Returns, once, the times that blocks really take, where they differ from the plan's
  /// profile by more than a tenth.
  std::optional<MeasuredStep> takeMeasured();
  /// Returns the record of the last step that ended or was aborted.
  Json record() const { return lastRecord_; }

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const event::BlockEnd &end);
  void on(const event::Save &save);
  void on(const event::Restore &restore);

  void on(const event::StepAbort &);
  void on(const auto &other) { forward(other); }

private:
  bool reservePinned(uint64_t bytes);
  void tellDisplaced(const AddressFigures &figures);
  void write(bool aborted);

  ServiceContext &context_;
  PlannedResidency planned_;
  PlannedMeter meter_;
  BlockClock clock_;
  /// The profile that the plan in force was made of.
  StepProfile profile_;
  /// This service as Conductor knows it, and what is reserved there.
  ServiceId service_{};
  std::vector<uint64_t> reservations_;
  uint64_t reservedBytes_ = 0;
  /// Blocks that had to lie elsewhere since the plan was made, until the last record.
  uint64_t recordedDisplaced_ = 0;
  std::optional<JsonlWriter> telemetry_;
  Json lastRecord_;
};

/// Returns the blocks of a step in their order, as Conductor wants to know them: what is on
/// the device at the worst moment of each, by the most bytes after each event, and the
/// transfers of those that are away.
std::vector<PlannedBlock> plannedBlocks(const StepProfile &profile, std::span<const uint64_t> peaks,
                                        std::span<const Departure> away);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_PLANNEDACTOR_H
