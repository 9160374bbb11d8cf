//===- MemoryServices.cpp - the memory policies at work -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Who is told what, and in which order. Of one event: the user's sink, ends of
// copies, Conductor, then the actors; at STEP_END the actors come before
// Conductor, whose record then shows what they left.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/MemoryServices.h"
#include "ActivationActor.h"
#include "PhaseClock.h"
#include "PlannedActor.h"
#include "PrecisionActor.h"
#include "StateActor.h"
#include "WeightActor.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SelectivePrecisionConfig.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

static constexpr const char *precisionSection = "memory.stagehand.selective_precision";

struct MemoryServices::Impl {
  ~Impl();

  void startConductor(const ConductorConfig &config, Json section, std::optional<int64_t> weightWindow);
  void addActor(std::unique_ptr<EventSink> actor) { actors.push_back(std::move(actor)); }
  void giveWatermarks(StateStagehandConfig &config, const ActivationStagehandConfig &activation,
                      const WeightStagehandConfig *weights) const;
  void startStates();
  void compareWatermarks(const WeightStagehandConfig &weights, const ActivationStagehandConfig &activation);
  /// Catches up with copies. Called before everything else that an event does.
  void catchUp();
  void beginStep();
  void endStep();
  void enter(Phase phase);
  void abortStep() noexcept;
  /// Writes the records whose times are known, or `all`.
  void writeTimed(bool all);
  uint64_t makeRoom(uint64_t wanted);
  /// Makes copies of this device ask this session's Conductor, in the place of another's.
  void takeGate();
  /// The limit of holdTo() counts from here; and until here.
  void lowerBudget();
  bool raiseBudget();
  /// Departs from the step's limit, when nobody could make room.
  uint64_t departFromPeak();
  uint64_t makeRoomOf(EventSink &actor, uint64_t wanted);
  void tellActors(const Event &event) {
    for (const auto &actor : actors)
      actor->receive(event);
  }
  void tellNext(const Event &event) {
    if (options.next)
      options.next->receive(event);
  }

  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockEnd &end);
  void on(const event::OfferInput &offer);
  void on(const event::BlockInput &need);
  void on(const event::OfferResults &offer);
  void on(const event::BlockResult &written);
  /// Takes the events that concern nobody outside of a step.
  template <typename Other> void on(const Other &other);

  MemoryServicesOptions options;
  ServiceContext context;
  std::optional<EventLog> conductorLog;
  std::optional<JsonlWriter> conductorTelemetry;
  /// The hard cap. Other sessions on the device have caps of their own, and go before or after this one.
  std::optional<DeviceMemory::CapHandle> hardCap;
  /// The certified peak of the steps to come, and the cap that keeps one to it while it runs.
  std::optional<uint64_t> peakBytes;
  std::optional<DeviceMemory::CapHandle> peakCap;
  DeviceMemory::RoomMakerHandle roomMaker, lastRoomMaker;
  std::vector<std::unique_ptr<EventSink>> actors;
  /// The actor of activations among the actors, or null.
  ActivationActor *activation = nullptr;
  /// The section of Activation Stagehand until the first step was rehearsed; null then.
  Json toRehearse;
  /// The high watermark of activations in bytes.
  uint64_t spillsFromBytes = 0;
  PlannedActor *planned = nullptr;
  /// Null until states leave; where no section lets them, there is no config.
  StateActor *states = nullptr;
  std::optional<StateStagehandConfig> statesConfig;
  bool checksCopies = false;
  WeightActor *weights = nullptr;
  PrecisionActor *precision = nullptr;
  int64_t nextStep = 1;
  bool inStep = false, isEvaluating = false;
  /// The sink that brings an input which was deferred, by program and input; null for the
  /// user's sink.
  std::map<std::tuple<const void *, size_t, uint32_t>, EventSink *> bringers;
  /// The sinks that watch the results of the program that runs, the user's sink first.
  std::vector<EventSink *> resultWatchers;
  /// The clock of phases, if Conductor is on.
  std::optional<PhaseClock> phaseClock;
  /// Records that are due, in their order; the device may still run their steps.
  struct TimedRecord {
    Json record;
    PhaseClock::Times times;
  };
  std::deque<TimedRecord> timedRecords;
};

