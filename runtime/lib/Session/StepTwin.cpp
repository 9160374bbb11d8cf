//===- StepTwin.cpp - a session in virtual time ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/StepTwin.h"
#include "../Drivers/DeviceOptions.h"
#include "../Drivers/Drivers.h"
#include "../Program/LackOfMemory.h"
#include "../Tensor/NullHandles.h"
#include "OwnDevice.h"
#include "PlanStep.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/PlannedResidency.h"
#include "segue/runtime/Plan/RemakeMeter.h"
#include "segue/runtime/Plan/StepRecorder.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include <algorithm>
#include <functional>
#include <iterator>
#include <ranges>
#include <set>
#include <tuple>

namespace segue::inline runtime {

static std::string twinOrThrow(std::optional<std::string> twin, std::string_view device) {
  if (twin)
    return *std::move(twin);
  throw Error(ErrorCode::Unsupported, "device \"" + std::string(device) +
                                          "\" has one memory for host and device, so that nothing can leave it; "
                                          "a plan needs a discrete device, such as sim:dram=512MiB,link=16GB/s");
}

std::string virtualTwin(const Device &device) { return twinOrThrow(device.twin(), device.name()); }
std::string virtualTwin(std::string_view spec) { return twinOrThrow(twinOf(spec), spec); }

std::string withDram(std::string_view spec, std::string_view capacity) {
  size_t colon = std::min(spec.find(':'), spec.size());
  DeviceOptions options(spec.substr(0, colon), spec.substr(std::min(colon + 1, spec.size())));
  options.set("dram", capacity);
  return options.spec();
}

namespace {
/// Hands events on, and notes what each phase holds at most.
class PeaksByPhase final : public ForwardEvents {
public:
  PeaksByPhase(Device &device, EventSink *next) : memory_(device.memory()), spaces_(device.spaces()) {
    target = next;
    memory_.resetPeak();
  }

  void receive(const Event &event) override {
    deliver(*this, event);
    forward(event);
  }
  void on(const event::PhaseBegin &begin) {
    close();
    phase_ = begin.phase;
  }

  /// Ends the phase: all that was seen since it began is its own.
  void close() {
    for (const SpaceInfo &info : spaces_) {
      uint64_t bytes = memory_.peakBytes(info.space);
      auto known = std::ranges::find_if(
          peaks, [&](const PhasePeak &peak) { return peak.phase == phase_ && peak.space == info.space; });
      if (bytes <= (known != peaks.end() ? known->bytes : 0))
        continue;
      if (known == peaks.end())
        known = peaks.insert(known, {.phase = phase_, .space = info.space});
      known->bytes = bytes;
      known->holders = memory_.holders(info.space);
      std::erase_if(known->holders, [](const MemoryHolder &holder) { return holder.bytesAtPeak == 0; });
      std::ranges::stable_sort(known->holders, std::greater(), &MemoryHolder::bytesAtPeak);
    }
    memory_.resetPeak();
  }

  std::vector<PhasePeak> peaks;

private:
  DeviceMemory &memory_;
  std::span<const SpaceInfo> spaces_;
  Phase phase_ = Phase::StepBegin;
};
} // namespace

/// Brings parameters with their block, whatever `target` does with the others.
class StepTwin::WithWeights final : public ForwardEvents {
public:
  WithWeights(const DeviceRef &device, TwinWeights weights)
      : device_(device), streamer_(device, quiet(weights.config), {.slots = weights.slots, .isKept = weights.isKept}) {}

  /// The recorder that is told how long blocks wait; may be null.
  StepRecorder *recorder = nullptr;

