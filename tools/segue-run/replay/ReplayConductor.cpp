//===- ReplayConductor.cpp - Conductor in segue-run replay ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ids are texts in a log and numbers in Conductor. There is no device: a cap
// that the log does not give never binds. The two services with knobs have the
// defaults of their configs, so that a record shows what hints do to them.
// Events and answers are those of docs/specs/replay.md.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/Conductor.h"
#include <list>
#include <map>
#include <memory>

namespace segue::tool {

/// A field that is one of an enumeration's names; `fallback` if it may lack.
template <typename E> static E enumField(EventReader &event, const char *field, std::optional<E> fallback = {}) {
  if (fallback && !event.has(field))
    return *fallback;
  if (std::optional<E> value = fromName<E>(event.text(field)))
    return *value;
  std::string allowed;
  for (std::string_view name : namesOf<E>())
    if (!name.empty())
      allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  event.refuse(field, allowed + " are");
}

namespace {

class ConductorReplayer : public Replayer {
public:
  explicit ConductorReplayer(const ReplayLog &log);

  Json apply(EventReader &event) override;

private:
  Json applyStep(EventReader &event);
  Json applyBudget(EventReader &event);
  Json applyToken(EventReader &event);
  Json applyOther(EventReader &event);
  void addOwner(const std::string &name);
  void setPlan(const Json &blocks);
  uint64_t idOf(EventReader &event);
  ServiceId ownerOf(EventReader &event);
  Json hintsAnswer() const { return {{"hints", toJson(conductor_.hints())}}; }

