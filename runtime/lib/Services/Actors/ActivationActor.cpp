//===- ActivationActor.cpp - activations that leave and return ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ActivationActor.h"
#include "../../Program/SubmitLane.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// Hints hands to the policy what Conductor pushes.
class ActivationActor::Hints final : public ActivationAdapter {
public:
  Hints(Recorded<ActivationStagehand> &policy, ActivationKnobs knobs)
      : ActivationAdapter("activation_stagehand", knobs_), knobs_(knobs), policy_(policy) {}

  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    ActivationAdapter::applyHints(hints, phase);
    ActivationHints now{knobs_.maxD2h, knobs_.maxH2d, hints.suppressSpeculative};
    if (now.maxInflightD2h == last_.maxInflightD2h && now.maxInflightH2d == last_.maxInflightH2d &&
        now.suppressSpeculative == last_.suppressSpeculative)
      return;
    policy_.tell(activation_calls::hints, last_ = now);
  }

private:
  ActivationKnobs knobs_;
  ActivationHints last_;
  Recorded<ActivationStagehand> &policy_;
};

static std::shared_ptr<EventLog> openLog(const ServiceContext &context, Json section) {
  if (context.recordEvents.empty())
    return nullptr;
  return std::make_shared<EventLog>(context.recordEvents / "activation.json", headOf("activation", "config", section),
                                    context.warn);
}

ActivationActor::ActivationActor(ServiceContext &context, ActivationStagehandConfig config, Json section)
    : context_(context), policy_(openLog(context, std::move(section)), config), residency_(context.device),
      recomputer_(context.device) {
  residency_.setJudge([this](const Item &item) { return isGood(*byItem_.at(item.id)); });
  std::vector<uint64_t> classBytes;
  for (int64_t size : config.poolClassesMiB)
    classBytes.push_back(uint64_t(size) << 20);
  std::vector<uint32_t> counts(config.slabsPerClass.begin(), config.slabsPerClass.end());
  pool_.emplace(context.device, classBytes, counts, PinnedPool::Use::Homes);
  if (config.telemetry.enabled)
    telemetry_.emplace(config.telemetry.file, context.warn);
  if (!context.conductor.isEnabled())
    return;
  hints_ = std::make_unique<Hints>(policy_, ActivationKnobs{int(config.maxInflightD2h), int(config.maxInflightH2d)});
  service_ = context.conductor.attach(*hints_);
  if (uint64_t bytes = pool_->totalBytes(); bytes && !reservePinned(int64_t(bytes))) {
    context.conductor.detach(service_);
    std::string rule = "at least the pool of activation_stagehand, " + std::to_string(bytes >> 20) + " MiB";
    throw ConfigError(conductorSection, "pinned_cap_mb", rule, rule);
  }
}

/// Asks Conductor for leave to hold so much page-locked memory from here on.
bool ActivationActor::reservePinned(int64_t bytes) {
  if (!context_.conductor.isEnabled())
    return true;
  uint64_t id = context_.newId();
  Grant grant = context_.conductor.reserve(
      {.id = id, .owner = service_, .bytes = bytes, .mode = BudgetMode::Hard, .resource = BudgetResource::Pinned});
  if (grant.status == GrantStatus::Denied)
    return false;
  poolReservations_.push_back(id);
  return true;
}

ActivationActor::~ActivationActor() {
  forgetStep();
  if (hints_) {
    for (uint64_t id : poolReservations_)
      context_.conductor.release(id);
    context_.conductor.detach(service_);
  }
}

//===----------------------------------------------------------------------===//
// The course of a step
//===----------------------------------------------------------------------===//

void ActivationActor::receive(const Event &event) { deliver(*this, event); }

