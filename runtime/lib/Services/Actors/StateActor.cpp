//===- StateActor.cpp - states that leave under pressure ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StateActor.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

using Kind = StateEvent::Kind;

static std::shared_ptr<EventLog> openLog(const ServiceContext &context, const StateStagehandConfig &config) {
  if (context.recordEvents.empty())
    return nullptr;
  Json section;
  section["window_blocks"] = config.windowBlocks;
  if (config.highWatermarkMiB) {
    section["vram_high_watermark_mb"] = *config.highWatermarkMiB;
    section["vram_low_watermark_mb"] = *config.lowWatermarkMiB;
  }
  return std::make_shared<EventLog>(context.recordEvents / "state.json", headOf("state", "config", section),
                                    context.warn);
}

StateActor::StateActor(ServiceContext &context, const StateStagehandConfig &config, bool checksCopies)
    : context_(context), policy_(openLog(context, config), limitsOf(config)), residency_(context.device),
      blocks_(context.device, residency_) {
  blocks_.bringParameters(false);
  residency_.setWarn(context.warn);
  residency_.checkCopies(checksCopies);
  residency_.takeTokens(true);
  if (config.telemetry.enabled)
    telemetry_.emplace(config.telemetry.file, context.warn);
  if (context.conductor.isEnabled())
    service_ = context.conductor.registerOwner("state_stagehand");
}

StateActor::~StateActor() {
  if (!context_.conductor.isEnabled())
    return;
  for (uint64_t id : reservations_)
    context_.conductor.release(id);
  context_.conductor.detach(service_);
}

void StateActor::hold(std::span<const GradientOutput> gradients) {
  for (const auto &[program, output, parameter] : gradients)
    gradients_[{program.image().get(), program.index(), output}] = parameter + " (gradient)";
}

bool StateActor::reservePinned(uint64_t bytes) {
  if (!context_.conductor.isEnabled())
    return true;
  uint64_t id = context_.newId();
  Grant grant = context_.conductor.reserve({.id = id,
                                            .owner = service_,
                                            .bytes = int64_t(bytes),
                                            .mode = BudgetMode::Hard,
                                            .resource = BudgetResource::Pinned});
  if (grant.status == GrantStatus::Denied)
    return false;
  reservations_.push_back(id);
  return true;
}

StateStagehand::Moves StateActor::tell(const StateEvent &event) { return policy_.tell(state_calls::event, event); }

//===----------------------------------------------------------------------===//
// Items by name
//===----------------------------------------------------------------------===//

const std::string *StateActor::nameOf(Item::Id item) const {
  auto found = names_.find(item);
  return found == names_.end() ? nullptr : &found->second;
}

Item *StateActor::find(const std::string &id) {
  auto found = items_.find(id);
  return found == items_.end() ? nullptr : residency_.find(found->second);
}

/// Names an item; modules that are stitched may call theirs alike.
const std::string &StateActor::nameItem(const Item &item, const std::string &wanted) {
  std::string id = wanted;
  for (int count = 2; items_.contains(id); ++count)
    id = wanted + "#" + std::to_string(count);
  items_[id] = item.id;
  return names_[item.id] = id;
}

const std::string &StateActor::know(Item &item, const std::string &wanted, bool isState) {
  if (const std::string *id = nameOf(item.id))
    return *id;
  const std::string &id = nameItem(item, wanted);
  const TensorDesc &desc = *item.onDevice;
  int64_t bytes =
      int64_t(context_.device->takenBytes(Space::DeviceDram, desc.spanBytes(), std::max(1u, desc.layout.alignment)));
  tell({.kind = Kind::Know, .id = id, .bytes = bytes, .isState = isState, .isOnDevice = item.device().exists()});
  return id;
}

void StateActor::forgetName(Item::Id item) {
  auto named = names_.find(item);
  if (named == names_.end())
    return;
  tell({.kind = Kind::Forget, .id = named->second});
  items_.erase(named->second);
  names_.erase(named);
}

void StateActor::forget(Item &item) {
  forgetName(item.id);
  residency_.forget(item);
}

/// Forgets the gradients of the step, which are nobody's any more.
void StateActor::forgetGradients() {
  for (const auto &[id, home] : gradientHomes_)
    if (Item *item = find(id))
      forget(*item);
}

//===----------------------------------------------------------------------===//
// The course of a step
//===----------------------------------------------------------------------===//

void StateActor::on(const event::PhaseBegin &begin) {
  blocks_.beginPhase(begin.phase);
  if (begin.phase == Phase::StepBegin) {
    blocks_.reset();
    forgetGradients();
    inStep_ = true;
    tell({.kind = Kind::StepBegin, .number = begin.step});
  } else if (begin.phase == Phase::StepEnd) {
    forgetGradients();
    tell({.kind = Kind::StepEnd});
    writeRecord();
  } else if (inStep_) {
    carryOut(tell({.kind = Kind::Watch, .usedBytes = used()}));
  }
}

