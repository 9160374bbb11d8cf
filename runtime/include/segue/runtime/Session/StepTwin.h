//===- StepTwin.h - a session in virtual time -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The twin of a session on `sim:virtual`: the same programs through the same
// executor, allocator and transfer engine, without bytes and in virtual time. It
// says what a step needs, and certifies a plan by playing it.
//
//   StepTwin twin(virtualTwin(*device), modules, options);
//   ResidencyPlanner planner(twin.record());
//   StepTwin::Played played = twin.play(planner.profile(), planner.plan(budget));
//   played.peakBytes <= budget
//
// Steps that no session makes, such as those of a plain loop, have a twin as well: whoever
// knows what they do plays them (TwinSteps).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_STEPTWIN_H
#define SEGUE_RUNTIME_SESSION_STEPTWIN_H

#include "segue/runtime/Plan/AllocationTrace.h"
#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Session/Session.h"
#include <functional>
#include <memory>
#include <optional>

namespace segue::inline runtime {

/// Returns Device::twin. Throws Unsupported for a device that has none.
std::string virtualTwin(const Device &device);
/// Returns the twin of the device that Device::open makes of `spec`. The device is not
/// opened if its driver can tell the twin without, and no file of a disk is made. For `cpu`
/// it is the twin of a cpu above a disk with room for everything. Throws what Device::open
/// throws, too.
std::string virtualTwin(std::string_view spec);

/// Returns the spec with another capacity of its device_dram, such as "512MiB".
std::string withDram(std::string_view spec, std::string_view capacity);

/// Returns inputs without values: those that the modules do not give each other by rule 3
/// of Wiring.h, as far as shapes tell.
TensorMap batchWithoutValues(const DeviceRef &device, std::span<const Module> modules, std::span<const Wire> wires);

/// The batches of a step that a twin plays: how many, and which modules run each.
struct TwinBatches {
  /// So many micro-batches of the session's own modules.
  TwinBatches(size_t microBatches = 1) : sizes(microBatches, 0) {}

  /// The modules for batches of other extents, each as Session::addSizes takes them.
  std::vector<std::vector<SessionModule>> otherSizes;
  /// The modules that run each micro-batch: 0 stands for the session's own, n for otherSizes[n - 1].
  std::vector<size_t> sizes;
};

/// Batches without values, and the programs that they run, which are ready as long as this is there.
struct BatchesToPlay {
  std::vector<TensorMap> batches;
  std::vector<Executor> programs;
};

/// Gives a twin of the session the modules for other extents, makes the programs of all that its batches run ready, and
/// returns the batches.
BatchesToPlay addTwinBatches(Session &session, const TwinBatches &batches, std::span<const Wire> wires);

/// The most bytes that are live at once in a space during a phase.
struct PhasePeak {
  Phase phase = Phase::StepBegin;
  Space space = Space::DeviceDram;
  uint64_t bytes = 0;
  /// The holders that have bytes at the peak, the greatest first.
  std::vector<MemoryHolder> holders;
};

/// The ring of Weight Stagehand in a session that is planned.
struct TwinWeights {
  WeightStagehandConfig config;
  /// The slots of the ring; 0 for as many as fit under the high watermark.
  int64_t slots = 0;
  /// True if it keeps them whatever the watermarks, as beside a plan.
  bool isKept = false;
};

/// Makes everybody who keeps memory of device_dram for later give it back.
void dropCaches(Device &device);
/// Gives the system the memory of a device, which others keep, behind what is free there now. Waits for what is queued.
void giveFreeToSystem(Device &device) noexcept;

/// Returns the bytes of device_dram in which a session without services trains, in virtual
/// time on a device such as `spec`: up to the highest address that the allocator gives out,
/// whose choices do not depend on the capacity.
uint64_t bytesWithoutServices(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                              size_t microBatches = 1);

/// The programs of a module that a training step may run.
inline constexpr std::string_view stepPrograms[] = {"forward", Module::updatingForward, "backward", "grad_norm",
                                                    "optimizer"};

/// Makes the programs of a training step ready, so that their constants are on the device, and stay as long as who asks keeps
/// what is returned: a file lets go of devices, once there are many.
std::vector<Executor> preparePrograms(const DeviceRef &device, std::span<const Module> modules);

/// Returns the bytes of device_dram that the device `spec` takes for programs of a training step beside what its twin
/// knows of (Device::bytesForPrograms), as far as the modules have kernels for it. Opens such a device alone.
uint64_t bytesForPrograms(std::string_view spec, const std::vector<SessionModule> &modules);

/// What a twin plays: steps that all do the same, on the device of the twin, and tell its sink.
class TwinSteps {
public:
  virtual ~TwinSteps() = default;
  /// One step, from STEP_BEGIN to STEP_END.
  virtual void step() = 0;
  /// Gives up what the last step has left to its caller, and to the next step.
  virtual void forgetResults() {}
  /// Returns true if a step does what the one before has left to it, so that the first does less than others.
  virtual bool leavesWork() const { return false; }
};

class StepTwin {
public:
  /// The place of parameters, gradients and states of optimizers that no ring brings: on
  /// the host, from where a plan brings them, or on the device for good.
  enum class Homes : uint8_t { Host, Device };