void ActivationActor::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    policy_.tell(activation_calls::stepBegin, begin.step);
    figures_.beginStep();
    stepBegan_ = now();
  }
  if (begin.phase == Phase::StepEnd)
    return endStep();
  if (begin.phase == Phase::Optimizer) // what was computed from a copy that failed is not used
    settleQueued(/*all=*/true);
  if (begin.phase != Phase::Backward)
    return;
  releaseDropped();
  int64_t away = 0;
  for (const auto &[id, held] : held_)
    if (!held->device() && (held->host() || held->recompute))
      away += int64_t(held->bytes);
  figures_.onTurn(used() + away);
  order_.clear();
  for (auto &[id, held] : held_) {
    held->ordered = false;
    if (!held->needed)
      order_.push_back(held.get());
  }
  std::ranges::sort(order_, [](const Held *a, const Held *b) {
    return std::tuple(b->place.submit, a->order, std::string_view(a->id)) <
           std::tuple(a->place.submit, b->order, std::string_view(b->id));
  });
  for (Held *held : std::exchange(order_, {}))
    addNeeds(*held);
  std::vector<std::string> ids;
  for (const Held *held : order_)
    ids.push_back(held->id);
  issue(policy_.tell(activation_calls::backwardBegin, ids, used()));
}

void ActivationActor::endStep() {
  while (const Item *oldest = residency_.oldest(Tier::Host)) {
    waitFor(oldest->host().tensor.storage()->writes());
    residency_.poll();
    noteEnds(Hears::Nothing);
  }
  settleQueued(/*all=*/true);
  double stalled = settleStalls(), computed = now() - stepBegan_ - stalled;
  uint64_t budget = std::min<uint64_t>(context_.device->memory().budget(Space::DeviceDram), uint64_t(1) << 60);
  if (context_.twin) {
    computed = context_.twin->computeSeconds;
    budget = context_.twin->budgetBytes;
  }
  auto toBytes = [](double mib) { return int64_t(mib * double(1 << 20)); };
  const ActivationStagehandConfig &config = policy_->config();
  toRecompute_ = figures_.toRecompute(
      computed, linkRates(), {int64_t(budget), toBytes(config.highWatermarkMiB), toBytes(config.lowWatermarkMiB)});
  grown_ = policy_.tell(activation_calls::stepEnd);
  for (const HostBufferBook::Growth &growth : grown_)
    if (uint32_t added = grow(growth); added < growth.slabs)
      policy_.tell(activation_calls::growthFailed, growth.poolClass, growth.slabs - added);
  policy_.flush();
  writeRecord();
  forgetStep();
}

uint32_t ActivationActor::grow(const HostBufferBook::Growth &growth) {
  if (context_.twin) // its host memory is not the one that counts
    return uint32_t(growth.slabs);
  if (!reservePinned(growth.slabs * int64_t(pool_->classBytes(growth.poolClass))))
    return 0;
  return pool_->grow(growth.poolClass, uint32_t(growth.slabs));
}

void ActivationActor::prepare(const RehearsedStep &step) {
  toRecompute_ = step.toRecompute;
  for (const HostBufferBook::Growth &growth : step.growth)
    if (uint32_t added = grow(growth))
      policy_.tell(activation_calls::poolGrown, growth.poolClass, added);
}

void ActivationActor::on(const event::StepAbort &) {
  settleStalls();
  policy_.tell(activation_calls::abortStep);
  policy_.flush();
  writeRecord();
  forgetStep();
}

void ActivationActor::writeRecord() {
  lastRecord_ = policy_->telemetry();
  if (telemetry_)
    telemetry_->write(lastRecord_);
}

void ActivationActor::forgetStep() {
  residency_.settle();
  for (auto &[id, held] : held_) {
    if (held->isComing())
      context_.device->wait(held->device().storage()->writes());
    forgetItem(*held);
  }
  residency_.takeEnds();
  ends_.clear();
  byItem_.clear();
  held_.clear();
  reclaimSlabs();
  byStorage_.clear();
  inUse_.clear();
  byPlace_.clear();
  names_.clear();
  recomputer_.forget();
  queued_.clear();
  stalls_.clear();
  putOff_.clear();
  order_.clear();
}

//===----------------------------------------------------------------------===//
// Records
//===----------------------------------------------------------------------===//

/// Returns a name that is unique: modules that are stitched, and micro-batches, save under equal names.
std::string ActivationActor::uniqueId(const std::string &name) {
  int count = ++names_[name];
  return count == 1 ? name : name + "#" + std::to_string(count);
}

