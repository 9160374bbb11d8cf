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
// MemoryServices, or several of which none has Conductor, where whoever hands them
// events gives each saved tensor to one of them alone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_MEMORYSERVICES_H
#define SEGUE_RUNTIME_SERVICES_MEMORYSERVICES_H

#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Plan/MeasuredStep.h"
#include "segue/runtime/Plan/PlannedResidency.h"
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

/// The facts that a rehearsal of a step by watermarks, on a twin of the device, shows of
/// the steps to come: the slabs that the pool lacks, and, by number of the save, whether a
/// tensor costs less to compute again than to move.
struct RehearsedStep {
  std::vector<HostBufferBook::Growth> growth;
  std::vector<bool> toRecompute;
};

/// Figures of a twin that its own clock and memory do not tell.
struct TwinFigures {
  /// The seconds of a step in which nothing leaves.
  double computeSeconds = 0;
  LinkSpeed link;
  /// The bytes of device_dram that the step may take.
  uint64_t budgetBytes = 0;
};

/// Says when gradients and optimizer states may be away without a plan.
enum class StatesLeave : uint8_t {
  Never,
  /// Gradients and states stay as long as a step fits with them on the device: see MemoryServices::letStatesLeave.
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
  /// Makes Selective Precision; with null, a config that asks for it is refused.
  MakePrecision makePrecision = nullptr;
  /// A sink that gets every event before the services do; not owned, may be null. A tensor
  /// that it puts in the place of a saved one is its own to bring back.
  EventSink *next = nullptr;
  /// Lends parameters that live on the host to what is computed again, where the config has
  /// no Weight Stagehand; not owned, may be null.
  WeightLender *lender = nullptr;
  /// The folder for the log of each policy, `conductor.json` and so on, in the format of
  /// `segue-run replay`; empty for none. It must exist.
  std::filesystem::path recordEvents;
  /// Opens the slab of squareq_slab_path; if it is empty, no config may name one.
  SlabOpener openSlab;
  /// The parameters of the programs, for the checks of a slab, and names that files may give them.
  std::vector<ProgramWeight> program;
  NameAliases aliases;
  /// Functions that get warnings (by default they go to stderr), and the sentences that a
  /// service says every so many steps (by default nobody gets them).
  std::function<void(const std::string &)> warn, log;
  /// Given if the device is a twin.
  std::optional<TwinFigures> twin;
};

class MemoryServices final : public EventSink {
public:
  /// Makes the services that the config enables; returns null if it enables none. Sets the
  /// budget of device_dram to Conductor's hard cap, and takes the pinned pool. Throws
  /// ConfigError for a config that does not fit the device, DeviceOom for a pool that does
  /// not; nothing is left of it then.
  static std::unique_ptr<MemoryServices> create(DeviceRef device, const Config &config,
                                                MemoryServicesOptions options = {});
  /// Ends copies, gives everything back and restores the old budget.
  ~MemoryServices() override;

