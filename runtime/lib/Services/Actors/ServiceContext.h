//===- ServiceContext.h - what the actors of one device share ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An actor stands between the events of a run and one policy: it tells the
// policy what happens, carries out its decisions on the device, and tells it how
// they went. It is an EventSink, to which MemoryServices hands each event, within a
// step only, in the order of the actors. To add one: derive from EventSink, and add a
// line to MemoryServices::create.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_SERVICECONTEXT_H
#define SEGUE_LIB_SERVICES_ACTORS_SERVICECONTEXT_H

#include "ConductorGate.h"
#include "../../Replay/EventLog.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Services/Conductor.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

/// Sections of the config.
inline constexpr const char *conductorSection = "memory.stagehand.conductor_config";
inline constexpr const char *activationSection = "memory.stagehand.activation_stagehand";

/// A ServiceContext holds what the actors of one device share, and outlives them.
struct ServiceContext {
  DeviceRef device;
  /// Conductor, which is off if it is not enabled.
  Conductor conductor;
  /// The gate that takes Conductor's tokens; see ConductorGate::As.
  ConductorGate gate{conductor};
  /// Functions that get sentences. `log` may be empty: nobody wants to hear.
  std::function<void(const std::string &)> warn, log;
  std::filesystem::path recordEvents;
  /// The parameters of the programs, for the checks of slabs.
  std::vector<ProgramWeight> program;
  NameAliases aliases;
  /// Given if the device is a twin, on which a step is rehearsed.
  std::optional<TwinFigures> twin;

  TransferEngine &engine() { return device->transfer(); }
  uint64_t usedBytes() const { return device->memory().liveBytes(Space::DeviceDram); }
  /// Returns a new number for reservations and tokens of Conductor.
  uint64_t newId() { return gate.newId(); }
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_SERVICECONTEXT_H