ActivationActor::Held *ActivationActor::findStorage(const Tensor &tensor) {
  auto it = byStorage_.find(tensor.storage()->id());
  return it == byStorage_.end() ? nullptr : it->second;
}

void ActivationActor::know(Held &held, const Tensor &tensor) {
  uint64_t id = tensor.storage()->id();
  held.storages.insert(id);
  byStorage_[id] = &held;
}

void ActivationActor::on(const event::Submit &submit) {
  releaseDropped();
  const auto &[program, inputs] = submit;
  figures_.onSubmit(program, recomputer_.onSubmit(program, inputs));
}

void ActivationActor::on(const event::Save &save) {
  const auto &[program, output, saved] = save;
  if (saved.desc().layout.space != Space::DeviceDram)
    return;
  SavedPlace place = recomputer_.placeOf(program, output);
  SaveEvent event;
  event.id = uniqueId(program.output(output).name);
  event.bytes = int64_t(saved.desc().spanBytes());
  event.usedBytes = used();
  event.notOwned = saved.storage()->isExternal();
  int depth = depthOf(place);
  event.recomputable = depth > 0;
  size_t number = figures_.count();
  event.planRecompute = depth > 0 && number < toRecompute_.size() && toRecompute_[number];
  Held *sharing = event.notOwned ? nullptr : findStorage(saved);
  if (sharing && *sharing->deviceDesc == saved.desc())
    event.storage = sharing->id;
  else
    sharing = nullptr;
  if (sharing || event.notOwned)
    figures_.onSaveOfNothing();
  else
    figures_.onSave(place, takenBytes(saved.desc()), occupied(), madeAgain(place));
  SaveDecision decision = policy_.tell(activation_calls::save, event);
  for (const std::string &id : decision.finalized)
    settleSpill(find(id));
  if (decision.kind == SaveDecision::Kind::Share) {
    ++sharing->uses;
    byPlace_.push_back({place, sharing});
    if (Tensor host = sharing->host())
      saved = std::move(host);
    sharing->given = saved.storage();
    return;
  }
  if (event.notOwned) { // its owner frees it
    issue(policy_.tell(activation_calls::release, event.id, used()));
    return;
  }

  auto made = std::make_unique<Held>();
  Held &held = *made;
  held.id = event.id;
  held.bytes = uint64_t(event.bytes);
  held.deviceDesc = saved.sharedDesc();
  held.place = place;
  const Value &value = program.output(output);
  held.owner = context_.device->memory().intern({.program = program.name(),
                                                 .value = value.name,
                                                 .role = std::string(name(value.role)),
                                                 .block = {},
                                                 .location = value.location});
  held.number = number;
  held.depth = depth;
  held.kept = saved.storage();
  for (const SavePoint &point : program.savePoints())
    if (!point.aliasesInput && point.value == output) {
      held.order = point.backwardOrder;
      held.block = point.block;
    }
  know(held, saved);
  byPlace_.push_back({place, &held});
  held_[held.id] = std::move(made);
  if (decision.kind == SaveDecision::Kind::Spill)
    spill(held, decision.buffer, saved);
  else if (decision.kind == SaveDecision::Kind::Recompute)
    dropToRecompute(held, saved);
  else
    setIdle(held, true);
  held.given = saved.storage();
}

void ActivationActor::on(const event::Restore &restore) {
  const auto &[program, input, saved] = restore;
  Held *held = findStorage(saved);
  if (!held)
    return;
  figures_.onNeed(held->number, occupied(), held->depth ? recomputer_.bytesToBring(held->place) : 0);
  Tensor device = bring(*held);
  setIdle(*held, false);
  makeWhatComesAlong(*held);
  inUse_[{program.image().get(), program.index(), input}] = held;
  if (held->device())
    saved = std::move(device);
}

