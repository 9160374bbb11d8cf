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
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_STEPTWIN_H
#define SEGUE_RUNTIME_SESSION_STEPTWIN_H

#include "segue/runtime/Plan/AllocationTrace.h"
#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "segue/runtime/Session/Session.h"
#include <memory>
#include <optional>

namespace segue::inline runtime {

/// Device::twin. Throws Unsupported for a device that has none.
std::string virtualTwin(const Device &device);
/// The twin of the device that Device::open makes of `spec`. The device is not opened where
/// its driver can say it without, and no file of a disk is made. For `cpu` it is that of a
/// cpu above a disk with room for everything. Throws what Device::open throws, too.
std::string virtualTwin(std::string_view spec);

/// The device `spec` with another capacity of its device_dram, such as "512MiB".
std::string withDram(std::string_view spec, std::string_view capacity);

/// Inputs without values: what the modules do not give each other by rule 3 of
/// Wiring.h, as far as shapes tell.
TensorMap batchWithoutValues(const DeviceRef &device, std::span<const Module> modules, std::span<const Wire> wires);

/// The most bytes live at once in a space during a phase.
struct PhasePeak {
  Phase phase = Phase::StepBegin;
  Space space = Space::DeviceDram;
  uint64_t bytes = 0;
  /// Who held them: those with bytes at the peak, most first.
  std::vector<MemoryHolder> holders;
};

/// Weight Stagehand in a session that is planned.
struct TwinWeights {
  WeightStagehandConfig config;
  /// Slots of the ring; 0: as many as fit under the high watermark.
  int64_t slots = 0;
};

/// Has everybody who keeps memory of device_dram for later give it back.
void dropCaches(Device &device);

/// Bytes of device_dram in which a session without services trains, in virtual time
/// on a device such as `spec`: up to the highest address that the allocator gives
/// out, whose choices do not depend on the capacity.
uint64_t bytesWithoutServices(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                              size_t microBatches = 1);

/// The programs of a training step have their constants on the device.
void preparePrograms(const DeviceRef &device, std::span<const Module> modules);

class StepTwin {
public:
  /// Where parameters, gradients and states of optimizers live that no ring brings:
  /// on the host, from where a plan brings them, or on the device for good.
  enum class Homes : uint8_t { Host, Device };

  /// `spec`: a device of `sim:virtual`. Parameters have no values and batches are
  /// what no module gives another by position; event sinks of `options` are not
  /// told. With `weights`, parameters of blocks come through a ring that is the
  /// twin's own. Throws what Session throws, and InvalidArgument for another device.
  StepTwin(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options, size_t microBatches = 1,
           std::optional<TwinWeights> weights = std::nullopt, Homes homes = Homes::Host);
  ~StepTwin();

  /// The capacity of its device_dram is not that of the spec: a step in which
  /// nothing leaves may be what the device has no room for.
  const DeviceRef &device() const;
  /// The spec of the device as it was given.
  const std::string &spec() const;
  const Session &session() const;
  /// Null without Weight Stagehand.
  const WeightStreamer *weights() const;
  /// Lends what the ring brings to programs of a sink that run() is given; null without
  /// Weight Stagehand.
  WeightLender *lender();

  /// One step in which nothing leaves, and what making its saved tensors again takes.
  /// Gaps whose tensor somebody else holds,
  /// so that leaving would free nothing, are left out.
  StepProfile record();

  LinkSpeed link() const;
  /// Who brings what lives on the host: a sink that run() is given hands its
  /// events on to this one.
  EventSink &events();
  /// One step before any plan, told to `sink`; null: to events() alone. Seconds
  /// until all queues are empty.
  double run(EventSink *sink = nullptr);

  struct Played {
    /// The most bytes of device_dram live at once.
    uint64_t peakBytes = 0;
    /// The peak of each phase, in the order of the step, in each space; none for spaces that stay empty.
    std::vector<PhasePeak> peaks;
    /// Seconds from STEP_BEGIN until all queues are empty.
    double seconds = 0;
    /// Who held device_dram at the peak; most bytes first.
    std::vector<MemoryHolder> holders;
    /// Bytes that went over the link in the step, to the device and from it.
    uint64_t inBytes = 0, outBytes = 0;
    /// Saved tensors that left, were fetched and were computed again.
    uint64_t left = 0, fetchedAhead = 0, fetchedLate = 0, unpinned = 0, remade = 0;
    /// Gaps in which leaving freed nothing.
    std::vector<uint32_t> heldElsewhere;
    /// Allocations of all steps from the first on, in which nothing is on the device yet, until
    /// they repeat; the figures above are those of the second.
    StepAllocations allocations;
  };
  /// Steps after the second that are played until they repeat.
  static constexpr int mostSteps = 4;
  /// Steps by the plan. Whoever takes a step is taken to keep what it gave until the
  /// next has ended. With no `moreSteps`, Played::allocations does not repeat.
  Played play(const StepProfile &profile, const ResidencyPlan &plan, int moreSteps = mostSteps);

  /// Returns the bytes of device_dram that the session holds between two steps, beside
  /// the ring: parameters and states of optimizers, also those that the twin has on the host,
  /// and nothing that is kept to be used again.
  uint64_t restBytes(bool withStates = true);

private:
  void begin(const StepProfile &profile, const ResidencyPlan &plan);

  class WithWeights;
  struct State;
  std::unique_ptr<State> state_;
};

/// The free memory of a device that a plan finds when it begins.
struct FreeRoom {
  /// Ascending, disjoint.
  std::vector<AddressRange> ranges;
  /// Taken by what the plan does not move.
  uint64_t liveBytes = 0;
};

struct CertifiedPlan {
  const ResidencyPlan *plan = nullptr;
  StepTwin::Played played;
  /// None where steps do not repeat.
  std::optional<AddressPlan> addresses;
  /// The least budget that does: it covers the addresses of the plan, and what lies
  /// beside and between them.
  uint64_t bytes = 0;
};

/// A plan for `bytes` that the twin was seen to play within them, with an address
/// for each allocation. What is played and packed may take more than was reckoned:
/// then less is planned for, down to the least; where not even that keeps to them,
/// CertifiedPlan::bytes says what it takes. `room`: of the device; null: of one on
/// which nothing lies but what the twin has there.
CertifiedPlan certify(StepTwin &twin, ResidencyPlanner &planner, uint64_t bytes, const FreeRoom *room = nullptr);

/// Plays one plan, and packs its addresses.
CertifiedPlan certified(StepTwin &twin, const ResidencyPlanner &planner, const ResidencyPlan &plan, uint64_t bytes,
                        const FreeRoom *room = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_STEPTWIN_H