  WeightStreamer &streamer() { return streamer_; }

  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    forward(begin);
    streamer_.on(begin);
  }
  void on(const event::BlockBegin &begin) {
    forward(begin);
    double began = device_->seconds();
    streamer_.on(begin);
    if (recorder)
      recorder->waitedForLink(device_->seconds() - began);
  }
  void on(const event::BlockEnd &end) {
    forward(end);
    streamer_.on(end);
  }
  /// A recorder wants to see all offers, also of inputs that come by the ring.
  void on(const event::OfferInput &offer) {
    forward(offer);
    bool isMine = false;
    streamer_.on(event::OfferInput{offer.program, offer.input, offer.value, isMine});
    offer.isDeferred |= isMine;
    if (isMine)
      mine_.insert({offer.program.image().get(), offer.program.index(), offer.input});
    else
      mine_.erase({offer.program.image().get(), offer.program.index(), offer.input});
  }
  void on(const event::BlockInput &need) {
    if (mine_.contains({need.program.image().get(), need.program.index(), need.input}))
      return streamer_.on(need);
    forward(need);
  }
  void on(const auto &other) { forward(other); }

private:
  static WeightStagehandConfig quiet(WeightStagehandConfig config) {
    config.telemetry.enabled = config.debugTrace = false;
    return config;
  }

  DeviceRef device_;
  WeightStreamer streamer_;
  /// The inputs that it brings, by program.
  std::set<std::tuple<const void *, size_t, uint32_t>> mine_;
};

namespace {
/// The steps of a session, all with the same batches.
class SessionSteps final : public TwinSteps {
public:
  SessionSteps(const DeviceRef &device, std::vector<SessionModule> modules, SessionOptions options,
               const TwinBatches &batches)
      : wires_(options.wires), session_(device, std::move(modules), std::move(options)) {
    session_.allocateParameters();
    played_ = addTwinBatches(session_, batches, wires_);
  }

  const Session &session() const { return session_; }

  void step() override { last_ = session_.step(played_.batches, LearningRates::same(1e-3, session_.rateCount())); }
  void forgetResults() override {
    last_ = {};
    session_.finishUpdates();
  }

  bool leavesWork() const override { return std::ranges::any_of(session_.modules(), &Module::updatesInForward); }

private:
  std::vector<Wire> wires_;
  Session session_;
  BatchesToPlay played_;
  StepResult last_;
};
} // namespace

struct StepTwin::State {
  /// Those who play steps have one sink for their life; the twin's steps have each their own.
  ForwardEvents sink;
  std::string spec;
  std::optional<OwnDevice> own;
  DeviceRef device;
  std::optional<AllocationTrace> trace;
  /// Brings what lives on the host; the session refers to it.
  std::optional<PlannedResidency> planned;
  std::optional<WithWeights> weights;
  std::unique_ptr<TwinSteps> steps;
  /// Among them; null where they are no session's.
  const Session *session = nullptr;
  LinkSpeed link;
  uint64_t recordedDiskBytes = 0;

  /// Has nothing wait for the next step.
  void finish() {
    sink.target = &*planned;
    steps->forgetResults();
    sink.target = nullptr;
    planned->residency().settle();
  }

  void step(EventSink *now) {
    sink.target = now;
    if (weights) {
      weights->target = now;
      sink.target = &*weights;
    }
    steps->step();
    sink.target = nullptr;
    device->drain();
  }
};

/// Returns `spec` with as much device_dram as any step may want.
static std::string withRoom(std::string_view spec) { return withDram(spec, "1024TiB"); }

TensorMap batchWithoutValues(const DeviceRef &device, std::span<const Module> modules, std::span<const Wire> wires) {
  TensorMap batch;
  for (size_t m = 0; m < modules.size(); ++m) {
    const Module *previous = m ? &modules[m - 1] : nullptr;
    auto isWired = [&](const Value &input) {
      return std::ranges::any_of(
          wires, [&](const Wire &wire) { return wire.module == modules[m].name() && wire.input == input.name; });
    };
    size_t next = 0;
    for (const Value &input : modules[m].inputs()) {
      if (isWired(input) || batch.contains(input.name))
        continue;
      while (previous && next < previous->outputs().size() && isLoss(previous->outputs()[next]))
        ++next;
      if (previous && next < previous->outputs().size()) {
        const TensorDesc &given = previous->outputs()[next].desc();
        if (given.shape == input.desc().shape && given.element == input.desc().element) {
          ++next;
          continue;
        }
      }
      batch[input.name] = Tensor::onHost(device, input.desc().shape, input.desc().element);
    }
  }
  return batch;
}