Tensor ActivationActor::bring(Held &held) {
  using Kind = NeedDecision::Kind;
  // A wait for another source may have found that this one's copy out has ended and its
  // device memory is free: the policy would rescue what is gone.
  noteEnds();
  NeedDecision decision = policy_.tell(activation_calls::need, held.id, used());
  for (const std::string &id : decision.finalized)
    settleRestore(find(id));
  held.needed = true;
  while (!order_.empty() && order_.front()->needed)
    order_.pop_front();
  if (decision.kind == Kind::Wait || decision.kind == Kind::Restore)
    settleRestore(held);
  if (held.device() && decision.kind != Kind::Rescue &&
      !context_.device->isDone(held.device().storage()->writes()))
    noteStall(watchCopy(*context_.device, held.device(), lastStall_));
  if (held.recompute && !held.device())
    recompute(held);
  Tensor device;
  if (held.device()) {
    device = residency_.need(*held.item);
    know(held, device);
  }
  issue(decision.issued);
  if (device)
    return device;
  std::shared_ptr<Storage> storage = held.kept.lock();
  return storage ? Tensor::in(std::move(storage), held.deviceDesc) : Tensor();
}

//===----------------------------------------------------------------------===//
// What is computed again
//===----------------------------------------------------------------------===//

/// The greatest depth of a chain of values to be made again. All of them are made before
/// the first is used, and stay until each is: a long chain would hold as much as if nothing
/// had been dropped.
static constexpr int deepestChain = 4;

int ActivationActor::depthOf(SavedPlace place) const {
  if (!recomputer_.canDrop(place))
    return 0;
  int depth = 1;
  for (SavedPlace source : recomputer_.sourcesOf(place))
    if (Held *held = findPlace(source); held && held->recompute)
      depth = std::max(depth, held->depth + 1);
  return depth <= deepestChain ? depth : 0;
}

/// Returns the bytes that a tensor of `desc` counts for in the books of device_dram.
int64_t ActivationActor::takenBytes(const TensorDesc &desc) const {
  return int64_t(context_.device->takenBytes(Space::DeviceDram, desc.spanBytes(), desc.layout.alignment));
}

std::optional<MadeAgain> ActivationActor::madeAgain(SavedPlace place) const {
  const Recomputation *again = recomputer_.find(place);
  if (!again)
    return std::nullopt;
  MadeAgain made{.cost = again->cost, .runBytes = int64_t(again->program.arenaBytes())};
  for (const Value &output : again->program.outputs())
    made.runBytes += takenBytes(output.desc());
  // Each wants a range of its own, and what is free lies in several: what two programs
  // work in does not move, and nothing else brings the tensor back.
  made.runBytes += std::max<int64_t>(made.runBytes / 2, 1024);
  made.sources = recomputer_.sourcesOf(place);
  for (const auto &[other, output] : recomputer_.madeWith(place))
    made.together.push_back(other);
  return made;
}

/// Returns the bytes in use, without what anybody gives up when asked.
int64_t ActivationActor::occupied() const {
  return used() - idleBytes_ - int64_t(context_.device->lane().droppableBytes(Space::DeviceDram));
}

void ActivationActor::setIdle(Held &held, bool isIdle) {
  if (std::exchange(held.isIdle, isIdle) != isIdle)
    idleBytes_ += (isIdle ? 1 : -1) * takenBytes(*held.deviceDesc);
}

void ActivationActor::dropToRecompute(Held &held, Tensor &saved) {
  held.recompute = true;
  recomputer_.keepRoom(held.place);
  saved = Recomputer::placeholder(saved, held.id);
  know(held, saved);
}

void ActivationActor::loseHost(Held &held, Error why) {
  held.recompute = true;
  held.lost = std::move(why);
  recomputer_.keepRoom(held.place);
  forgetItem(held);
}

void ActivationActor::makeAgain(Held &held) {
  std::vector<Tensor> sources;
  for (SavedPlace source : recomputer_.sourcesOf(held.place)) {
    Held *other = findPlace(source);
    sources.push_back(other ? bring(*other) : Tensor());
    if (!sources.back())
      throw Error(ErrorCode::StateTransition, "activation \"" + held.id +
                                                  "\" is to be computed again from saved output " +
                                                  std::to_string(source.output) + ", which backward has freed");
  }
  std::vector<Tensor> outputs = recomputer_.run(held.place, std::move(sources));
  // A tensor that comes along from the same run is not made a second time.
  for (const auto &[place, output] : recomputer_.madeWith(held.place))
    if (Held *other = findPlace(place); other && other->recompute && !other->device()) {
      holdItem(*other, outputs[output]);
      setIdle(*other, true);
    }
}