void StateActor::on(const event::StepAbort &) {
  residency_.settle();
  noteLeft();
  blocks_.reset();
  forgetGradients();
  tell({.kind = Kind::AbortStep});
  writeRecord();
}

void StateActor::writeRecord() {
  inStep_ = false;
  ordered_.reset();
  policy_.flush();
  lastRecord_ = policy_->telemetry();
  if (telemetry_)
    telemetry_->write(lastRecord_);
}

/// The order in which a program needs what lives on the host.
void StateActor::on(const event::Submit &submit) {
  const auto &[program, inputs] = submit;
  ordered_.reset();
  bool brings = false;
  for (uint32_t i = 0; i < inputs.size() && !brings; ++i)
    brings = inputs[i] && residency_.findHome(inputs[i]);
  for (uint32_t i = 0; i < inputs.size() && !brings; ++i)
    brings = inputs[i] && program.inputs()[i].role == Role::State && residency_.isHome(inputs[i]);
  if (!brings)
    return;
  const BlockUses &uses = blocks_.usesOf(program);
  std::vector<std::string> ids(inputs.size());
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    const Value &declared = program.inputs()[i];
    if (!uses.streamable[i] || !inputs[i] || !blocks_.brings(program, i, inputs[i]))
      continue;
    Item &item = residency_.adopt(inputs[i], declared.name, /*owner=*/0, declared.sharedDesc);
    ids[i] = know(item, declared.name, declared.role == Role::State);
  }
  auto idsOf = [&](const std::vector<uint32_t> &touched) {
    std::vector<std::string> known;
    for (uint32_t input : touched)
      if (!ids[input].empty())
        known.push_back(ids[input]);
    return known;
  };
  tell({.kind = Kind::Program});
  for (const BlockUse &block : uses.blocks)
    tell({.kind = Kind::Block, .first = idsOf(block.firstTouched), .last = idsOf(block.lastTouched)});
  ordered_ = {program.image().get(), program.index()};
}

void StateActor::on(const event::OfferInput &offer) { blocks_.offer(offer); }

void StateActor::on(const event::BlockBegin &begin) {
  size_t block = blocks_.begin(begin);
  if (ordered_ == std::pair<const void *, size_t>(begin.program.image().get(), begin.program.index()))
    carryOut(tell({.kind = Kind::BlockBegin, .number = int64_t(block), .usedBytes = used()}));
  else if (inStep_)
    carryOut(tell({.kind = Kind::Watch, .usedBytes = used()}));
}

void StateActor::on(const event::BlockInput &need) {
  Item *item = blocks_.find(need);
  if (!item)
    return;
  const Value &declared = need.program.inputs()[need.input];
  tell({.kind = Kind::Need, .id = know(*item, declared.name, declared.role == Role::State)});
  ConductorGate::As as(context_.gate, service_);
  blocks_.bring(need, *item);
}

