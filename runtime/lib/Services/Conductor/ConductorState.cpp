//===- ConductorState.cpp - saves and restores Conductor ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Owners are saved by name: numbers depend on the order of attachment. A state
// is read whole into new parts before the first of the old ones is replaced.
//
//===----------------------------------------------------------------------===//

#include "ConductorManager.h"
#include "segue/runtime/Error.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr int stateVersion = 1;
/// Far from where a sum of grants could wrap.
static constexpr int64_t greatestTotal = int64_t(1) << 61;

static Json hintsJson(const RuntimeLimitHints &hints) {
  Json json{{"h2d", hints.maxInflightH2d},
            {"d2h", hints.maxInflightD2h},
            {"window", hints.prefetchWindowCap},
            {"suppress", hints.suppressSpeculative},
            {"precision", nullptr}};
  if (hints.blockPrecision)
    json["precision"] = *hints.blockPrecision;
  return json;
}

static std::shared_ptr<const BlockPrecisionMap> precisionOf(const Json &json) {
  return json.is_null() ? nullptr : std::make_shared<const BlockPrecisionMap>(json.get<BlockPrecisionMap>());
}

static RuntimeLimitHints hintsOf(const Json &json) {
  return {json.at("h2d").get<int>(), json.at("d2h").get<int>(), json.at("window").get<int>(),
          json.at("suppress").get<bool>(), precisionOf(json.at("precision"))};
}

template <typename E> static E valueOf(const Json &json) {
  std::optional<E> value = fromName<E>(json.get<std::string>());
  if (!value)
    throw Error(ErrorCode::InvalidArgument, "conductor state: no such name: " + json.dump());
  return *value;
}

static Json countersJson(const StepCounters &c) {
  return {{"entered", c.entered},
          {"seconds", c.seconds},
          {"grants", c.grants},
          {"partials", c.partials},
          {"denies", c.denies},
          {"reasons", c.reasons},
          {"peak", c.peak},
          {"token_denials", c.tokenDenials},
          {"slot_overruns", c.slotOverruns},
          {"ceiling_exceeded", c.ceilingExceeded},
          {"adapter_errors", c.adapterErrors},
          {"reclaimed", c.reclaimedBytes},
          {"pressure_max", c.pressureMax},
          {"suppressed_at", c.suppressedAt},
          {"aborted", c.aborted}};
}

static StepCounters countersOf(const Json &json) {
  StepCounters c;
  json.at("entered").get_to(c.entered);
  json.at("seconds").get_to(c.seconds);
  json.at("grants").get_to(c.grants);
  json.at("partials").get_to(c.partials);
  json.at("denies").get_to(c.denies);
  json.at("reasons").get_to(c.reasons);
  json.at("peak").get_to(c.peak);
  json.at("token_denials").get_to(c.tokenDenials);
  json.at("slot_overruns").get_to(c.slotOverruns);
  json.at("ceiling_exceeded").get_to(c.ceilingExceeded);
  json.at("adapter_errors").get_to(c.adapterErrors);
  json.at("reclaimed").get_to(c.reclaimedBytes);
  json.at("pressure_max").get_to(c.pressureMax);
  json.at("suppressed_at").get_to(c.suppressedAt);
  json.at("aborted").get_to(c.aborted);
  return c;
}

Json Conductor::Manager::saveState() const {
  auto owner = [&](ServiceId service) { return attached[size_t(service)].name; };
  Json json{{"version", stateVersion},
            {"phase", nameOf(phase)},
            {"step", step},
            {"block", block},
            {"hints", hintsJson(policy.pushed())},
            {"base", hintsJson(policy.base())},
            {"contention", policy.contention()},
            {"next_precision", nullptr},
            {"planned_next", order.next()},
            {"allocated", book.allocated()},
            {"sequence", book.nextSequence()},
            {"reservations", Json::array()},
            {"token_sequence", slots.nextSequence()},
            {"tokens", Json::array()},
            {"waiting", Json::array()},
            {"gbps", Json::array()},
            {"counters", countersJson(counters)}};
  if (nextPrecision)
    json["next_precision"] = *nextPrecision;
  for (const Reservation &r : book.reservations())
    json["reservations"].push_back({{"id", r.id},
                                    {"sequence", r.sequence},
                                    {"owner", owner(r.owner)},
                                    {"mode", nameOf(r.mode)},
                                    {"resource", nameOf(r.resource)},
                                    {"priority", nameOf(r.priority)},
                                    {"scope", nameOf(r.scope)},
                                    {"phase", nameOf(r.phase)},
                                    {"granted", r.granted},
                                    {"committed", r.committed},
                                    {"ceiling", r.ceiling}});
  for (const Token &t : slots.tokens())
    json["tokens"].push_back(
        {{"id", t.id}, {"owner", owner(t.owner)}, {"direction", nameOf(t.direction)}, {"completed", t.completed}});
  for (const TokenWaiter &w : slots.waiters())
    json["waiting"].push_back({{"id", w.id},
                               {"sequence", w.sequence},
                               {"owner", owner(w.owner)},
                               {"direction", nameOf(w.direction)},
                               {"priority", nameOf(w.priority)}});
  for (const std::optional<double> &speed : gigabytesPerSecond)
    json["gbps"].push_back(speed ? Json(*speed) : Json());
  return json;
}

