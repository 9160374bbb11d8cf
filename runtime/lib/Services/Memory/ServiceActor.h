//===- ServiceActor.h - who does what a policy decides ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An actor stands between the events of a run and one policy: it tells the
// policy what happens, carries out its decisions on the device, and tells it how
// they went. MemoryServices forwards each event to its actors in their order,
// within a step only. To add one: derive from this, and add a line to
// MemoryServices::create.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_SERVICEACTOR_H
#define SEGUE_LIB_SERVICES_MEMORY_SERVICEACTOR_H

#include "ConductorGate.h"
#include "EventLog.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/Conductor.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

/// Sections of the config.
inline constexpr const char *conductorSection = "memory.stagehand.conductor_config";
inline constexpr const char *activationSection = "memory.stagehand.activation_stagehand";

/// What the actors of one device share. Outlives them.
struct ServiceContext {
  DeviceRef device;
  /// Off where it is not enabled.
  Conductor conductor;
  /// Takes Conductor's tokens; see ConductorGate::As.
  ConductorGate gate{conductor};
  /// `log` may be empty: nobody wants to hear.
  std::function<void(const std::string &)> warn, log;
  std::filesystem::path recordEvents;
  /// For the checks of slabs.
  std::vector<ProgramWeight> program;
  NameAliases aliases;
  /// Where the device is a twin, on which a step is rehearsed.
  std::optional<TwinFigures> twin;

  TransferEngine &engine() { return device->transfer(); }
  uint64_t usedBytes() const { return device->memory().liveBytes(Space::DeviceDram); }
  /// For reservations and tokens of Conductor.
  uint64_t newId() { return gate.newId(); }
};

class ServiceActor {
public:
  virtual ~ServiceActor() = default;

  /// Conductor has entered the phase. At StepEnd, it is still to be entered.
  virtual void onPhase(Phase phase) {}
  virtual void onSubmit(const Program &program, std::span<const Tensor> inputs) {}
  virtual void onBlockBegin(const Program &program, std::string_view block) {}
  virtual void onBlockEnd(const Program &program) {}
  virtual void onSave(const Program &program, uint32_t output, Tensor &saved) {}
  virtual void onRestore(const Program &program, uint32_t input, Tensor &saved) {}
  virtual void onFree(const Program &program, uint32_t input) {}
  virtual void onOutput(const Program &program, uint32_t output, Tensor &value) {}
  virtual void onAccumulate(Tensor &sum, Tensor &gradient) {}
  virtual void onAccumulated(Tensor &sum) {}
  /// The first actor that says true brings the input. Also within evaluations.
  virtual bool defersInput(const Program &program, uint32_t input, const Tensor &value) { return false; }
  /// To the actor that deferred it.
  virtual void onBlockInput(const Program &program, uint32_t input, Tensor &value) {}
  virtual bool watchesResults(const Program &program) { return false; }
  virtual void onBlockResult(const Program &program, uint32_t result, const Tensor &value) {}
  virtual void onStatistics(const Program &program, uint32_t output, const Tensor &statistics) {}

  virtual void beginStep(int64_t step) {}
  /// Tells the policy of copies that have ended. Before every event.
  virtual void poll() {}
  /// `wanted` bytes of device_dram are missing. Called from within allocations.
  virtual void makeRoom(uint64_t wanted) {}
  /// The queues are drained: releases everything.
  virtual void abortStep() {}
  /// Programs run outside of steps: blocks begin and end, and nothing else.
  virtual void beginEvaluation() {}
  virtual void endEvaluation() {}
  virtual void abortEvaluation() {}
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_SERVICEACTOR_H
