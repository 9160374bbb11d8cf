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
#include "segue/runtime/Mebibytes.h"
#include <algorithm>

namespace segue::inline runtime {


namespace {
/// An event in the making. Its functions are calls: lists of pairs, as Json takes
/// them, are ten times the code.
class Line {
public:
  explicit Line(std::string_view op) { with("op", op); }
  [[gnu::noinline]] Line &withJson(const char *key, Json value) {
    json_[key] = std::move(value);
    return *this;
  }
  [[gnu::noinline]] Line &with(const char *key, std::string_view value) { return withJson(key, Json(value)); }
  [[gnu::noinline]] Line &with(const char *key, double value) { return withJson(key, Json(value)); }
  [[gnu::noinline]] Line &with(const char *key, int64_t value) { return withJson(key, Json(value)); }
  [[gnu::noinline]] Line &with(const char *key, bool value) { return withJson(key, Json(value)); }
  [[gnu::noinline]] Line &with(const char *key, std::span<const std::string> values) {
    Json list = Json::array();
    for (const std::string &value : values)
      list.push_back(value);
    return withJson(key, std::move(list));
  }
  Json take() { return std::move(json_); }

private:
  Json json_ = Json::object();
};
} // namespace

static Json pairOf(const std::string &block, Json what) {
  Json pair = Json::array();
  pair.push_back(block);
  pair.push_back(std::move(what));
  return pair;
}

static Json answerOf(const WeightActions &actions) {
  Json answer = Json::object(), &issued = answer["issued"] = Json::array();
  for (const WeightAction &action : actions)
    if (action.kind == WeightAction::Kind::Load)
      issued.push_back(pairOf(action.block, nameOf(action.priority)));
  Json &evict = answer["evict"] = Json::array();
  for (const WeightAction &action : actions)
    if (action.kind == WeightAction::Kind::Evict)
      evict.push_back(pairOf(action.block, action.saveBack));
  answer["given_slots"] = std::ranges::count(actions, WeightAction::Kind::GiveSlot, &WeightAction::kind);
  return answer;
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

/// Calls the policy; `line` makes the event, if one is wanted.
template <typename Call, typename Event> auto RecordedWeights::tell(Call call, Event line) {
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      if (log_)
        add(line().take(), Json());
    } else {
      auto answer = call();
      if (log_)
        add(line().take(), answerOf(answer));
      return answer;
    }
  } catch (const Error &error) {
    if (log_)
      addError(line().take(), error);
    throw;
  }
}

void RecordedWeights::add(Json event, Json answer) { log_->add(std::move(event), std::move(answer)); }

void RecordedWeights::addError(Json event, const Error &error) {
  Json answer = Json::object();
  answer["error"] = errorCodeName(error.code());
  add(std::move(event), std::move(answer));
}

RecordedWeights::RecordedWeights(WeightStagehandConfig config, const WeightLimits &limits,
                                 std::shared_ptr<EventLog> log)
    : policy_(std::move(config), limits), log_(std::move(log)) {
  if (log_)
    add(Line("start")
            .with("slab_bytes", limits.slabBytes)
            .with("slabs", limits.slabs)
            .with("high_bytes", limits.highBytes)
            .with("low_bytes", limits.lowBytes)
            .take(),
        Json());
}

void RecordedWeights::registerBlock(const WeightBlock &block) {
  tell([&] { policy_.registerBlock(block); },
       [&] {
         Json entry = pairOf(block.id, toMiB(block.bytes)), blocks = Json::array();
         entry.push_back(nameOf(block.backing));
         entry.push_back(block.staged);
         blocks.push_back(std::move(entry));
         return Line("register").with("model", block.model).withJson("blocks", std::move(blocks));
       });
}

void RecordedWeights::setOrder(StepPhase phase, std::span<const std::string> ids) {
  tell([&] { policy_.setOrder(phase, ids); },
       [&] { return Line("order").with("phase", nameOf(phase)).with("ids", ids); });
}