BatchesToPlay addTwinBatches(Session &session, const TwinBatches &batches, std::span<const Wire> wires) {
  const DeviceRef &device = session.device();
  BatchesToPlay played{.programs = preparePrograms(device, session.modules())};
  std::vector<TensorMap> bySizes{batchWithoutValues(device, session.modules(), wires)};
  for (const std::vector<SessionModule> &other : batches.otherSizes) {
    std::vector<Module> modules;
    for (const SessionModule &module : other)
      modules.emplace_back(device, module.binary, module.name);
    std::ranges::move(preparePrograms(device, modules), std::back_inserter(played.programs));
    bySizes.push_back(batchWithoutValues(device, modules, wires));
    session.addSizes(other);
  }
  for (size_t sizes : batches.sizes)
    played.batches.push_back(bySizes[sizes]);
  return played;
}

StepTwin::StepTwin(std::string_view spec) : state_(std::make_unique<State>()) {
  State &state = *state_;
  state.device = *state.own.emplace(withRoom(spec));
  state.trace.emplace(state.device->memory());
  state.spec = spec;
  if (state.device->hasBytes())
    throw Error(ErrorCode::InvalidArgument,
                "device \"" + state.spec + "\" runs programs; a step is planned on sim:virtual");
  state.link = state.device->link().value_or(LinkSpeed());
  state.planned.emplace(state.device);
}

StepTwin::StepTwin(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                   TwinBatches batches, std::optional<TwinWeights> weights, Homes homes)
    : StepTwin(spec) {
  State &state = *state_;
  options.events = &state.sink;
  takeRanks(options, state.device);
  if (homes == Homes::Host)
    options.residency = &state.planned->residency();
  if (weights) {
    state.weights.emplace(state.device, std::move(*weights));
    state.planned->leaveParametersTo(state.weights->streamer());
    options.weights = &state.weights->streamer();
  }
  auto steps = std::make_unique<SessionSteps>(state.device, std::move(modules), std::move(options), batches);
  state.session = &steps->session();
  state.steps = std::move(steps);
}

StepTwin::StepTwin(std::string_view spec, const MakeSteps &make) : StepTwin(spec) {
  state_->steps = requireGiven(make, "StepTwin")(state_->device, state_->sink);
}

StepTwin::~StepTwin() = default;
StepTwin::StepTwin(StepTwin &&) noexcept = default;

const DeviceRef &StepTwin::device() const { return state_->device; }
const std::string &StepTwin::spec() const { return state_->spec; }
const Session &StepTwin::session() const { return *state_->session; }
const WeightStreamer *StepTwin::weights() const { return state_->weights ? &state_->weights->streamer() : nullptr; }
WeightLender *StepTwin::lender() { return state_->weights ? &state_->weights->streamer() : nullptr; }

uint64_t StepTwin::recordedDiskBytes() const { return state_->recordedDiskBytes; }
LinkSpeed StepTwin::link() const { return state_->link; }
std::optional<LinkSpeed> StepTwin::diskLink() const { return state_->device->diskLink(); }
EventSink &StepTwin::events() { return *state_->planned; }

double StepTwin::run(EventSink *sink) {
  State &state = *state_;
  double begin = state.device->seconds();
  state.planned->stayAll();
  state.step(sink ? sink : &*state.planned);
  return state.device->seconds() - begin;
}

StepProfile StepTwin::record() {
  State &state = *state_;
  // Prepares programs, brings what then stays, and makes again what can be.
  std::optional<LinkSpeed> disk = state.device->diskLink();
  RemakeMeter meter(*state.device, state.planned->remakes(), disk ? busiest(state.link, *disk) : state.link);
  meter.target = &*state.planned;
  state.planned->watchSaves(true);
  run(&meter);
  state.planned->watchSaves(false);
  if (state.steps->leavesWork())
    state.step(&*state.planned);
  StepRecorder recorder(*state.device);
  recorder.target = &*state.planned;
  if (state.weights)
    state.weights->recorder = &recorder;
  state.step(&recorder);
  if (state.weights)
    state.weights->recorder = nullptr;
  StepProfile profile = recorder.takeProfile(state.link);
  meter.giveTo(profile);
  // Everything leaves once: what frees nothing then never does.
  ResidencyPlan everything;
  for (uint32_t gap = 0; gap < profile.gaps.size(); ++gap)
    everything.away.push_back({gap, profile.gaps[gap].needed});
  std::ranges::stable_sort(everything.away, {}, &Departure::returns);
  begin(profile, everything);
  DeviceMemory &memory = state.device->memory();
  memory.resetPeak();
  for (int step = 0; step < 2; ++step) // what is where when a step begins is the doing of the step before
    state.step(&*state.planned);
  state.recordedDiskBytes = state.device->hasSpace(Space::Disk) ? memory.peakBytes(Space::Disk) : 0;
  std::vector<uint32_t> held = state.planned->heldElsewhere();
  std::ranges::sort(held);
  removeGaps(profile, std::move(held));
  return profile;
}