//===----------------------------------------------------------------------===//
// Construction
//===----------------------------------------------------------------------===//

/// The rank of the last room maker, after everybody who gives something up.
static constexpr int lastRank = 1000;

static uint64_t capacityOf(const Device &device) {
  for (const SpaceInfo &info : device.spaces())
    if (info.space == Space::DeviceDram)
      return info.capacityBytes;
  return 0;
}

/// Sizes the pool where the section does not: the default one is at most half of the device's
/// page-locked memory, and the rest is for weights and for staging copies. The section then says
/// what was chosen, so that a log of it replays.
static void fitPool(ActivationStagehandConfig &config, Json &section, DeviceMemory &memory) {
  for (const char *key : {"pinned_pool_classes_mb", "slabs_per_class", "pinned_pool_max_mb"})
    if (section.contains(key))
      return;
  double most = std::floor(double(memory.budget(Space::HostPinned)) / 2 / 1048576);
  if (config.initialPoolMiB() <= most)
    return;
  // The larger classes, as long as they take half of that; the smallest has the rest.
  double larger = 0;
  for (size_t i = 1; i < config.slabsPerClass.size(); ++i) {
    double mebibytes = double(config.poolClassesMiB[i] * config.slabsPerClass[i]);
    config.slabsPerClass[i] = larger + mebibytes <= most / 2 ? config.slabsPerClass[i] : 0;
    larger += config.slabsPerClass[i] ? mebibytes : 0;
  }
  config.slabsPerClass[0] = std::min(config.slabsPerClass[0], int64_t(most - larger) / config.poolClassesMiB[0]);
  config.pinnedPoolMaxMiB = 2 * config.initialPoolMiB();
  section["slabs_per_class"] = config.slabsPerClass;
}

void MemoryServices::Impl::startConductor(const ConductorConfig &config, Json section,
                                          std::optional<int64_t> weightWindow) {
  ConductorLimits limits = config.limits(capacityOf(*context.device), weightWindow);
  Conductor::Hooks hooks;
  hooks.warn = context.warn;
  hooks.granted = [this](uint64_t token) { context.gate.granted(token); };
  if (config.telemetry.enabled)
    hooks.record = [this](const Json &record) { timedRecords.push_back({record, phaseClock->times()}); };
  hooks.drain = [this] {
    context.device->drain();
    context.engine().settle(/*all=*/true);
  };
  std::filesystem::path log;
  if (!context.recordEvents.empty())
    log = context.recordEvents / "conductor.json";
  else if (config.debugEventTrace)
    log = config.telemetry.file.parent_path() / "conductor_events.json";
  if (!log.empty()) {
    // A replay has no device that caps could be a share of.
    section["vram_soft_cap_mb"] = double(limits.softCapBytes) / 1048576;
    section["vram_hard_cap_mb"] = double(limits.hardCapBytes) / 1048576;
    section["prefetch_window_cap"] = limits.prefetchWindow;
    Json head = headOf("conductor", "config", section);
    head["register"] = Json::array();
    conductorLog.emplace(log, std::move(head), context.warn);
    hooks.trace = [this](const Json &event) { conductorLog->add(event); };
  }
  phaseClock.emplace(*context.device);
  if (config.telemetry.enabled)
    conductorTelemetry.emplace(config.telemetry.file, context.warn);
  context.conductor = Conductor(config, limits, std::move(hooks));
  context.gate.open(config.slotWaitTimeoutMs * 1e-3);
  context.engine().setGate(&context.gate);
  hardCap = context.device->memory().addCap(Space::DeviceDram, uint64_t(limits.hardCapBytes));
}

/// Warns of lists that have no effect: off means all bf16, whatever the lists say.
static void warnOfLists(const SelectivePrecisionConfig &config, const std::function<void(const std::string &)> &warn) {
  if (config.isOff() && !(config.forceBf16.empty() && config.forceInt8.empty()))
    warn("selective precision is off: force_bf16_blocks and force_int8_blocks say nothing, all units are bf16");
}