/// A file says of a run that what it takes is there when backward first reads one of its
/// outputs. From then on the others cannot be made once more: they are made now, and stay.
void ActivationActor::makeWhatComesAlong(const Held &held) {
  if (!recomputer_.find(held.place))
    return;
  for (const auto &[place, output] : recomputer_.madeWith(held.place)) {
    Held *other = findPlace(place);
    if (!other || other == &held || !other->recompute || other->needed)
      continue;
    if (!other->device())
      recompute(*other);
    setIdle(*other, false);
  }
}

void ActivationActor::recompute(Held &held) {
  try {
    makeAgain(held);
  } catch (const Error &error) {
    // There was room for it when the value was saved, and nobody kept that since.
    if (!held.lost || error.code() != ErrorCode::DeviceOom)
      throw;
    throw held.lost->within("\"" + held.id + "\" cannot be computed again either (" + error.what() + ")");
  }
}

ActivationActor::Held *ActivationActor::findPlace(SavedPlace place) const {
  for (const auto &[at, held] : byPlace_)
    if (at == place)
      return held;
  return nullptr;
}

/// Adds `held` to the order of needs, after what it is made from.
void ActivationActor::addNeeds(Held &held) {
  if (std::exchange(held.ordered, true))
    return;
  if (held.recompute)
    for (SavedPlace source : recomputer_.sourcesOf(held.place))
      if (Held *other = findPlace(source); other && !other->needed)
        addNeeds(*other);
  order_.push_back(&held);
}

void ActivationActor::on(const event::Free &free) {
  const auto &[program, input] = free;
  auto it = inUse_.find({program.image().get(), program.index(), input});
  if (it == inUse_.end())
    return;
  Held &held = *it->second;
  inUse_.erase(it);
  release(held);
}

/// Returns true if nobody but those who carry the decisions out has a handle of what the program returned.
bool ActivationActor::isDropped(const Held &held) const {
  if (held.needed || !held.given)
    return false;
  std::shared_ptr<Storage> given = held.given->lock();
  if (!given)
    return true;
  long own = 1; // this handle
  for (Tier tier : {Tier::Device, Tier::Host})
    own += held.item && held.item->at(tier).tensor && held.item->at(tier).tensor.storage() == given;
  for (const PinnedSlab &slab : slabs_)
    own += slab.storage == given;
  return given.use_count() <= own;
}

/// A graph may be dropped without a backward: what it saved goes, wherever it is.
void ActivationActor::releaseDropped() {
  std::vector<std::string> dropped;
  for (const auto &[id, held] : held_)
    if (isDropped(*held))
      dropped.push_back(id);
  for (const std::string &id : dropped) {
    Held &held = find(id);
    if (std::exchange(held.putOff, false)) {
      takeOut(putOff_, held);
      policy_.tell(activation_calls::transferDone, id, used());
    }
    if (held.isComing()) {
      context_.device->wait(held.device().storage()->writes());
      residency_.poll();
      noteEnds();
    }
    for (int uses = held.uses; uses > 0; --uses)
      release(held);
  }
}

void ActivationActor::release(Held &held) {
  std::string id = held.id;
  bool last = --held.uses == 0;
  bool isLeaving = held.isLeaving();
  if (last && isLeaving) { // it was rescued: its slab is busy until the copy ends
    freeDevice(held);
    residency_.abandon(*std::exchange(held.item, nullptr));
  } else if (last) {
    forgetItem(held);
  }
  std::vector<std::string> issued = policy_.tell(activation_calls::release, id, used());
  if (last) {
    takeOut(order_, held);
    for (uint64_t storage : held.storages)
      byStorage_.erase(storage);
    held.storages.clear();
    std::erase_if(byPlace_, [&](const auto &entry) { return entry.second == &held; });
    if (!isLeaving)
      held_.erase(id);
  }
  issue(issued);
}

} // namespace segue::inline runtime