void RecordedWeights::setRing(const WeightRing &ring) {
  tell([&] { policy_.setRing(ring); },
       [&] {
         return Line("ring")
             .with("slots", ring.slots)
             .with("most", ring.most)
             .with("slot_bytes", ring.slotBytes)
             .with("open", ring.openAtOnce);
       });
}

void RecordedWeights::measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes) {
  tell([&] { policy_.measure(allocatedBytes, reservedBytes); },
       [&] {
         Line line("measure");
         line.with("vram_allocated_mb", toMiB(allocatedBytes));
         if (reservedBytes)
           line.with("vram_reserved_mb", toMiB(*reservedBytes));
         return line;
       });
}

void RecordedWeights::restate(std::string_view id, int64_t bytes, bool staged) {
  tell([&] { policy_.restate(id, bytes, staged); },
       [&] { return Line("restate").with("id", id).with("bytes", bytes).with("staged", staged); });
}

//===----------------------------------------------------------------------===//
// A step
//===----------------------------------------------------------------------===//

void RecordedWeights::beginStep(int64_t step, bool isTraining) {
  tell([&] { policy_.beginStep(step, isTraining); },
       [&] { return Line("begin_step").with("step", step).with("training", isTraining); });
}

void RecordedWeights::enterPhase(StepPhase phase) {
  tell([&] { policy_.enterPhase(phase); }, [&] { return Line("phase").with("phase", nameOf(phase)); });
}

void RecordedWeights::setHints(const WeightHints &hints) {
  tell([&] { policy_.setHints(hints); },
       [&] {
         return Line("hints")
             .with("h2d", hints.maxInflightH2d)
             .with("window", hints.windowCap)
             .with("suppress", hints.suppressSpeculative);
       });
}

BeforeBlock RecordedWeights::beforeBlock(std::string_view id, int64_t allocatedBytes) {
  return tell(
      [&] {
        policy_.measure(allocatedBytes);
        return policy_.beforeBlock(id);
      },
      [&] { return Line("before_block").with("id", id).with("used_mb", toMiB(allocatedBytes)); });
}

WeightActions RecordedWeights::afterBlock(std::string_view id, int64_t allocatedBytes) {
  return tell(
      [&] {
        policy_.measure(allocatedBytes);
        return policy_.afterBlock(id);
      },
      [&] { return Line("after_block").with("id", id).with("used_mb", toMiB(allocatedBytes)); });
}

void RecordedWeights::observe(std::string_view id, const BlockOutput &output) {
  tell([&] { policy_.observe(id, output); },
       [&] {
         Line line("observe");
         line.with("id", id).with("nans", output.nans).with("infs", output.infs);
         if (output.computeMs)
           line.with("compute_ms", *output.computeMs);
         return line;
       });
}

void RecordedWeights::changed(std::string_view id, int64_t bytes) {
  tell([&] { policy_.changed(id, bytes); }, [&] { return Line("changed").with("id", id).with("bytes", bytes); });
}

WeightActions RecordedWeights::loaded(std::string_view id, const LoadTimes &times) {
  return tell(
      [&] { return policy_.loaded(id, times); },
      [&] {
        return Line("loaded").with("id", id).with("copy_ms", times.copyMs).with("file_read_ms", times.fileReadMs);
      });
}

LoadFailure RecordedWeights::loadFailed(std::string_view id) {
  return tell([&] { return policy_.loadFailed(id); }, [&] { return Line("load_failed").with("id", id); });
}

WeightActions RecordedWeights::loadDenied(std::string_view id) {
  return tell([&] { return policy_.loadDenied(id); }, [&] { return Line("load_denied").with("id", id); });
}

WeightActions RecordedWeights::evicted(std::string_view id) {
  return tell([&] { return policy_.evicted(id); }, [&] { return Line("evicted").with("id", id); });
}