  /// Sets the number of the step that the next STEP_BEGIN begins; numbers count up from 1
  /// by themselves.
  void setStep(int64_t step);
  /// Returns true if the config asks for `mode: planned`: activations leave by a plan for
  /// the step, and stay until there is one.
  bool wantsPlan() const;
  /// What follows the plans; null where none is wanted.
  PlannedResidency *planned();
  /// Null unless gradients and optimizer states may be away now: by a plan, which moves
  /// parameters as well where Weight Stagehand is off, or under pressure.
  Residency *residency();
  StatesLeave statesLeave() const;
  /// Makes statesLeave Always from now on. Called between two steps, where it is not Never.
  /// The owner of the states gives them homes on the host; `gradients` get theirs as they
  /// are made.
  void letStatesLeave(std::span<const GradientOutput> gradients);
  /// Asks Conductor for leave to hold so much page-locked memory, for the home of a state,
  /// as long as this lives. Returns false if it is denied.
  bool reserveHome(uint64_t bytes);
  /// Returns true if Conductor has a hard cap and no plan keeps it: whether a step can keep
  /// it at all must then be found out before the first.
  bool checksBudget() const;
  /// Returns true if saved tensors leave.
  bool spills() const;
  /// Tells Conductor, where there is no plan, what to expect of each block in a step of
  /// this profile; `others` bytes of the device are not in it.
  void expect(const StepProfile &profile, int64_t others);
  /// Limits the next steps to `bytes` of device_dram, which are known to be enough; without
  /// a number the limit ends. Called between two steps. An allocation beyond it waits for
  /// what leaves; where nothing does, the step goes on with all of the budget, and a
  /// warning says so.
  void holdTo(std::optional<uint64_t> bytes);
  /// Sets watermarks, in bytes of device_dram, in the place of those of the config from the
  /// next event on, also in the midst of a step. Does nothing where no watermarks decide.
  void setWatermarks(uint64_t high, uint64_t low);
  /// Returns true, where watermarks decide, until prepare() is called.
  bool wantsRehearsal() const;
  /// Returns the config for the services of a twin, on which the first step is rehearsed:
  /// its watermarks are lower by the `others` bytes in use, which the twin does not have.
  /// Pressure stays on once it is on, as the speed of copies is not known to the last of
  /// them; and host memory is no limit.
  Config rehearsal(uint64_t others) const;
  /// Returns what the last step on the twin has shown.
  RehearsedStep rehearsed() const;
  /// Makes ready for a next step like this one. Called between two steps.
  void prepare(const RehearsedStep &step);
  /// Makes what lives on the host leave the device, and the plan in force, if there is one,
  /// begin again with its first step. Called between two steps.
  void beginAgain();
  /// Returns the blocks of the device that beginAgain() gives back. Blocks for copies that are under way. Called between
  /// two steps.
  std::vector<HeldBlock> blocksThatLeave();
  /// Makes the next steps go by this plan, with their memory at its addresses.
  void follow(const StepProfile &profile, const ResidencyPlan &plan, std::optional<AddressPlan> addresses);
  /// Returns false once the device has other addresses than those of the plan that is followed, as another session
  /// of the device has made one since.
  bool hasItsAddresses() const;
  /// Returns, once, what the blocks of the last steps took if that differs from the profile
  /// of the plan by more than a tenth of a part: the next plan is to be made with it.
  /// Called between two steps.
  std::optional<MeasuredStep> takeMeasured();
  /// Returns null if Weight Stagehand is off. The owner of the parameters adds the programs
  /// and starts it; events reach it through here alone.
  WeightStreamer *weights();
  const WeightStreamer *weights() const;
  /// Returns null if Selective Precision is off. For the session, which starts it.
  PrecisionActor *precision() const;
  /// Return the units of Selective Precision, with their forms and what is kept as it is;
  /// the last line of its telemetry; and its state, for a checkpoint. They are null, or
  /// empty, if it is off.
  Json precisionReport() const;
  Json precisionRecord() const;
  std::string precisionState() const;
  /// Enclose programs that run outside of steps, apart from phases: their streamed
  /// parameters come with their blocks. Within a step these do nothing.
  void beginEvaluation();
  void endEvaluation();
  /// Notes that a program of an evaluation has failed, between steps or within one: no
  /// parameter is in use any more.
  void abortEvaluation() noexcept;
  /// Ends a step that cannot be finished: ends copies, releases every record, token and
  /// reservation, writes the records of the step with `aborted`. Does nothing between
  /// steps. STEP_BEGIN in the midst of a step does the same.
  void abortStep() noexcept;

  /// Waits until the device has come to the end of the last step, and writes the telemetry
  /// that waits for the times of its phases. Called between steps.
  void finishRecords();

  /// Return the records of the last step that ended or was aborted, as the telemetry files
  /// got them; null for a service that is off. That of Conductor has the times of its step,
  /// and waits for its end.
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