void Conductor::Manager::restoreState(const Json &state) try {
  requireOutsideTransition();
  if (state.at("version").get<int>() != stateVersion)
    throw Error(ErrorCode::InvalidArgument, "conductor state: version " + state.at("version").dump() + " found, " +
                                                std::to_string(stateVersion) + " read");
  auto owner = [&](const Json &name) {
    std::optional<ServiceId> service = find(name.get<std::string>());
    if (!service)
      throw Error(ErrorCode::InvalidArgument, "conductor state: owner " + name.dump() + " is not registered");
    return *service;
  };
  BudgetBook newBook(limits, config.reclaimEnabled);
  for (size_t i = 0; i < attached.size(); ++i)
    newBook.addOwner(ServiceId(i));
  newBook.measure(state.at("allocated").get<int64_t>());
  newBook.restoreSequence(state.at("sequence").get<uint64_t>());
  int64_t total = 0;
  for (const Json &json : state.at("reservations")) {
    Reservation r;
    r.id = json.at("id").get<uint64_t>();
    r.sequence = json.at("sequence").get<uint64_t>();
    r.owner = owner(json.at("owner"));
    r.mode = valueOf<BudgetMode>(json.at("mode"));
    r.resource = valueOf<BudgetResource>(json.at("resource"));
    r.priority = valueOf<Priority>(json.at("priority"));
    r.scope = valueOf<BudgetScope>(json.at("scope"));
    r.phase = valueOf<StepPhase>(json.at("phase"));
    r.granted = json.at("granted").get<int64_t>();
    r.committed = json.at("committed").get<int64_t>();
    r.ceiling = json.at("ceiling").get<int64_t>();
    if (newBook.find(r.id) || r.committed < 0 || r.granted < r.committed || r.granted > greatestTotal - total)
      throw Error(ErrorCode::InvalidArgument, "conductor state: reservation " + std::to_string(r.id) + " cannot be");
    total += r.granted;
    newBook.restore(r);
  }
  TransferSlots newSlots;
  newSlots.restoreSequence(state.at("token_sequence").get<uint64_t>());
  auto unknownToken = [&](uint64_t id) {
    if (newSlots.isKnown(id))
      throw Error(ErrorCode::InvalidArgument, "conductor state: token " + std::to_string(id) + " stands twice");
    return id;
  };
  for (const Json &json : state.at("tokens"))
    newSlots.restore(Token{unknownToken(json.at("id").get<uint64_t>()), owner(json.at("owner")),
                           valueOf<LinkDirection>(json.at("direction")), json.at("completed").get<bool>()});
  for (const Json &json : state.at("waiting"))
    newSlots.restore(TokenWaiter{unknownToken(json.at("id").get<uint64_t>()), json.at("sequence").get<uint64_t>(),
                                 owner(json.at("owner")), valueOf<LinkDirection>(json.at("direction")),
                                 valueOf<Priority>(json.at("priority"))});
  std::optional<double> newSpeed[2];
  for (size_t i = 0; i < 2; ++i)
    if (const Json &speed = state.at("gbps").at(i); !speed.is_null())
      newSpeed[i] = speed.get<double>();
  RuntimeLimitHints base = hintsOf(state.at("base")), pushed = hintsOf(state.at("hints"));
  auto contention = state.at("contention").get<int64_t>();
  auto newPrecision = precisionOf(state.at("next_precision"));
  auto newNext = state.at("planned_next").get<size_t>();
  StepCounters newCounters = countersOf(state.at("counters"));
  auto newPhase = valueOf<StepPhase>(state.at("phase"));
  auto newStep = state.at("step").get<int64_t>();
  auto newBlock = state.at("block").get<std::string>();

  // Nothing below throws.
  book = std::move(newBook);
  slots = std::move(newSlots);
  policy.restore(std::move(base), std::move(pushed), contention);
  nextPrecision = std::move(newPrecision);
  order.restoreNext(newNext);
  std::copy(std::begin(newSpeed), std::end(newSpeed), gigabytesPerSecond);
  counters = std::move(newCounters);
  phase = newPhase;
  step = newStep;
  block = std::move(newBlock);
  setSlotLimits();
  forEachAdapter([&](ConductorAdapter &adapter) {
    if (inStep())
      adapter.applyHints(policy.pushed(), phase);
  });
  reportAdapterErrors();
} catch (const Json::exception &error) {
  throw Error(ErrorCode::InvalidArgument, std::string("conductor state: ") + error.what());
}

Json Conductor::saveState() const { return manager_ ? manager_->saveState() : Json(); }

void Conductor::restoreState(const Json &state) {
  if (manager_)
    manager_->restoreState(state);
}

} // namespace segue::inline runtime