/// The steps of a session without services until everything is there that it keeps for later.
static constexpr int stepsWithoutServices = 4;

uint64_t bytesWithoutServices(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                              size_t microBatches) {
  OwnDevice own(withRoom(spec));
  const DeviceRef &device = *own;
  AllocationTrace trace(device->memory());
  std::vector<Wire> wires = options.wires;
  Session session(device, std::move(modules), std::move(options));
  session.allocateParameters();
  std::vector<TensorMap> batches(microBatches, batchWithoutValues(device, session.modules(), wires));
  StepResult last;
  for (int step = 0; step < stepsWithoutServices; ++step)
    last = session.step(batches, LearningRates::same(1e-3, session.rateCount()));
  return trace.highest(device->reserveMemory(Space::DeviceDram, {}));
}

/// Puts the twin where a plan begins: what lives on the host is there, and nothing is
/// kept to be used again.
void StepTwin::begin(const StepProfile &profile, const ResidencyPlan &plan) {
  State &state = *state_;
  state.planned->follow(profile, plan);
  state.planned->residency().settle();
  state.finish();
  state.device->drain();
  dropCaches(*state.device);
}

StepTwin::Played StepTwin::play(const StepProfile &profile, const ResidencyPlan &plan, int moreSteps) {
  State &state = *state_;
  Device &device = *state.device;
  PlannedResidency &planned = *state.planned;
  begin(profile, plan);
  state.trace->begin();
  state.trace->beginStep();
  state.step(&planned);
  if (state.steps->leavesWork()) { // what that moves comes for the first time now
    state.trace->beginStep();
    state.step(&planned);
  }
  state.trace->beginStep();
  PlannedResidency::Counts before = planned.counts();
  PeaksByPhase peaks(device, &planned);
  double begin = device.seconds();
  const TransferCounters &moved = device.transfer().counters();
  uint64_t inBytes = moved.h2dBytes, outBytes = moved.d2hBytes;
  uint64_t diskInBytes = moved.diskReadBytes, diskOutBytes = moved.diskWriteBytes;
  state.step(&peaks);
  peaks.close();
  const PlannedResidency::Counts &counts = planned.counts();
  Played played{.peaks = std::move(peaks.peaks),
                .seconds = device.seconds() - begin,
                .inBytes = moved.h2dBytes - inBytes,
                .outBytes = moved.d2hBytes - outBytes,
                .diskInBytes = moved.diskReadBytes - diskInBytes,
                .diskOutBytes = moved.diskWriteBytes - diskOutBytes,
                .left = counts.left - before.left,
                .fetchedAhead = counts.fetchedAhead - before.fetchedAhead,
                .fetchedLate = counts.fetchedLate - before.fetchedLate,
                .unpinned = counts.unpinned - before.unpinned,
                .remade = counts.remade - before.remade};
  for (const PhasePeak &peak : played.peaks)
    if (peak.space == Space::DeviceDram && peak.bytes > played.peakBytes) {
      played.peakBytes = peak.bytes;
      played.holders = peak.holders;
    }
  for (int more = 0; more < moreSteps && (more == 0 || !state.trace->repeats()); ++more) {
    state.trace->beginStep();
    state.step(&planned);
  }
  played.heldElsewhere = planned.heldElsewhere();
  played.allocations = state.trace->end();
  return played;
}

