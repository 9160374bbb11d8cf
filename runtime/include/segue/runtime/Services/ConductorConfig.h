//===- ConductorConfig.h - memory.stagehand.conductor_config ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The keys of Conductor, as written, and the limits that they mean on a
// device. Reading needs no device, so that a config file is checked whole
// before one is opened; the caps that default to a share of the device, and
// the rule that they fit it, wait for `limits`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_CONDUCTORCONFIG_H
#define SEGUE_RUNTIME_SERVICES_CONDUCTORCONFIG_H

#include "segue/runtime/Telemetry/TelemetryConfig.h"

namespace segue::inline runtime {

/// The config in the numbers that decisions are made with.
struct ConductorLimits {
  int64_t softCapBytes, hardCapBytes;
  /// The cap of pinned memory, which is out of reach if none is given: memory is then tracked and never denied.
  int64_t pinnedCapBytes;
  int h2dSlots, d2hSlots;
  int prefetchWindow;
};

struct ConductorConfig {
  /// The moments at which the policy is evaluated: at phases only, as v0 did, or at every
  /// block as well.
  enum class EvaluateOn { Phase, Block };
  /// Fixed numbers of slots, or numbers that follow the measured bandwidth between steps,
  /// up to the configured ones.
  enum class Slots { Fixed, Auto };

  bool enabled = false;
  std::optional<double> vramSoftCapMiB, vramHardCapMiB, pinnedCapMiB;
  Slots slots = Slots::Fixed;
  int64_t h2dSlots = 2, d2hSlots = 2;
  std::optional<int64_t> prefetchWindowCap;
  double backwardPressureThreshold = 0.80;
  int64_t contentionChecks = 3;
  EvaluateOn evaluateOn = EvaluateOn::Block;
  bool reclaimEnabled = true;
  double slotWaitTimeoutMs = 30000;
  TelemetryConfig telemetry;
  int64_t telemetryIntervalSteps = 10;
  bool debugEventTrace = false;

  /// Reads the whole section. Throws ConfigError.
  static ConductorConfig read(ConfigReader &reader);

  /// Returns the limits on a device of `capacityBytes`. A soft cap that is not given is 90
  /// % of the device, or the hard cap where that is lower; without a capacity (a replay), a
  /// cap that is not given never binds. `weightWindow` is Weight Stagehand's own window
  /// where it runs. Throws ConfigError for a soft cap above the hard cap and a hard cap
  /// above the capacity.
  ConductorLimits limits(std::optional<uint64_t> capacityBytes, std::optional<int64_t> weightWindow = {}) const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CONDUCTORCONFIG_H