std::unique_ptr<MemoryServices> MemoryServices::create(DeviceRef device, const Config &config,
                                                       MemoryServicesOptions options) {
  ConfigReader conductorReader = config.section(conductorSection), activationReader = config.section(activationSection);
  ConfigReader weightReader = config.section(WeightStagehandConfig::section),
               precisionReader = config.section(precisionSection);
  ConductorConfig conductor = ConductorConfig::read(conductorReader);
  ActivationStagehandConfig activation = ActivationStagehandConfig::read(activationReader);
  WeightStagehandConfig weights = WeightStagehandConfig::read(weightReader);
  SelectivePrecisionConfig precision = SelectivePrecisionConfig::read(precisionReader);
  ConfigReader stateReader = config.section(StateStagehandConfig::section);
  StateStagehandConfig states = StateStagehandConfig::read(stateReader);
  bool streamsWeights = weights.enabled && weights.isGiven;
  bool isPlanned = activation.enabled && activation.mode == ActivationStagehandConfig::Mode::Planned;
  // A run that writes no records of the services beside it writes none of this one.
  const TelemetryConfig &beside = activation.enabled ? activation.telemetry : weights.telemetry;
  if (!stateReader.has("telemetry_enabled"))
    states.telemetry.enabled = beside.enabled;
  if (!stateReader.has("telemetry_file"))
    states.telemetry.file = beside.file.parent_path() / states.telemetry.file;
  if (!options.warn)
    options.warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
  warnOfLists(precision, options.warn);
  if (!conductor.enabled && !activation.enabled && !streamsWeights && precision.isOff() &&
      states.mode != StateStagehandConfig::Mode::On)
    return nullptr;
  // A plan has no watermarks.
  if (activation.enabled && activation.mode == ActivationStagehandConfig::Mode::Watermark)
    activation.checkCapacity(capacityOf(*device));
  if (!options.recordEvents.empty() && !std::filesystem::is_directory(options.recordEvents))
    throw Error(ErrorCode::IoFailed,
                options.recordEvents.string() + ": the folder for the logs of events does not exist; make it first");
  if (!precision.isOff() && !options.makePrecision)
    throw ConfigError(precisionSection, "enabled",
                      "this program lacks Selective Precision: link SegueRuntime::SeguePrecision and give "
                      "precisionService() as makePrecision",
                      "makePrecision");

  // A slab that cannot be served is refused before anything is made. Where the
  // config speaks of Selective Precision, also to switch it off, it is one form
  // of the weights, whose source is another.
  std::shared_ptr<SlabSource> slab;
  if (streamsWeights && weights.squareqSlab && !config.has(precisionSection)) {
    if (!options.openSlab)
      weightReader.fail("squareq_slab_path", "this program reads no slabs; link SegueSquareQ and set "
                                             "SessionOptions::openSlab to segue::openSlab");
    ConfigReader squareq = config.section(SquareQConfig::section);
    slab = options.openSlab(device,
                            {.slab = *weights.squareqSlab,
                             .manifest = *weights.squareqManifest,
                             .program = options.program,
                             .aliases = options.aliases},
                            SquareQConfig::read(squareq));
  }
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->context.device = std::move(device);
  impl->context.warn = impl->options.warn;
  impl->context.log = impl->options.log;
  impl->context.recordEvents = impl->options.recordEvents;
  impl->context.program = impl->options.program;
  impl->context.aliases = impl->options.aliases;
  impl->context.twin = impl->options.twin;
  // The slab is opened first, since one that cannot be opened is refused before anything is made.
  std::unique_ptr<PrecisionActor> precisionActor;
  if (!precision.isOff())
    precisionActor = impl->options.makePrecision(impl->context, config);
  if (conductor.enabled)
    impl->startConductor(conductor, config.json(conductorSection),
                         streamsWeights ? std::optional(weights.prefetchWindowBlocks) : std::nullopt);
  if (streamsWeights && activation.enabled && activation.mode == ActivationStagehandConfig::Mode::Watermark)
    impl->compareWatermarks(weights, activation);
  if (!isPlanned && states.mode != StateStagehandConfig::Mode::Off &&
      (activation.enabled || streamsWeights || states.mode == StateStagehandConfig::Mode::On)) {
    impl->giveWatermarks(states, activation, streamsWeights ? &weights : nullptr);
    impl->checksCopies = activation.enabled && activation.debugChecksums;
    impl->statesConfig = std::move(states);
    if (impl->statesConfig->mode == StateStagehandConfig::Mode::On)
      impl->startStates();
  }
  if (isPlanned) {
    auto actor = std::make_unique<PlannedActor>(impl->context, activation, config.json(activationSection));
    impl->planned = actor.get();
    impl->addActor(std::move(actor));
  } else if (activation.enabled) {
    Json section = config.json(activationSection);
    fitPool(activation, section, impl->context.device->memory());
    auto actor = std::make_unique<ActivationActor>(impl->context, activation, section);
    impl->activation = actor.get();
    impl->spillsFromBytes = uint64_t(activation.highWatermarkMiB * 1048576);
    impl->toRehearse = std::move(section);
    impl->addActor(std::move(actor));
  }
  // The actor of weights comes after that of activations, which make room first.
  if (streamsWeights) {
    WeightStreamerOptions streaming;
    streaming.warn = impl->options.warn;
    streaming.log = impl->options.log;
    if (slab)
      std::ranges::for_each(slab->notes(), impl->options.warn);
    streaming.slab = std::move(slab);
    streaming.aliases = impl->options.aliases;
    std::filesystem::path log;
    if (!impl->options.recordEvents.empty())
      log = impl->options.recordEvents / "weight.json";
    else if (weights.debugTrace)
      log = weights.telemetry.file.parent_path() / "weight_events.json";
    if (!log.empty())
      streaming.events = std::make_shared<EventLog>(
          log, headOf("weight", "config", config.json(WeightStagehandConfig::section)), impl->options.warn);
    auto actor = std::make_unique<WeightActor>(impl->context, std::move(weights), std::move(streaming));
    impl->weights = actor.get();
    if (impl->planned)
      impl->planned->planned().leaveParametersTo(actor->streamer());
    impl->addActor(std::move(actor));
  }
  if (impl->activation)
    impl->activation->borrowFrom(impl->weights ? &impl->weights->streamer() : impl->options.lender);
  if (precisionActor) {
    impl->precision = precisionActor.get();
    impl->addActor(std::move(precisionActor));
  }
  impl->roomMaker = impl->context.device->memory().addRoomMaker(
      "memory services", 0, [impl = impl.get()](Space space, uint64_t wanted) -> uint64_t {
        if (space != Space::DeviceDram)
          return 0;
        if (impl->inStep || impl->isEvaluating)
          return impl->makeRoom(wanted);
        return impl->states ? impl->makeRoomOf(*impl->states, wanted) : 0;
      });
  impl->lastRoomMaker = impl->context.device->memory().addRoomMaker(
      "limit of the step", lastRank, [impl = impl.get()](Space space, uint64_t) -> uint64_t {
        return space == Space::DeviceDram ? impl->departFromPeak() : 0;
      });
  return std::unique_ptr<MemoryServices>(new MemoryServices(std::move(impl)));
}