  // Outlive Conductor, which puts the knobs back at its end.
  std::list<StagehandKnobs> stagehandKnobs_;
  std::list<ActivationKnobs> activationKnobs_;
  std::list<std::unique_ptr<ConductorAdapter>> adapters_;
  std::map<std::string, uint64_t> ids_;
  std::vector<std::string> texts_; // by id
  std::vector<std::string> granted_;
  Conductor conductor_;
};

} // namespace

ConductorReplayer::ConductorReplayer(const ReplayLog &log) {
  ConfigReader reader = log.readConfig();
  ConductorConfig config = ConductorConfig::read(reader);
  // A log is about a Conductor that was on, unless it says otherwise.
  config.enabled |= !log.config.contains("enabled");
  Conductor::Hooks hooks;
  hooks.granted = [this](uint64_t token) { granted_.push_back(texts_[token]); };
  conductor_ = Conductor(config, config.limits(std::nullopt), std::move(hooks));
  for (const std::string &owner : log.owners)
    addOwner(owner);
}

void ConductorReplayer::addOwner(const std::string &name) {
  if (name == "stagehand")
    conductor_.attach(
        *adapters_.emplace_back(std::make_unique<StagehandAdapter>(name, stagehandKnobs_.emplace_back())));
  else if (name == "activation_stagehand")
    conductor_.attach(
        *adapters_.emplace_back(std::make_unique<ActivationAdapter>(name, activationKnobs_.emplace_back())));
  else
    conductor_.registerOwner(name);
}

uint64_t ConductorReplayer::idOf(EventReader &event) {
  auto [entry, isNew] = ids_.emplace(event.text("id"), texts_.size());
  if (isNew)
    texts_.push_back(entry->first);
  return entry->second;
}

/// An owner that is not registered has a number that Conductor does not know.
ServiceId ConductorReplayer::ownerOf(EventReader &event) {
  return conductor_.service(event.text("owner")).value_or(ServiceId(UINT32_MAX));
}

Json ConductorReplayer::apply(EventReader &event) {
  granted_.clear();
  Json answer = applyStep(event);
  if (!granted_.empty() && !answer.contains("waiter"))
    answer["granted_waiters"] = granted_;
  return answer;
}

Json ConductorReplayer::applyStep(EventReader &event) {
  const std::string &op = event.op();
  double seconds = event.number("duration_s", 0);
  if (op == "begin_step") {
    conductor_.beginStep(event.integer("step"));
    return hintsAnswer();
  }
  if (op == "phase") {
    bool entered = conductor_.enterPhase(enumField<StepPhase>(event, "phase"), seconds);
    Json answer = hintsAnswer();
    if (!entered)
      answer["noop"] = true;
    return answer;
  }
  if (op == "block") {
    conductor_.enterBlock(event.text("block"));
    return hintsAnswer();
  }
  if (op == "end_step") {
    conductor_.endStep(seconds);
    return conductor_.isEnabled() ? conductor_.record() : Json::object();
  }
  if (op == "abort_step") {
    Json waiters = Json::array();
    for (uint64_t waiter : conductor_.abortStep(seconds))
      waiters.push_back(texts_[waiter]);
    return {{"aborted_waiters", waiters}, {"record", conductor_.record()}};
  }
  return applyBudget(event);
}

Json ConductorReplayer::applyBudget(EventReader &event) {
  const std::string &op = event.op();
  if (op == "measure") {
    conductor_.measure(event.bytesOfMiB("vram_allocated_mb"));
    return Json::object();
  }
  if (op == "reserve") {
    ReservationRequest request;
    request.id = idOf(event);
    request.owner = ownerOf(event);
    request.bytes = event.bytesOfMiB("mb");
    request.mode = enumField<BudgetMode>(event, "mode");
    request.resource = enumField<BudgetResource>(event, "resource", BudgetResource::Vram);
    request.priority = enumField<Priority>(event, "priority", Priority::Required);
    request.scope = enumField<BudgetScope>(event, "scope", BudgetScope::Manual);
    if (event.has("min_mb"))
      request.minBytes = event.bytesOfMiB("min_mb");
    Grant grant = conductor_.reserve(request);
    Json answer = toJson(grant);
    if (grant.bytes == request.bytes)
      answer["granted_mb"] = event.json("mb"); // as written, not rounded to bytes
    for (size_t i = 0; i < grant.reclaimed.size(); ++i)
      answer["reclaimed"][i][0] = texts_[grant.reclaimed[i].first];
    return answer;
  }
  if (op == "commit" || op == "uncommit") {
    uint64_t id = idOf(event);
    int64_t bytes = event.bytesOfMiB("mb");
    op == "commit" ? conductor_.commit(id, bytes) : conductor_.uncommit(id, bytes);
    return Json::object();
  }
  if (op == "release") {
    conductor_.release(idOf(event));
    return Json::object();
  }
  return applyToken(event);
}

Json ConductorReplayer::applyToken(EventReader &event) {
  const std::string &op = event.op();
  if (op == "acquire" || op == "acquire_or_wait") {
    TokenRequest request;
    request.id = idOf(event);
    request.owner = ownerOf(event);
    request.direction = enumField<LinkDirection>(event, "dir");
    request.priority = enumField<Priority>(event, "priority", Priority::Required);
    request.bytes = event.integer("bytes", 0);
    return toJson(op == "acquire" ? conductor_.tryAcquire(request) : conductor_.acquireOrWait(request));
  }
  if (op == "timeout")
    return toJson(conductor_.timeOut(idOf(event)));
  if (op == "cancel") {
    conductor_.cancelWait(idOf(event));
    return Json::object();
  }
  if (op == "complete") {
    uint64_t id = idOf(event);
    int64_t bytes = event.integer("bytes");
    conductor_.complete(id, bytes, event.number("duration_ms"));
    return Json::object();
  }
  if (op == "release_token") {
    uint64_t id = idOf(event);
    std::optional<uint64_t> waiter =
        event.has("owner") ? conductor_.releaseToken(id, ownerOf(event)) : conductor_.releaseToken(id);
    return {{"waiter", waiter ? Json(texts_[*waiter]) : Json()}};
  }
  return applyOther(event);
}

Json ConductorReplayer::applyOther(EventReader &event) {
  const std::string &op = event.op();
  if (op == "usage")
    return {{"used_mb", toMiB(conductor_.usedBytes(BudgetResource::Vram))},
            {"pinned_used_mb", toMiB(conductor_.usedBytes(BudgetResource::Pinned))},
            {"h2d_inflight", conductor_.inflight(LinkDirection::H2d)},
            {"d2h_inflight", conductor_.inflight(LinkDirection::D2h)}};
  if (op == "record")
    return conductor_.record();
  if (op == "holders") {
    Json rows = Json::array();
    for (const ReservationHolder &holder : conductor_.holders())
      rows.push_back({{"owner", holder.owner},
                      {"id", texts_[holder.id]},
                      {"mode", nameOf(holder.mode)},
                      {"resource", nameOf(holder.resource)},
                      {"granted_mb", toMiB(holder.grantedBytes)},
                      {"committed_mb", toMiB(holder.committedBytes)}});
    return {{"holders", rows}};
  }
  if (op == "register") {
    addOwner(event.text("owner"));
    return Json::object();
  }
  if (op == "detach") {
    Conductor::Detached held = conductor_.detach(ownerOf(event));
    return {{"reservations", held.reservations}, {"tokens", held.tokens}, {"waiters", held.waiters}};
  }
  if (op == "plan") {
    setPlan(event.json("blocks"));
    return Json::object();
  }
  if (op == "precision") {
    BlockPrecisionMap map;
    for (const auto &[block, precision] : event.json("blocks").items()) {
      if (!precision.is_string())
        event.refuse("blocks", "an object from blocks to texts is");
      map[block] = precision.get<std::string>();
    }
    conductor_.setBlockPrecision(std::move(map));
    return Json::object();
  }
  event.unknownOp({"begin_step", "phase",         "block",     "measure",         "reserve", "commit",
                   "uncommit",   "release",       "acquire",   "acquire_or_wait", "timeout", "cancel",
                   "complete",   "release_token", "usage",     "record",          "holders", "register",
                   "detach",     "plan",          "precision", "abort_step",      "end_step"});
}

void ConductorReplayer::setPlan(const Json &blocks) {
  std::vector<PlannedBlock> plan;
  for (const Json &row : blocks) {
    // A block is read as an event of its own, for the messages.
    Json fields = row;
    if (!fields.is_object())
      throw MalformedEvent("field \"blocks\" is a list of objects");
    fields["op"] = "plan";
    EventReader block(fields);
    PlannedBlock planned;
    planned.phase = enumField<StepPhase>(block, "phase");
    planned.block = block.text("block");
    planned.peakBytes = block.has("peak_mb") ? block.bytesOfMiB("peak_mb") : 0;
    planned.computeSeconds = block.number("compute_s", 0);
    planned.h2dBytes = block.has("h2d_mb") ? block.bytesOfMiB("h2d_mb") : 0;
    planned.d2hBytes = block.has("d2h_mb") ? block.bytesOfMiB("d2h_mb") : 0;
    plan.push_back(std::move(planned));
  }
  conductor_.setPlan(std::move(plan));
}

static std::unique_ptr<Replayer> createConductorReplayer(const ReplayLog &log) {
  return std::make_unique<ConductorReplayer>(log);
}

ReplayService replayOfConductor() { return {"conductor", createConductorReplayer}; }

} // namespace segue::tool