WeightActions RecordedWeights::saveBackFailed(std::string_view id) {
  return tell([&] { return policy_.saveBackFailed(id); }, [&] { return Line("save_back_failed").with("id", id); });
}

void RecordedWeights::savedBack(std::string_view id) {
  tell([&] { policy_.savedBack(id); }, [&] { return Line("saved_back").with("id", id); });
}

WeightActions RecordedWeights::drop(std::string_view id) {
  return tell([&] { return policy_.drop(id); }, [&] { return Line("drop").with("id", id); });
}

WeightActions RecordedWeights::makeRoom(int64_t bytes) {
  return tell([&] { return policy_.makeRoom(bytes); }, [&] { return Line("make_room").with("bytes", bytes); });
}

void RecordedWeights::inTime(std::string_view id) {
  tell([&] { policy_.inTime(id); }, [&] { return Line("in_time").with("id", id); });
}

void RecordedWeights::addStall(double milliseconds) {
  tell([&] { policy_.addStall(milliseconds); }, [&] { return Line("stall").with("ms", milliseconds); });
}

std::string RecordedWeights::addPoolWait(std::string_view id, double milliseconds) {
  std::string warning = policy_.addPoolWait(id, milliseconds);
  if (log_) {
    Json answer = Json::object();
    answer["warning"] = warning;
    add(Line("pool_wait").with("id", id).with("ms", milliseconds).take(), std::move(answer));
  }
  return warning;
}

void RecordedWeights::abortStep() {
  policy_.abortStep();
  if (!log_)
    return;
  add(Line("abort_step").take(), policy_.telemetry());
  log_->flush();
}

void RecordedWeights::abandonUses() {
  tell([&] { policy_.abandonUses(); }, [&] { return Line("abandon_uses"); });
}

WeightActions RecordedWeights::endStep() {
  WeightActions actions;
  try {
    actions = policy_.endStep();
  } catch (const Error &error) {
    if (log_)
      addError(Line("end_step").take(), error);
    throw;
  }
  if (log_) {
    Json answer = answerOf(actions);
    answer.update(policy_.telemetry());
    answer["window"] = policy_.window();
    add(Line("end_step").take(), std::move(answer));
    log_->flush();
  }
  return actions;
}

//===----------------------------------------------------------------------===//
// Guards and claims
//===----------------------------------------------------------------------===//

void RecordedWeights::checkPromotion(std::string_view block, std::string_view input, std::string_view output) {
  tell([&] { policy_.checkPromotion(block, input, output); },
       [&] { return Line("promotion").with("id", block).with("takes", input).with("gives", output); });
}

RecordedWeights::Scope RecordedWeights::note(Scope scope, Json event) {
  std::string id = "scope " + std::to_string(++scopes_);
  event["id"] = id;
  log_->add(std::move(event), Json());
  auto held = std::make_shared<Scope>(std::move(scope));
  return Scope([held, id, log = log_] {
    held->release();
    log->add(Line("release").with("id", id).take());
  });
}

RecordedWeights::Scope RecordedWeights::keepResident(std::span<const std::string> ids) {
  Scope scope = policy_.keepResident(ids);
  return log_ ? note(std::move(scope), Line("keep").with("ids", ids).take()) : std::move(scope);
}

RecordedWeights::Scope RecordedWeights::reserve(const std::string &model, ResidencyRank rank, int64_t bytes) {
  Scope scope = policy_.reserve(model, rank, bytes);
  if (!log_)
    return scope;
  std::string_view name = rank == ResidencyRank::Primary ? "PRIMARY" : "SECONDARY";
  return note(std::move(scope), Line("reserve").with("model", model).with("rank", name).with("bytes", bytes).take());
}

RecordedWeights::Scope RecordedWeights::asGuest(const std::string &model) {
  Scope scope = policy_.asGuest(model);
  return log_ ? note(std::move(scope), Line("guest").with("model", model).take()) : std::move(scope);
}

} // namespace segue::inline runtime