void StateActor::on(const event::BlockEnd &end) {
  std::span<const BlockItems::Touched> touched = blocks_.end(end);
  bool isOrdered = ordered_ == std::pair<const void *, size_t>(end.program.image().get(), end.program.index());
  StateStagehand::Moves moves;
  if (isOrdered)
    moves = tell({.kind = Kind::BlockEnd, .number = int64_t(blocks_.lastBlock()), .usedBytes = used()});
  // A gradient that the session has given away is used up; its home has one holder more.
  for (auto [input, id] : touched)
    if (Item *item = residency_.find(id);
        item && end.program.inputs()[input].role == Role::Gradient && item->host().tensor.storage().use_count() <= 2) {
      std::erase(moves.leaves, *nameOf(id));
      forget(*item);
    }
  carryOut(moves);
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

/// Returns memory of the host for a gradient, kept from step to step unless somebody still holds the tensor.
Tensor StateActor::homeOf(const std::string &id, const Tensor &value) {
  Tensor &home = gradientHomes_[id];
  TensorDesc desc = value.desc();
  desc.layout.offset = 0;
  if (home && home.isSoleOwner() && home.storage()->bytes() >= desc.spanBytes()) {
    home.storage()->renew();
    desc.layout.space = home.desc().layout.space;
    home = Tensor::in(home.storage(), std::make_shared<const TensorDesc>(std::move(desc)));
    return home;
  }
  bool isGranted = (home && context_.device->isHomeSpace(home.desc().layout.space)) || reservePinned(desc.spanBytes());
  OwnerId owner = context_.device->memory().intern({.value = id, .role = std::string(name(Role::Gradient))});
  return home = emptyHome(context_.device, std::move(desc), isGranted, owner);
}

/// The program's `value` becomes an item, whose home the program is given.
void StateActor::holdGradient(Tensor &value, const std::string &id) {
  Tensor home = homeOf(id, value);
  OwnerId owner =
      context_.device->memory().intern({.value = id, .role = std::string(name(Role::Gradient))});
  Item &item = residency_.hold(value, id, owner, ItemLifetime::Session);
  residency_.giveHome(item, home);
  value = std::move(home);
  know(item, id, /*isState=*/false);
  carryOut(tell({.kind = Kind::Watch, .usedBytes = used()}));
}

void StateActor::on(const event::Output &made) {
  const auto &[program, output, value] = made;
  auto gradient = gradients_.find({program.image().get(), program.index(), output});
  if (gradient == gradients_.end() || value.desc().layout.space != Space::DeviceDram)
    return;
  // The sum of the batches before has the name.
  holdGradient(value, items_.contains(gradient->second) ? gradient->second + " +" : gradient->second);
}

void StateActor::on(const event::Accumulate &addition) {
  ConductorGate::As as(context_.gate, service_);
  Item *sum = residency_.findHome(addition.sum), *gradient = residency_.findHome(addition.gradient);
  sum_ = sum ? *nameOf(sum->id) : "";
  std::optional<Item::Id> ended[] = {sum ? std::optional(sum->id) : std::nullopt,
                                     gradient ? std::optional(gradient->id) : std::nullopt};
  blocks_.take(addition);
  for (const std::optional<Item::Id> &item : ended)
    if (item)
      forgetName(*item);
}

void StateActor::on(const event::Accumulated &addition) {
  if (!sum_.empty())
    holdGradient(addition.sum, sum_);
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

void StateActor::carryOut(const StateStagehand::Moves &moves) {
  for (const std::string &id : moves.leaves)
    leave(id);
  for (const std::string &id : moves.fetches)
    fetchAhead(id);
}

void StateActor::leave(const std::string &id) {
  Item *item = find(id);
  if (!item)
    return;
  ConductorGate::As as(context_.gate, service_);
  residency_.leave(*item);
  leaving_.push_back(item->id);
}

/// Takes no room from others: those would have to make it again.
void StateActor::fetchAhead(const std::string &id) {
  Item *item = find(id);
  if (!item || item->device().exists())
    return;
  bool isDenied = context_.usedBytes() + item->onDevice->spanBytes() >
                  context_.device->memory().budget(Space::DeviceDram);
  if (!isDenied) {
    ConductorGate::As as(context_.gate, service_);
    bool before = std::exchange(isMakingRoom_, true);
    try {
      isDenied = !residency_.tryFetch(*item, {.priority = TransferPriority::Speculative, .owner = item->owner});
      isMakingRoom_ = before;
    } catch (const Error &error) {
      isMakingRoom_ = before;
      if (error.code() != ErrorCode::DeviceOom)
        throw;
      isDenied = true;
    }
  }
  if (isDenied)
    tell({.kind = Kind::Denied, .id = id});
}

/// The policy hears of what has left, or stays as its copy failed.
void StateActor::noteLeft() {
  for (const Residency::End &end : residency_.takeEnds())
    if (end.tier == Tier::Device && end.failure)
      if (const std::string *id = nameOf(end.item))
        tell({.kind = Kind::Denied, .id = *id});
  for (size_t count = leaving_.size(); count > 0; --count) {
    Item::Id id = leaving_.front();
    leaving_.pop_front();
    Item *item = residency_.find(id);
    const std::string *named = nameOf(id);
    if (!item || !named)
      continue;
    if (item->device().state == CopyState::Leaving)
      leaving_.push_back(id);
    else if (!item->device().exists())
      tell({.kind = Kind::Left, .id = *named});
    else if (item->isKept())
      tell({.kind = Kind::Stayed, .id = *named});
  }
}

void StateActor::on(const event::Poll &) {
  residency_.poll();
  noteLeft();
}

void StateActor::on(const event::Pressure &pressure) {
  if (isMakingRoom_)
    return;
  isMakingRoom_ = true;
  int64_t goal = used() - int64_t(pressure.bytes);
  auto awaitLeaving = [&] {
    while (used() > goal && residency_.awaitDeparture())
      noteLeft();
    noteLeft();
  };
  try {
    awaitLeaving();
    while (used() > goal) {
      StateStagehand::Moves moves = tell({.kind = Kind::Pressure, .bytes = used() - goal});
      if (moves.leaves.empty())
        break;
      carryOut(moves);
      awaitLeaving();
    }
  } catch (...) {
    isMakingRoom_ = false;
    throw;
  }
  isMakingRoom_ = false;
}

} // namespace segue::inline runtime
