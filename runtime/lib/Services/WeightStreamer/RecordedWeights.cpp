//===- RecordedWeights.cpp - a policy and its log -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A line is written when the policy has answered and before the answer is carried
// out, so that what that brings about follows it. A call that throws is an event,
// too: the replay is to throw the same.
//
//===----------------------------------------------------------------------===//

#include "RecordedWeights.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

static double toMiB(int64_t bytes) { return double(bytes) / 1048576; }

static Json answerOf(const WeightActions &actions) {
  Json issued = Json::array(), evict = Json::array();
  int64_t given = 0;
  for (const WeightAction &action : actions)
    if (action.kind == WeightAction::Kind::Load)
      issued.push_back({action.block, nameOf(action.priority)});
    else if (action.kind == WeightAction::Kind::Evict)
      evict.push_back({action.block, action.saveBack});
    else
      ++given;
  return {{"issued", issued}, {"evict", evict}, {"given_slots", given}};
}

static Json answerOf(const BeforeBlock &before) {
  static constexpr std::string_view names[] = {"HIT", "LATE", "MISS"};
  Json answer = answerOf(before.actions);
  answer["use"] = names[size_t(before.use)];
  return answer;
}

static Json answerOf(const LoadFailure &failure) {
  Json answer = answerOf(failure.actions);
  answer["action"] = failure.retry ? "RETRY" : "FAIL";
  return answer;
}

/// Calls the policy; `event` makes the line, if one is wanted.
template <typename Call, typename Event> auto RecordedWeights::tell(Call call, Event event) {
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      if (log_)
        add(event(), Json());
    } else {
      auto answer = call();
      if (log_)
        add(event(), answerOf(answer));
      return answer;
    }
  } catch (const Error &error) {
    if (log_)
      add(event(), {{"error", errorCodeName(error.code())}});
    throw;
  }
}

RecordedWeights::RecordedWeights(WeightStagehandConfig config, const WeightLimits &limits,
                                 std::shared_ptr<EventLog> log)
    : policy_(std::move(config), limits), log_(std::move(log)) {
  if (log_)
    add({{"op", "start"},
         {"slab_bytes", limits.slabBytes},
         {"slabs", limits.slabs},
         {"high_bytes", limits.highBytes},
         {"low_bytes", limits.lowBytes}},
        Json());
}

void RecordedWeights::registerBlock(const WeightBlock &block) {
  tell([&] { policy_.registerBlock(block); },
       [&] {
         Json entry = {block.id, toMiB(block.bytes), nameOf(block.backing), block.staged};
         return Json{{"op", "register"}, {"model", block.model}, {"blocks", Json::array({std::move(entry)})}};
       });
}

void RecordedWeights::setOrder(StepPhase phase, std::span<const std::string> ids) {
  tell([&] { policy_.setOrder(phase, ids); },
       [&] {
         return Json{
             {"op", "order"}, {"phase", nameOf(phase)}, {"ids", std::vector<std::string>(ids.begin(), ids.end())}};
       });
}

void RecordedWeights::setRing(const WeightRing &ring) {
  tell([&] { policy_.setRing(ring); },
       [&] {
         return Json{{"op", "ring"},
                     {"slots", ring.slots},
                     {"most", ring.most},
                     {"slot_bytes", ring.slotBytes},
                     {"open", ring.openAtOnce}};
       });
}

void RecordedWeights::measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes) {
  tell([&] { policy_.measure(allocatedBytes, reservedBytes); },
       [&] {
         Json event = {{"op", "measure"}, {"vram_allocated_mb", toMiB(allocatedBytes)}};
         if (reservedBytes)
           event["vram_reserved_mb"] = toMiB(*reservedBytes);
         return event;
       });
}

void RecordedWeights::restate(std::string_view id, int64_t bytes, bool staged) {
  tell([&] { policy_.restate(id, bytes, staged); },
       [&] { return Json{{"op", "restate"}, {"id", id}, {"bytes", bytes}, {"staged", staged}}; });
}

//===----------------------------------------------------------------------===//
// A step
//===----------------------------------------------------------------------===//

void RecordedWeights::beginStep(int64_t step, bool isTraining) {
  tell([&] { policy_.beginStep(step, isTraining); },
       [&] { return Json{{"op", "begin_step"}, {"step", step}, {"training", isTraining}}; });
}

void RecordedWeights::enterPhase(StepPhase phase) {
  tell([&] { policy_.enterPhase(phase); }, [&] { return Json{{"op", "phase"}, {"phase", nameOf(phase)}}; });
}

void RecordedWeights::setHints(const WeightHints &hints) {
  tell([&] { policy_.setHints(hints); },
       [&] {
         return Json{{"op", "hints"},
                     {"h2d", hints.maxInflightH2d},
                     {"window", hints.windowCap},
                     {"suppress", hints.suppressSpeculative}};
       });
}

BeforeBlock RecordedWeights::beforeBlock(std::string_view id, int64_t allocatedBytes) {
  return tell(
      [&] {
        policy_.measure(allocatedBytes);
        return policy_.beforeBlock(id);
      },
      [&] { return Json{{"op", "before_block"}, {"id", id}, {"used_mb", toMiB(allocatedBytes)}}; });
}

WeightActions RecordedWeights::afterBlock(std::string_view id, int64_t allocatedBytes) {
  return tell(
      [&] {
        policy_.measure(allocatedBytes);
        return policy_.afterBlock(id);
      },
      [&] { return Json{{"op", "after_block"}, {"id", id}, {"used_mb", toMiB(allocatedBytes)}}; });
}

