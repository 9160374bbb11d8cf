//===- MemoryServices.h - the memory policies at work -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Conductor and the stagehands decide and do nothing; this does what they say.
// It is the sink of the executor's and the session's events, the gate of the
// device's transfer engine, and one who makes room before the device is out of
// memory. Behind it, each service has an actor (a new one joins the list that
// MemoryServices.cpp makes); what all share, Conductor first, is in the
// ServiceContext that each of them gets (lib/Services/Actors/ServiceContext.h).
//
//   std::unique_ptr<MemoryServices> services = MemoryServices::create(device, Config::load("segue.json"));
//   SessionOptions options{.events = services.get()};      // null: nothing is asked
//
// A service that is not enabled is not constructed, and where none is there are
// no MemoryServices. Values never depend on them: what leaves comes back to the
// bit, or the step fails.
//
// Ends of copies are noticed at the next event and told to the policies then,
// so that everything happens on the thread that submits. One device has one
// MemoryServices.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_MEMORYSERVICES_H
#define SEGUE_RUNTIME_SERVICES_MEMORYSERVICES_H

#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Plan/MeasuredStep.h"
#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Services/HostBufferBook.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace segue::inline runtime {

class PrecisionActor;
struct ServiceContext;
/// Makes the actor of Selective Precision: see PrecisionService.h.
using MakePrecision = std::unique_ptr<PrecisionActor> (*)(ServiceContext &context, const Config &config);

/// A step by watermarks on a twin of the device shows this of those to come:
/// slabs that the pool lacks, and, by number of the save, what costs less to
/// compute again than to move.
struct RehearsedStep {
  std::vector<HostBufferBook::Growth> growth;
  std::vector<bool> toRecompute;
};

/// Describes a twin, whose own clock and memory do not tell these.
struct TwinFigures {
  /// How long a step takes in which nothing leaves.
  double computeSeconds = 0;
  LinkSpeed link;
  /// Bytes of device_dram that the step may take.
  uint64_t budgetBytes = 0;
};

/// Whether gradients and optimizer states may be away without a plan.
enum class StatesLeave : uint8_t {
  Never,
  /// They stay as long as a step fits so: see MemoryServices::letStatesLeave.
  IfNeeded,
  Always
};

/// An output of a backward program that is the gradient of a parameter, which programs of
/// the optimizer read by block.
struct GradientOutput {
  Program program;
  uint32_t output = 0;
  std::string parameter;
};

struct MemoryServicesOptions {
  /// Null: a config that asks for Selective Precision is refused.
  MakePrecision makePrecision = nullptr;
  /// Gets every event before the services do; not owned, may be null. What it
  /// puts in the place of a saved tensor is its own to bring back.
  EventSink *next = nullptr;
  /// Where the config has no Weight Stagehand: who lends parameters that live on the
  /// host to what is computed again; not owned, may be null.
  WeightLender *lender = nullptr;
  /// A folder for the log of each policy, `conductor.json` and so on, in the
  /// format of `segue-run replay`; empty: none. It must exist.
  std::filesystem::path recordEvents;
  /// Opens the slab of squareq_slab_path; empty: no config may name one.
  SlabOpener openSlab;
  /// The parameters of the programs, for the checks of a slab, and names that files may give them.
  std::vector<ProgramWeight> program;
  NameAliases aliases;
  /// Get warnings, by default stderr does; and what a service says every so many
  /// steps, by default nobody.
  std::function<void(const std::string &)> warn, log;
  /// The device is a twin.
  std::optional<TwinFigures> twin;
};

class MemoryServices final : public EventSink {
public:
  /// Null if the config enables no service. Sets the budget of device_dram to
  /// Conductor's hard cap, and takes the pinned pool. Throws ConfigError for a
  /// config that does not fit the device, DeviceOom for a pool that does not;
  /// nothing is left of it then.
  static std::unique_ptr<MemoryServices> create(DeviceRef device, const Config &config,
                                                MemoryServicesOptions options = {});
  /// Ends copies, gives everything back and puts the old budget in force.
  ~MemoryServices() override;