std::vector<Executor> preparePrograms(const DeviceRef &device, std::span<const Module> modules) {
  std::vector<Executor> programs;
  LackOfMemory lack;
  for (const Module &module : modules)
    for (std::string_view name : stepPrograms)
      lack.attempt([&] {
        if (const Program *program = module.find(name))
          programs.emplace_back(device, *program);
      });
  lack.throwIfAny();
  return programs;
}

uint64_t bytesForPrograms(std::string_view spec, const std::vector<SessionModule> &given) {
  if (!isOpenedForTwin(spec))
    return 0;
  OwnDevice own(spec);
  if (!own->bytesForPrograms())
    return 0;
  std::vector<Module> modules;
  for (const SessionModule &module : given)
    modules.emplace_back(*own, module.binary, module.name);
  own->memory().setBudget(Space::DeviceDram, 0); // plans say what they want, and get none of it
  try {
    preparePrograms(*own, modules);
  } catch (const Error &) { // a file without kernels for the device is refused where it is to run
  }
  return own->bytesForPrograms().value_or(0);
}

void dropCaches(Device &device) {
  try {
    uint64_t tooMuch = device.memory().budget(Space::DeviceDram) + 1;
    MemoryBlock block = device.memory().allocate(Space::DeviceDram, tooMuch, 1);
    device.memory().free(Space::DeviceDram, block.data, tooMuch, 1, block.account, {});
  } catch (const OutOfMemory &) { // all were asked
  }
}

void giveFreeToSystem(Device &device) noexcept {
  if (!device.hasBytes())
    return;
  try {
    device.drain();
    device.giveFreeToSystem();
  } catch (const std::exception &) { // a device that failed runs nothing any more
  }
}

uint64_t StepTwin::restBytes(bool withStates) {
  State &state = *state_;
  Device &device = *state.device;
  state.finish();
  state.planned->residency().leaveAll();
  state.planned->residency().settle();
  device.drain();
  dropCaches(device);
  uint64_t bytes = device.memory().liveBytes(Space::DeviceDram);
  std::set<std::string> inRing;
  if (state.weights) {
    bytes -= state.weights->streamer().ringBytes();
    for (const StreamedParameter &parameter : state.weights->streamer().parameters())
      inRing.insert(parameter.key);
  }
  auto add = [&](const Tensor &tensor) {
    if (state.planned->residency().isHome(tensor))
      bytes +=
          device.takenBytes(Space::DeviceDram, tensor.desc().spanBytes(), std::max(1u, tensor.desc().layout.alignment));
  };
  if (!state.session)
    return bytes;
  std::vector<std::string> elsewhere = state.session->parametersElsewhere();
  for (const ParameterInfo &info : state.session->parameters())
    if (!inRing.contains(info.members.front().module + "." + info.members.front().name) &&
        std::ranges::find(elsewhere, info.key) == elsewhere.end())
      add(state.session->parameter(info.key));
  for (const auto &[key, tensor] : state.session->state())
    if (withStates)
      add(tensor);
  return bytes;
}