void RecordedWeights::observe(std::string_view id, const BlockOutput &output) {
  tell([&] { policy_.observe(id, output); },
       [&] {
         Json event = {{"op", "observe"}, {"id", id}, {"nans", output.nans}, {"infs", output.infs}};
         if (output.computeMs)
           event["compute_ms"] = *output.computeMs;
         return event;
       });
}

void RecordedWeights::changed(std::string_view id, int64_t bytes) {
  tell([&] { policy_.changed(id, bytes); }, [&] { return Json{{"op", "changed"}, {"id", id}, {"bytes", bytes}}; });
}

WeightActions RecordedWeights::loaded(std::string_view id, const LoadTimes &times) {
  return tell([&] { return policy_.loaded(id, times); },
              [&] {
                return Json{
                    {"op", "loaded"}, {"id", id}, {"copy_ms", times.copyMs}, {"file_read_ms", times.fileReadMs}};
              });
}

LoadFailure RecordedWeights::loadFailed(std::string_view id) {
  return tell([&] { return policy_.loadFailed(id); }, [&] { return Json{{"op", "load_failed"}, {"id", id}}; });
}

WeightActions RecordedWeights::loadDenied(std::string_view id) {
  return tell([&] { return policy_.loadDenied(id); }, [&] { return Json{{"op", "load_denied"}, {"id", id}}; });
}

WeightActions RecordedWeights::evicted(std::string_view id) {
  return tell([&] { return policy_.evicted(id); }, [&] { return Json{{"op", "evicted"}, {"id", id}}; });
}

WeightActions RecordedWeights::saveBackFailed(std::string_view id) {
  return tell([&] { return policy_.saveBackFailed(id); }, [&] { return Json{{"op", "save_back_failed"}, {"id", id}}; });
}

void RecordedWeights::savedBack(std::string_view id) {
  tell([&] { policy_.savedBack(id); }, [&] { return Json{{"op", "saved_back"}, {"id", id}}; });
}

WeightActions RecordedWeights::drop(std::string_view id) {
  return tell([&] { return policy_.drop(id); }, [&] { return Json{{"op", "drop"}, {"id", id}}; });
}

WeightActions RecordedWeights::makeRoom(int64_t bytes) {
  return tell([&] { return policy_.makeRoom(bytes); }, [&] { return Json{{"op", "make_room"}, {"bytes", bytes}}; });
}

void RecordedWeights::addStall(double milliseconds) {
  tell([&] { policy_.addStall(milliseconds); }, [&] { return Json{{"op", "stall"}, {"ms", milliseconds}}; });
}

std::string RecordedWeights::addPoolWait(std::string_view id, double milliseconds) {
  std::string warning = policy_.addPoolWait(id, milliseconds);
  if (log_)
    add(Json{{"op", "pool_wait"}, {"id", id}, {"ms", milliseconds}}, {{"warning", warning}});
  return warning;
}

void RecordedWeights::abortStep() {
  policy_.abortStep();
  if (!log_)
    return;
  add(Json{{"op", "abort_step"}}, policy_.telemetry());
  log_->flush();
}

void RecordedWeights::abandonUses() {
  tell([&] { policy_.abandonUses(); }, [&] { return Json{{"op", "abandon_uses"}}; });
}

WeightActions RecordedWeights::endStep() {
  auto event = [] { return Json{{"op", "end_step"}}; };
  WeightActions actions;
  try {
    actions = policy_.endStep();
  } catch (const Error &error) {
    if (log_)
      add(event(), {{"error", errorCodeName(error.code())}});
    throw;
  }
  if (log_) {
    Json answer = answerOf(actions);
    answer.update(policy_.telemetry());
    answer["window"] = policy_.window();
    add(event(), std::move(answer));
    log_->flush();
  }
  return actions;
}

//===----------------------------------------------------------------------===//
// Guards and claims
//===----------------------------------------------------------------------===//

void RecordedWeights::checkPromotion(std::string_view block, std::string_view input, std::string_view output) {
  tell([&] { policy_.checkPromotion(block, input, output); },
       [&] { return Json{{"op", "promotion"}, {"id", block}, {"takes", input}, {"gives", output}}; });
}

RecordedWeights::Scope RecordedWeights::note(Scope scope, Json event) {
  std::string id = "scope " + std::to_string(++scopes_);
  event["id"] = id;
  log_->add(std::move(event), Json());
  auto held = std::make_shared<Scope>(std::move(scope));
  return Scope([held, id, log = log_] {
    held->release();
    log->add(Json{{"op", "release"}, {"id", id}});
  });
}

RecordedWeights::Scope RecordedWeights::keepResident(std::span<const std::string> ids) {
  Scope scope = policy_.keepResident(ids);
  return log_ ? note(std::move(scope), {{"op", "keep"}, {"ids", std::vector<std::string>(ids.begin(), ids.end())}})
              : std::move(scope);
}

RecordedWeights::Scope RecordedWeights::reserve(const std::string &model, ResidencyRank rank, int64_t bytes) {
  Scope scope = policy_.reserve(model, rank, bytes);
  return log_ ? note(std::move(scope), {{"op", "reserve"},
                                        {"model", model},
                                        {"rank", rank == ResidencyRank::Primary ? "PRIMARY" : "SECONDARY"},
                                        {"bytes", bytes}})
              : std::move(scope);
}

RecordedWeights::Scope RecordedWeights::asGuest(const std::string &model) {
  Scope scope = policy_.asGuest(model);
  return log_ ? note(std::move(scope), {{"op", "guest"}, {"model", model}}) : std::move(scope);
}

} // namespace segue::inline runtime