  /// The number of the step that the next STEP_BEGIN begins; they count up
  /// from 1 by themselves.
  void setStep(int64_t step);
  /// True where the config asks for `mode: planned`: activations leave by a plan
  /// for the step, and stay until there is one.
  bool wantsPlan() const;
  /// Null unless gradients and optimizer states may be away now: by a plan, which moves
  /// parameters as well where Weight Stagehand is off, or under pressure.
  Residency *residency();
  StatesLeave statesLeave() const;
  /// Between two steps, where statesLeave is not Never: it is Always from now on. Whoever
  /// owns the states gives them homes on the host; `gradients` get theirs as they are made.
  void letStatesLeave(std::span<const GradientOutput> gradients);
  /// Conductor's leave to hold so much page-locked memory, for the home of a state, as
  /// long as this lives.
  bool reserveHome(uint64_t bytes);
  /// True where Conductor has a hard cap and no plan keeps it: whether a step can
  /// at all is to be found out before the first.
  bool checksBudget() const;
  /// True where saved tensors leave.
  bool spills() const;
  /// Without a plan: what Conductor is to expect of each block, in a step of this
  /// profile; `others` bytes of the device are not in it.
  void expect(const StepProfile &profile, int64_t others);
  /// Between two steps: the next ones take at most `bytes` of device_dram, which are
  /// known to do. Who would take more waits for what leaves; where nothing does, the
  /// step goes on with all of the budget, and a warning says so. Nothing: no such limit.
  void holdTo(std::optional<uint64_t> bytes);
  /// Where watermarks decide: these, in bytes of device_dram, in the place of those of the
  /// config from the next event on, also in the midst of a step.
  void setWatermarks(uint64_t high, uint64_t low);
  /// True, where watermarks decide, until prepare().
  bool wantsRehearsal() const;
  /// For the services of a twin, on which the first step is rehearsed: watermarks
  /// without the `others` bytes in use, which the twin has not. Once pressure is
  /// on it stays on, as how fast copies are is not known to the last of them; and
  /// host memory is no limit.
  Config rehearsal(uint64_t others) const;
  /// Returns what the last step on the twin has shown.
  RehearsedStep rehearsed() const;
  /// Between two steps: the next is like this one.
  void prepare(const RehearsedStep &step);
  /// Between two steps: what lives on the host leaves the device, and the plan in
  /// force, if there is one, begins again with its first step.
  void beginAgain();
  /// The next steps go by this plan, their memory at its addresses.
  void follow(const StepProfile &profile, const ResidencyPlan &plan, std::optional<AddressPlan> addresses);
  /// Between two steps: what the blocks of the last ones took, once, where it
  /// differs from the profile of the plan by more than a tenth of a part: the
  /// next plan is to be made with it.
  std::optional<MeasuredStep> takeMeasured();
  /// Null where Weight Stagehand is off. Who owns the parameters adds the programs
  /// and starts it; events reach it through here alone.
  WeightStreamer *weights();
  const WeightStreamer *weights() const;
  /// Null where Selective Precision is off. For the session, which starts it.
  PrecisionActor *precision() const;
  /// The units of Selective Precision, their forms, and what is kept as it is;
  /// the last line of its telemetry; its state, for a checkpoint. Null, or empty,
  /// where it is off.
  Json precisionReport() const;
  Json precisionRecord() const;
  std::string precisionState() const;
  /// Programs run outside of steps, phases apart: parameters of theirs that are
  /// streamed come with their blocks. Within a step nothing happens.
  void beginEvaluation();
  void endEvaluation();
  /// A program of an evaluation has failed, between steps or within one: no
  /// parameter is in use any more.
  void abortEvaluation() noexcept;
  /// A step cannot be finished: ends copies, releases every record, token and
  /// reservation, writes the records of the step with `aborted`. Nothing
  /// happens between steps. STEP_BEGIN in the midst of a step does the same.
  void abortStep() noexcept;

  /// Waits until the device has come to the end of the last step, and writes the
  /// telemetry that waits for the times of its phases. Between steps.
  void finishRecords();

  /// The records of the last step that ended or was aborted: what the telemetry
  /// files got. Null for a service that is off. That of Conductor waits for the
  /// end of its step, whose times it has.
  Json conductorRecord() const;
  Json activationRecord() const;
  Json weightRecord() const;
  Json stateRecord() const;

  void receive(const Event &event) override;

private:
  struct Impl;
  explicit MemoryServices(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_MEMORYSERVICES_H