CertifiedPlan certified(StepTwin &twin, const ResidencyPlanner &planner, const ResidencyPlan &plan, uint64_t bytes,
                        const FreeRoom *room) {
  CertifiedPlan certified{.plan = &plan, .played = twin.play(planner.profile(), plan)};
  const StepAllocations &steps = certified.played.allocations;
  FreeRoom empty{{{steps.bytesBefore, uint64_t(1) << 60}}, steps.bytesBefore};
  auto pack = [&](const FreeRoom &room, std::span<const AddressRange> ranges) {
    // Packing ends where it is good enough, and may have to be better by what is lost.
    for (uint64_t goal = bytes - std::min(bytes, room.liveBytes);;) {
      std::optional<AddressPlan> packed = packAddresses(steps, ranges, goal);
      if (!packed)
        return;
      // Free bytes between the plan's ranges, too small to be of use, are lost.
      uint64_t between = 0, end = packed->ranges.empty() ? 0 : packed->ranges.back().end(), own = packed->bytes();
      for (const AddressRange &range : room.ranges)
        between += std::min(end, range.end()) - std::min(end, range.begin);
      uint64_t needed = room.liveBytes + std::max(between, own);
      if (!certified.addresses || needed < certified.bytes) {
        certified.addresses = std::move(packed);
        certified.bytes = needed;
      }
      uint64_t lost = needed - std::min(needed, bytes);
      if (!lost || own > goal || goal < lost || !own)
        return;
      goal = std::min(goal - lost, own - 1); // a goal between the two would find the same
    }
  };
  if (room && !room->ranges.empty()) {
    // Addresses are packed into the largest range alone, as on an empty device, if it is enough.
    auto largest = std::ranges::max_element(room->ranges, {}, &AddressRange::bytes);
    pack(*room, std::span(largest, 1));
    if (room->ranges.size() > 1 && (!certified.addresses || certified.bytes > bytes))
      pack(*room, room->ranges);
  } else if (!room) {
    pack(empty, empty.ranges);
  }
  if (certified.addresses)
    return certified;
  // If there are no addresses, this is what the budget must be at least.
  if (room && steps.repeats()) {
    pack(empty, empty.ranges);
    certified.addresses.reset();
    certified.bytes += room->liveBytes - std::min(room->liveBytes, steps.bytesBefore);
    certified.bytes = std::max(certified.bytes, bytes + 1);
  } else {
    certified.bytes = certified.played.peakBytes;
  }
  return certified;
}

/// A function that certifies one plan, if it can for so many bytes.
using Play = std::function<CertifiedPlan(const ResidencyPlan &plan, uint64_t bytes)>;

static CertifiedPlan certifyOnce(const ResidencyPlanner &planner, uint64_t bytes, const Play &play) {
  for (uint64_t target = bytes; target >= planner.smallestBudget();) {
    CertifiedPlan found = play(planner.plan(target), bytes);
    if (found.bytes <= bytes)
      return found;
    uint64_t planned = found.plan->peakBytes;
    target = planned - std::min(planned, found.bytes - bytes);
  }
  CertifiedPlan least = play(planner.plan(planner.smallestBudget()), bytes);
  if (least.bytes <= bytes)
    return least;
  // Tensors that leave may leave holes, so that a plan in which fewer leave may take less when it is
  // packed. So may other plans.
  std::vector<const ResidencyPlan *> others{&planner.unconstrained()};
  if (least.plan->isRemaking)
    others.push_back(&planner.movedPlan(planner.smallestBudget()));
  for (const ResidencyPlan *other : others)
    if (CertifiedPlan found = play(*other, bytes); found.bytes < least.bytes)
      least = std::move(found);
  return least;
}

/// Where a budget is too small, what is named is certified itself, and a byte less is not: the plan that keeps the least
/// is seldom the one that is packed into the least. A search that finds ever less ends somewhere.
static constexpr int mostRounds = 16;

static CertifiedPlan certifyBy(const ResidencyPlanner &planner, uint64_t bytes, const Play &play,
                               Search search = Search::Least) {
  CertifiedPlan found = certifyOnce(planner, bytes, play);
  for (int round = 0; search == Search::Least && found.bytes > bytes && round < mostRounds; ++round) {
    CertifiedPlan less = certifyOnce(planner, found.bytes - 1, play);
    if (less.bytes >= found.bytes)
      break;
    found = std::move(less);
  }
  return found;
}

CertifiedPlan certify(StepTwin &twin, ResidencyPlanner &planner, uint64_t bytes, const FreeRoom *room,
                      Search search) {
  auto play = [&](const ResidencyPlan &plan, uint64_t goal) { return certified(twin, planner, plan, goal, room); };
  return certifyBy(planner, bytes, play, search);
}

CertifiedPlan certifyPeak(StepTwin &twin, const ResidencyPlanner &planner, uint64_t bytes) {
  return certifyBy(planner, bytes, [&](const ResidencyPlan &plan, uint64_t) {
    CertifiedPlan found{.plan = &plan, .played = twin.play(planner.profile(), plan, /*moreSteps=*/0)};
    found.bytes = found.played.peakBytes;
    return found;
  });
}

} // namespace segue::inline runtime