  /// Makes a twin on `spec`, a device of `sim:virtual`. Parameters have no values; batches
  /// consist of the tensors that no module gives another by position; event sinks of
  /// `options` are not told. With `weights`, parameters of blocks come through a ring that
  /// is the twin's own. Throws what Session throws, and InvalidArgument for another device.
  StepTwin(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options, TwinBatches batches = {},
           std::optional<TwinWeights> weights = std::nullopt, Homes homes = Homes::Host);
  /// Makes the steps of a twin. `events` is the sink that they tell; it outlives them.
  using MakeSteps = std::function<std::unique_ptr<TwinSteps>(const DeviceRef &device, EventSink &events)>;
  /// The twin of steps that are no session's. Throws what `make` throws, and InvalidArgument for another device.
  StepTwin(std::string_view spec, const MakeSteps &make);
  ~StepTwin();
  StepTwin(StepTwin &&) noexcept;

  /// Returns the twin's device. The capacity of its device_dram is not that of the spec: a
  /// step in which nothing leaves may need more than the device has.
  const DeviceRef &device() const;
  /// Returns the spec of the device as it was given.
  const std::string &spec() const;
  /// Only of a session's twin.
  const Session &session() const;
  /// Returns the streamer, or null without Weight Stagehand.
  const WeightStreamer *weights() const;
  /// Returns the lender of parameters that the ring brings, for programs of a sink that
  /// run() is given; null without Weight Stagehand.
  WeightLender *lender();

  /// Plays one step in which nothing leaves, and measures what making its saved tensors
  /// again takes. Gaps whose tensor somebody else holds, so that leaving would free
  /// nothing, are left out.
  StepProfile record();
  /// Returns the most bytes of a disk that were live at once while record() let everything leave. A run needs them to
  /// plan its steps, whichever plan it then follows.
  uint64_t recordedDiskBytes() const;

  LinkSpeed link() const;
  /// Of a disk below the host's memory.
  std::optional<LinkSpeed> diskLink() const;
  /// Who brings what lives on the host: a sink that run() is given hands its
  /// events on to this one.
  EventSink &events();
  /// Plays one step before any plan, told to `sink`, or to events() alone if it is null.
  /// Returns the seconds until all queues are empty.
  double run(EventSink *sink = nullptr);

  struct Played {
    /// The most bytes of device_dram that are live at once.
    uint64_t peakBytes = 0;
    /// The peak of each phase, in the order of the step, in each space that does not stay empty.
    std::vector<PhasePeak> peaks;
    /// Seconds from STEP_BEGIN until all queues are empty.
    double seconds = 0;
    /// The holders of device_dram at the peak; most bytes first.
    std::vector<MemoryHolder> holders;
    /// The bytes that went over the link in the step, to the device and from it.
    uint64_t inBytes = 0, outBytes = 0;
    /// Read from a disk below the host's memory, and written to it.
    uint64_t diskInBytes = 0, diskOutBytes = 0;
    /// Saved tensors that left, were fetched and were computed again.
    uint64_t left = 0, fetchedAhead = 0, fetchedLate = 0, unpinned = 0, remade = 0;
    /// The gaps in which leaving freed nothing.
    std::vector<uint32_t> heldElsewhere;
    /// The allocations of all steps from the first on, in which nothing is on the device yet,
    /// until they repeat. The figures above are those of the second step.
    StepAllocations allocations;
  };
  /// The most steps after the second that are played until they repeat.
  static constexpr int mostSteps = 4;
  /// Plays steps by the plan, as if the results of each were kept until the next has ended.
  /// With no `moreSteps`, Played::allocations does not repeat.
  Played play(const StepProfile &profile, const ResidencyPlan &plan, int moreSteps = mostSteps);

  /// Returns the bytes of device_dram that the session holds between two steps, beside
  /// the ring: parameters and states of optimizers, also those that the twin has on the host,
  /// and nothing that is kept to be used again.
  uint64_t restBytes(bool withStates = true);

private:
  explicit StepTwin(std::string_view spec);
  void begin(const StepProfile &profile, const ResidencyPlan &plan);

  class WithWeights;
  struct State;
  HeldPointer<std::unique_ptr<State>, "StepTwin"> state_;
};

/// The free memory of a device that a plan finds when it begins.
struct FreeRoom {
  /// The free ranges, ascending and disjoint.
  std::vector<AddressRange> ranges;
  /// The bytes that are taken by what the plan does not move.
  uint64_t liveBytes = 0;

  bool operator==(const FreeRoom &) const = default;
};

struct CertifiedPlan {
  const ResidencyPlan *plan = nullptr;
  StepTwin::Played played;
  /// The addresses of the plan; nothing if its steps do not repeat.
  std::optional<AddressPlan> addresses;
  /// The smallest budget with which the plan runs: it covers the addresses of the plan, and
  /// what lies beside and between them.
  uint64_t bytes = 0;
};

/// A Search says how far to look where no plan keeps to a budget: for the least that one keeps to, or no further.
enum class Search : int8_t { Least, Once };

/// Returns a plan for `bytes` that the twin was seen to play within them, with an address
/// for each allocation. A step that is played and packed may take more than was reckoned:
/// then less is planned for, down to the least; if not even that keeps to them,
/// CertifiedPlan::bytes says what it takes, which Search::Least brings down.
/// `room` is that of the device; null stands for a device on which nothing lies but what the twin has there.
CertifiedPlan certify(StepTwin &twin, ResidencyPlanner &planner, uint64_t bytes, const FreeRoom *room = nullptr,
                      Search search = Search::Least);

/// The same for steps whose blocks may lie anywhere: what counts is the most that is live at
/// once, and there are no addresses.
CertifiedPlan certifyPeak(StepTwin &twin, const ResidencyPlanner &planner, uint64_t bytes);

/// Plays one plan, and packs its addresses.
CertifiedPlan certified(StepTwin &twin, const ResidencyPlanner &planner, const ResidencyPlan &plan, uint64_t bytes,
                        const FreeRoom *room = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_STEPTWIN_H