MemoryServices::MemoryServices(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryServices::~MemoryServices() { impl_->abortStep(); }

MemoryServices::Impl::~Impl() {
  try {
    context.device->drain();
    context.engine().settle(/*all=*/true);
  } catch (...) { // a device that failed runs nothing any more
  }
  writeTimed(/*all=*/true);
  actors.clear();
  if (context.engine().gate() == &context.gate) // else it is that of a session which was made since
    context.engine().setGate(nullptr);
  peakCap.reset();
  hardCap.reset();
  context.conductor = Conductor(); // before the log that it writes to
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void MemoryServices::Impl::catchUp() {
  if (!inStep && !isEvaluating)
    return;
  if (context.conductor.isEnabled())
    context.engine().settle(/*all=*/false);
  tellActors(event::Poll{});
  context.conductor.measure(int64_t(context.usedBytes()));
}

/// Gives State Stagehand its watermarks: its own, or else those of the service that it is beside.
void MemoryServices::Impl::giveWatermarks(StateStagehandConfig &config, const ActivationStagehandConfig &activation,
                                          const WeightStagehandConfig *weights) const {
  uint64_t budget = std::min<uint64_t>(context.device->memory().budget(Space::DeviceDram), uint64_t(1) << 60);
  if (!config.highWatermarkMiB && activation.enabled) {
    config.highWatermarkMiB = activation.highWatermarkMiB;
    config.lowWatermarkMiB = activation.lowWatermarkMiB;
  } else if (!config.highWatermarkMiB && weights) {
    WeightLimits limits = weights->limits({.vramBudgetBytes = int64_t(budget)});
    config.highWatermarkMiB = double(limits.highBytes) / 1048576;
    config.lowWatermarkMiB = double(limits.lowBytes) / 1048576;
  }
}

/// Starts the actor of states, first among the actors, as what it moves is needed last.
void MemoryServices::Impl::startStates() {
  auto actor = std::make_unique<StateActor>(context, *statesConfig, checksCopies);
  states = actor.get();
  actors.insert(actors.begin(), std::move(actor));
}

/// Warns unless activations leave before weights do.
void MemoryServices::Impl::compareWatermarks(const WeightStagehandConfig &weights,
                                             const ActivationStagehandConfig &activation) {
  uint64_t budget = std::min<uint64_t>(context.device->memory().budget(Space::DeviceDram), uint64_t(1) << 60);
  WeightLimits limits = weights.limits({.vramBudgetBytes = int64_t(budget)});
  auto text = [](double mib) {
    std::string digits = Json(mib).dump();
    return digits.ends_with(".0") ? digits.substr(0, digits.size() - 2) : digits;
  };
  auto compare = [&](const char *key, double ofActivations, int64_t ofWeights) {
    if (ofActivations * 1048576 > double(ofWeights))
      context.warn(std::string(activationSection) + "." + key + ": " + text(ofActivations) +
                   " MiB is above Weight Stagehand's " + text(double(ofWeights) / 1048576) +
                   " MiB: weights leave before activations do; lower it");
  };
  compare("vram_high_watermark_mb", activation.highWatermarkMiB, limits.highBytes);
  compare("vram_low_watermark_mb", activation.lowWatermarkMiB, limits.lowBytes);
}

uint64_t MemoryServices::Impl::makeRoomOf(EventSink &actor, uint64_t wanted) {
  uint64_t before = context.usedBytes();
  actor.receive(event::Pressure{wanted});
  return before - std::min(before, context.usedBytes());
}

uint64_t MemoryServices::Impl::makeRoom(uint64_t wanted) {
  uint64_t freed = 0;
  for (const auto &actor : actors)
    if (freed < wanted)
      freed += makeRoomOf(*actor, wanted - freed);
  return freed;
}

void MemoryServices::Impl::lowerBudget() {
  DeviceMemory &memory = context.device->memory();
  if (!peakBytes || *peakBytes >= memory.budget(Space::DeviceDram))
    return;
  peakCap = memory.addCap(Space::DeviceDram, *peakBytes);
}

bool MemoryServices::Impl::raiseBudget() {
  bool wasLower = peakCap.has_value();
  peakCap.reset();
  return wasLower;
}

uint64_t MemoryServices::Impl::departFromPeak() {
  uint64_t before = context.device->memory().budget(Space::DeviceDram);
  if (!raiseBudget())
    return 0;
  context.warn("step " + std::to_string(nextStep - 1) + " takes more of device_dram than the " +
               std::to_string(before) + " bytes that were certified, as somebody else holds some");
  return context.device->memory().budget(Space::DeviceDram) - before;
}

void MemoryServices::Impl::takeGate() {
  if (context.conductor.isEnabled() && context.engine().gate() != &context.gate)
    context.engine().setGate(&context.gate);
}

void MemoryServices::Impl::beginStep() {
  takeGate();
  lowerBudget();
  if (precision)
    precision->chooseForms(nextStep - 1);
  inStep = true;
  if (context.conductor.isEnabled()) {
    writeTimed(/*all=*/false);
    phaseClock->beginStep();
    context.conductor.measure(int64_t(context.usedBytes()));
    context.conductor.beginStep(nextStep);
  }
  if (precision)
    precision->applyForms();
  tellActors(event::PhaseBegin{Phase::StepBegin, nextStep++});
}

void MemoryServices::Impl::endStep() {
  tellActors(event::PhaseBegin{Phase::StepEnd});
  if (context.conductor.isEnabled()) {
    context.engine().settle(/*all=*/false);
    context.conductor.measure(int64_t(context.usedBytes()));
    phaseClock->endStep();
    context.conductor.endStep();
    writeTimed(/*all=*/false);
  }
  inStep = false;
  raiseBudget();
  if (conductorLog)
    conductorLog->flush();
}

void MemoryServices::Impl::enter(Phase phase) {
  if (context.conductor.isEnabled() && context.conductor.enterPhase(stepPhase(phase)))
    phaseClock->enter(stepPhase(phase));
  tellActors(event::PhaseBegin{phase});
}

void MemoryServices::Impl::writeTimed(bool all) {
  for (; !timedRecords.empty() && (all || timedRecords.front().times.areKnown()); timedRecords.pop_front()) {
    TimedRecord &first = timedRecords.front();
    first.times.putInto(first.record, context.device->seconds());
    conductorTelemetry->write(first.record);
  }
}

bool MemoryServices::wantsPlan() const { return impl_->planned != nullptr; }

PlannedResidency *MemoryServices::planned() { return impl_->planned ? &impl_->planned->planned() : nullptr; }

Residency *MemoryServices::residency() {
  if (impl_->planned)
    return &impl_->planned->planned().residency();
  return statesLeave() == StatesLeave::Always ? &impl_->states->residency() : nullptr;
}

StatesLeave MemoryServices::statesLeave() const {
  if (!impl_->statesConfig)
    return StatesLeave::Never;
  return impl_->states ? StatesLeave::Always : StatesLeave::IfNeeded;
}

void MemoryServices::letStatesLeave(std::span<const GradientOutput> gradients) {
  if (!impl_->states)
    impl_->startStates();
  impl_->states->hold(gradients);
}

bool MemoryServices::reserveHome(uint64_t bytes) { return !impl_->states || impl_->states->reservePinned(bytes); }

bool MemoryServices::checksBudget() const { return impl_->context.conductor.isEnabled() && !impl_->planned; }
bool MemoryServices::spills() const { return impl_->activation || impl_->planned || impl_->options.next; }

/// Returns the bytes that the ring brings for each block, by its label; where several
/// modules have a block of that name, their mean.
static std::map<std::string, int64_t> loadsOf(const WeightStreamer &streamer) {
  std::map<std::string, int64_t> bytes;
  std::map<std::string, std::set<std::string>> modules;
  for (const StreamedParameter &parameter : streamer.parameters()) {
    bytes[parameter.block] += int64_t(parameter.desc.spanBytes());
    modules[parameter.block].insert(parameter.module);
  }
  for (auto &[block, sum] : bytes)
    sum /= int64_t(modules[block].size());
  return bytes;
}

void MemoryServices::expect(const StepProfile &profile, int64_t others) {
  std::vector<uint64_t> peaks, least = leastWithSavedAway(profile);
  int64_t highBytes = std::max<int64_t>(int64_t(impl_->spillsFromBytes) - others, 0);
  for (size_t event = 0; event < profile.events.size(); ++event) {
    uint64_t peak = profile.events[event].peakBytes;
    // Watermarks hold it there, as far as they can.
    if (impl_->activation)
      peak = std::min(peak, std::max(least[event], uint64_t(highBytes)));
    peaks.push_back(uint64_t(std::max<int64_t>(int64_t(peak) + others, 0)));
  }
  std::vector<Departure> away;
  for (uint32_t gap = 0; gap < profile.gaps.size() && impl_->activation; ++gap)
    if (profile.gaps[gap].resident == noIndex)
      away.push_back({gap, profile.gaps[gap].needed});
  std::vector<PlannedBlock> blocks = plannedBlocks(profile, peaks, away);
  if (impl_->weights)
    for (const auto &[label, bytes] : loadsOf(impl_->weights->streamer()))
      for (PlannedBlock &block : blocks)
        if (block.block == label && block.phase != StepPhase::Optimizer)
          block.h2dBytes += bytes;
  impl_->context.conductor.setPlan(std::move(blocks));
}

void MemoryServices::holdTo(std::optional<uint64_t> bytes) { impl_->peakBytes = bytes; }

void MemoryServices::setWatermarks(uint64_t high, uint64_t low) {
  if (impl_->activation)
    impl_->activation->setWatermarks(int64_t(high), int64_t(low));
}

bool MemoryServices::wantsRehearsal() const { return !impl_->toRehearse.is_null(); }

Config MemoryServices::rehearsal(uint64_t others) const {
  Json section = impl_->toRehearse;
  uint64_t high = impl_->spillsFromBytes - std::min(impl_->spillsFromBytes, others);
  section["vram_high_watermark_mb"] = std::max(double(high) / 1048576, 1e-6);
  section["vram_low_watermark_mb"] = 0;
  section["unpinned_max_mb"] = 1e9;
  section["telemetry_enabled"] = section["debug_checksums"] = false;
  Json stagehand = {{"activation_stagehand", std::move(section)}};
  return Config::parse(Json{{"memory", {{"stagehand", std::move(stagehand)}}}}.dump(), "(rehearsal)");
}

RehearsedStep MemoryServices::rehearsed() const {
  return impl_->activation ? impl_->activation->rehearsed() : RehearsedStep();
}

void MemoryServices::prepare(const RehearsedStep &step) {
  impl_->toRehearse = Json();
  if (impl_->activation)
    impl_->activation->prepare(step);
}

void MemoryServices::beginAgain() {
  if (impl_->planned)
    impl_->planned->beginAgain();
}

std::vector<HeldBlock> MemoryServices::blocksThatLeave() {
  if (!impl_->planned)
    return {};
  Residency &residency = impl_->planned->planned().residency();
  residency.settle();
  return residency.blocksThatLeave();
}

void MemoryServices::follow(const StepProfile &profile, const ResidencyPlan &plan,
                            std::optional<AddressPlan> addresses) {
  if (impl_->planned)
    impl_->planned->follow(profile, plan, std::move(addresses));
}

bool MemoryServices::hasItsAddresses() const {
  return !impl_->planned || impl_->planned->planned().hasItsAddresses();
}

std::optional<MeasuredStep> MemoryServices::takeMeasured() {
  return impl_->planned ? impl_->planned->takeMeasured() : std::nullopt;
}

WeightStreamer *MemoryServices::weights() { return impl_->weights ? &impl_->weights->streamer() : nullptr; }
const WeightStreamer *MemoryServices::weights() const { return const_cast<MemoryServices *>(this)->weights(); }

void MemoryServices::beginEvaluation() {
  if (impl_->inStep)
    return;
  impl_->takeGate();
  impl_->isEvaluating = true;
  impl_->tellActors(event::EvaluationBegin{});
}

void MemoryServices::endEvaluation() {
  if (!std::exchange(impl_->isEvaluating, false))
    return;
  impl_->tellActors(event::EvaluationEnd{});
}

void MemoryServices::abortEvaluation() noexcept {
  impl_->isEvaluating = false;
  try {
    impl_->tellActors(event::EvaluationAbort{});
  } catch (const std::exception &error) {
    impl_->context.warn(std::string("memory services: an evaluation could not be aborted in order: ") + error.what());
  }
}

void MemoryServices::setStep(int64_t step) { impl_->nextStep = step; }

void MemoryServices::abortStep() noexcept {
  impl_->abortStep();
  leavePhase();
}

void MemoryServices::Impl::abortStep() noexcept {
  if (!std::exchange(inStep, false))
    return;
  raiseBudget();
  try {
    context.device->drain();
    context.engine().settle(/*all=*/true);
    tellActors(event::StepAbort{});
    if (context.conductor.isEnabled()) {
      phaseClock->endStep();
      context.conductor.abortStep();
      writeTimed(/*all=*/false);
    }
    if (conductorLog)
      conductorLog->flush();
  } catch (const std::exception &error) {
    context.warn(std::string("memory services: the step could not be aborted in order: ") + error.what());
  }
}

void MemoryServices::receive(const Event &event) { deliver(*impl_, event); }

void MemoryServices::Impl::on(const event::PhaseBegin &begin) {
  tellNext(begin);
  if (begin.phase == Phase::StepBegin) {
    abortStep(); // one that nobody ended
    return beginStep();
  }
  if (!inStep)
    return;
  catchUp();
  begin.phase == Phase::StepEnd ? endStep() : enter(begin.phase);
}

void MemoryServices::Impl::on(const event::Submit &submit) {
  tellNext(submit);
  if (inStep)
    tellActors(submit);
}

void MemoryServices::Impl::on(const event::BlockBegin &begin) {
  tellNext(begin);
  if (!inStep && !isEvaluating)
    return;
  catchUp();
  if (context.conductor.isEnabled() && inStep)
    context.conductor.enterBlock(begin.block);
  tellActors(begin);
}

void MemoryServices::Impl::on(const event::BlockEnd &end) {
  tellNext(end);
  if (!inStep && !isEvaluating)
    return;
  catchUp();
  tellActors(end);
}

/// A tensor that the user's sink took away is the executor's to complain of.
template <typename Other> static bool isTakenAway(const Other &other) {
  if constexpr (requires { other.saved; })
    return !other.saved;
  else if constexpr (requires { other.gradient; })
    return !other.sum || !other.gradient;
  else if constexpr (requires { other.sum; })
    return !other.sum;
  else if constexpr (requires { other.value; })
    return !other.value;
  else
    return false;
}

template <typename Other> void MemoryServices::Impl::on(const Other &other) {
  tellNext(other);
  if (!inStep || isTakenAway(other))
    return;
  catchUp();
  tellActors(other);
}

/// The first who wants it brings it.
void MemoryServices::Impl::on(const event::OfferInput &offer) {
  std::tuple key(static_cast<const void *>(offer.program.image().get()), offer.program.index(), offer.input);
  auto take = [&](EventSink *sink, EventSink *bringer) {
    bool isTaken = false;
    sink->receive(event::OfferInput{offer.program, offer.input, offer.value, isTaken});
    if (isTaken)
      bringers[key] = bringer;
    offer.isDeferred |= isTaken;
    return isTaken;
  };
  if (options.next && take(options.next, nullptr))
    return;
  if (inStep || isEvaluating)
    std::ranges::any_of(actors, [&](const auto &actor) { return take(actor.get(), actor.get()); });
}

void MemoryServices::Impl::on(const event::BlockInput &need) {
  EventSink *bringer = bringers.find({need.program.image().get(), need.program.index(), need.input})->second;
  (bringer ? bringer : options.next)->receive(need);
}

void MemoryServices::Impl::on(const event::OfferResults &offer) {
  resultWatchers.clear();
  auto ask = [&](EventSink *sink) {
    bool isWatching = false;
    sink->receive(event::OfferResults{offer.program, isWatching});
    if (isWatching)
      resultWatchers.push_back(sink);
  };
  if (options.next)
    ask(options.next);
  if (inStep)
    for (const auto &actor : actors)
      ask(actor.get());
  offer.areWatched |= !resultWatchers.empty();
}

/// The block goes on: what has ended of copies waits for the next event.
void MemoryServices::Impl::on(const event::BlockResult &written) {
  for (EventSink *watcher : resultWatchers)
    watcher->receive(written);
}

PrecisionActor *MemoryServices::precision() const { return impl_->precision; }
Json MemoryServices::precisionReport() const { return impl_->precision ? impl_->precision->report() : Json(); }
Json MemoryServices::precisionRecord() const { return impl_->precision ? impl_->precision->record() : Json(); }
std::string MemoryServices::precisionState() const {
  return impl_->precision ? impl_->precision->saveState() : std::string();
}

void MemoryServices::finishRecords() {
  Impl &s = *impl_;
  if (!s.phaseClock)
    return;
  if (!s.inStep)
    s.phaseClock->wait();
  s.writeTimed(/*all=*/false);
}

Json MemoryServices::conductorRecord() const {
  Impl &s = *impl_;
  Json record = s.context.conductor.record();
  if (record.is_null())
    return record;
  if (!s.inStep)
    s.phaseClock->wait();
  s.phaseClock->times().putInto(record, s.context.device->seconds());
  return record;
}

Json MemoryServices::weightRecord() const { return impl_->weights ? impl_->weights->streamer().record() : Json(); }
Json MemoryServices::stateRecord() const { return impl_->states ? impl_->states->record() : Json(); }
Json MemoryServices::activationRecord() const {
  if (impl_->planned)
    return impl_->planned->record();
  return impl_->activation ? impl_->activation->record() : Json();
}

} // namespace segue::inline runtime
