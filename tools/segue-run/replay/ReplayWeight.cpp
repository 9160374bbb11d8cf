//===- ReplayWeight.cpp - logs of Weight Stagehand ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The events are described in docs/guides/replay-weight.md.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Services/WeightStagehand.h"
#include <map>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
class WeightReplayer : public Replayer {
public:
  explicit WeightReplayer(const ReplayLog &log) : log_(log), config_(read(log)) {}

  Json apply(EventReader &event) override;

private:
  static WeightStagehandConfig read(const ReplayLog &log) {
    ConfigReader reader = log.readConfig();
    for (const char *service : {"activation_stagehand", "conductor_config", "selective_precision", "squareq"})
      reader.allow(service);
    return WeightStagehandConfig::read(reader);
  }
  Json start(EventReader &event);
  Json registerBlocks(EventReader &event);
  Json limits(EventReader &event);
  Json pool() const;
  Json before(EventReader &event);
  Json moved(EventReader &event);
  WeightStagehand &stagehand();

  ReplayLog log_;
  WeightStagehandConfig config_;
  std::unique_ptr<WeightStagehand> stagehand_;
  std::map<std::string, WeightStagehand::Scope> scopes_;
};
} // namespace

/// `issued`: [[block, priority], …], `evict`: [[block, saves back], …], in the
/// order in which they are to start.
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

static Json answerOf(const WeightStagehand &stagehand, const WeightActions &actions) {
  Json answer = answerOf(actions);
  answer["resident"] = stagehand.resident();
  return answer;
}

WeightStagehand &WeightReplayer::stagehand() {
  if (!stagehand_)
    throw MalformedEvent("a \"register\" comes first");
  return *stagehand_;
}

static WeightSizes readSizes(EventReader &event, int64_t largest) {
  WeightSizes sizes;
  sizes.largestBlockBytes = largest;
  if (event.has("vram_budget_mb"))
    sizes.vramBudgetBytes = event.bytesOfMiB("vram_budget_mb");
  if (event.has("host_budget_mb"))
    sizes.hostBudgetBytes = event.bytesOfMiB("host_budget_mb");
  return sizes;
}

Json WeightReplayer::limits(EventReader &event) {
  WeightLimits limits = config_.limits(readSizes(event, event.bytesOfMiB("largest_mb")));
  return {{"slab_mb", double(limits.slabBytes) / (1 << 20)},
          {"pool_mb", double(limits.slabBytes * limits.slabs) / (1 << 20)},
          {"high_mb", double(limits.highBytes) / (1 << 20)},
          {"low_mb", double(limits.lowBytes) / (1 << 20)}};
}

/// A policy of given limits in the place of the one before.
Json WeightReplayer::start(EventReader &event) {
  WeightLimits limits{.slabBytes = event.integer("slab_bytes"),
                      .slabs = event.integer("slabs"),
                      .highBytes = event.integer("high_bytes"),
                      .lowBytes = event.integer("low_bytes")};
  scopes_.clear();
  stagehand_ = std::make_unique<WeightStagehand>(config_, limits);
  return Json::object();
}

Json WeightReplayer::registerBlocks(EventReader &event) {
  static constexpr const char *form = "a list of [id, MiB, optional backing, optional staged]";
  const Json &blocks = event.json("blocks");
  if (!blocks.is_array())
    event.refuse("blocks", form);
  std::vector<WeightBlock> read;
  int64_t largest = 0;
  for (const Json &each : blocks) {
    if (!each.is_array() || each.size() < 2 || !each[0].is_string() || !each[1].is_number() ||
        (each.size() > 2 && !each[2].is_string()) || (each.size() > 3 && !each[3].is_boolean()))
      event.refuse("blocks", form);
    WeightBlock &block = read.emplace_back();
    block.id = each[0].get<std::string>();
    block.bytes = int64_t(each[1].get<double>() * (1 << 20));
    if (each.size() > 2) {
      auto backing = fromName<WeightBacking>(each[2].get<std::string>());
      if (!backing)
        event.refuse("blocks", "resident_source, file, slab, file + mutable");
      block.backing = *backing;
    }
    block.staged = each.size() > 3 ? each[3].get<bool>() : block.backing != WeightBacking::ResidentSource;
    block.model = event.text("model", "");
    largest = std::max(largest, block.bytes);
  }
  WeightSizes sizes = readSizes(event, largest);
  if (!stagehand_)
    stagehand_ = std::make_unique<WeightStagehand>(config_, config_.limits(sizes));
  for (WeightBlock &block : read)
    stagehand_->registerBlock(std::move(block));
  if (event.has("ring")) {
    int64_t slots = event.integer("ring");
    stagehand_->setRing({.slots = slots,
                         .most = slots,
                         .slotBytes = event.has("slot_mb") ? event.bytesOfMiB("slot_mb") : 0,
                         .openAtOnce = event.integer("open", 1)});
  }
  return Json::object();
}

Json WeightReplayer::pool() const {
  const HostSlabQueue &slabs = stagehand_->slabs();
  return {{"free", slabs.free()},
          {"in_use", slabs.inUse()},
          {"peak_in_use", slabs.peakInUse()},
          {"wait_count", slabs.waitCount()},
          {"total_wait_ms", slabs.totalWaitMs()}};
}

Json WeightReplayer::before(EventReader &event) {
  static constexpr std::string_view names[] = {"HIT", "LATE", "MISS"};
  if (event.has("used_mb"))
    stagehand().measure(event.bytesOfMiB("used_mb"));
  BeforeBlock before = stagehand().beforeBlock(event.text("id"));
  Json answer = answerOf(*stagehand_, before.actions);
  answer["use"] = names[size_t(before.use)];
  return answer;
}

static BlockOutput readOutput(EventReader &event) {
  BlockOutput output{event.integer("nans", 0), event.integer("infs", 0), {}};
  if (event.has("compute_ms"))
    output.computeMs = event.number("compute_ms");
  return output;
}

/// The events that end a copy, or leave a block.
Json WeightReplayer::moved(EventReader &event) {
  const std::string &op = event.op();
  std::string id = event.text("id");
  if (op == "after_block") {
    if (event.has("used_mb"))
      stagehand().measure(event.bytesOfMiB("used_mb"));
    return answerOf(*stagehand_, stagehand().afterBlock(id, readOutput(event)));
  }
  if (op == "loaded")
    return answerOf(*stagehand_, stagehand().loaded(id, {event.number("copy_ms", 0), event.number("file_read_ms", 0)}));
  if (op == "load_denied")
    return answerOf(*stagehand_, stagehand().loadDenied(id));
  if (op == "evicted")
    return answerOf(*stagehand_, stagehand().evicted(id));
  if (op == "drop")
    return answerOf(*stagehand_, stagehand().drop(id));
  if (op == "save_back_failed")
    return answerOf(*stagehand_, stagehand().saveBackFailed(id));
  LoadFailure failure = stagehand().loadFailed(id);
  Json answer = answerOf(*stagehand_, failure.actions);
  answer["action"] = failure.retry ? "RETRY" : "FAIL";
  if (!failure.retry)
    answer["error"] = errorCodeName(ErrorCode::TransferFailed);
  return answer;
}

Json WeightReplayer::apply(EventReader &event) {
  const std::string &op = event.op();
  if (op == "start")
    return start(event);
  if (op == "register")
    return registerBlocks(event);
  if (op == "ring") {
    WeightRing ring = stagehand().ring();
    ring.slots = event.integer("slots");
    ring.most = event.integer("most", ring.most);
    ring.slotBytes = event.integer("slot_bytes", ring.slotBytes);
    ring.openAtOnce = event.integer("open", ring.openAtOnce);
    stagehand().setRing(ring);
    return Json::object();
  }
  if (op == "restate") {
    stagehand().restate(event.text("id"), event.integer("bytes"), event.boolean("staged", false));
    return Json::object();
  }
  if (op == "observe") {
    stagehand().observe(event.text("id"), readOutput(event));
    return Json::object();
  }
  if (op == "promotion") {
    stagehand().checkPromotion(event.text("id"), event.text("takes"), event.text("gives"));
    return Json::object();
  }
  if (op == "saved_back") {
    stagehand().savedBack(event.text("id"));
    return Json::object();
  }
  if (op == "abandon_uses") {
    stagehand().abandonUses();
    return Json::object();
  }
  if (op == "limits")
    return limits(event);
  if (op == "config_case")
    return answerConfigCase(log_, event, [](ConfigReader &reader) { WeightStagehandConfig::read(reader); });
  if (op == "score_v0")
    return {{"score", WeightStagehand::scoreOfV0(event.integer("order"), event.integer("position"),
                                                 event.integer("blocks"), event.integer("bytes"))}};
  if (op == "order") {
    auto phase = fromName<StepPhase>(event.text("phase"));
    if (!phase)
      event.refuse("phase", "FORWARD, BACKWARD, OPTIMIZER");
    stagehand().setOrder(*phase, event.texts("ids"));
    return Json::object();
  }
  if (op == "begin_step") {
    stagehand().beginStep(event.integer("step"), event.boolean("training", true));
    return Json::object();
  }
  if (op == "phase") {
    auto phase = fromName<StepPhase>(event.text("phase"));
    if (!phase)
      event.refuse("phase", "STEP_BEGIN, FORWARD, BACKWARD, OPTIMIZER, STEP_END");
    stagehand().enterPhase(*phase);
    return Json::object();
  }
  if (op == "hints") {
    WeightHints hints;
    hints.maxInflightH2d = event.integer("h2d", hints.maxInflightH2d);
    hints.windowCap = event.integer("window", hints.windowCap);
    hints.suppressSpeculative = event.boolean("suppress", false);
    stagehand().setHints(hints);
    return {{"window", stagehand().window()}};
  }
  if (op == "measure") {
    std::optional<int64_t> reserved;
    if (event.has("vram_reserved_mb"))
      reserved = event.bytesOfMiB("vram_reserved_mb");
    stagehand().measure(event.bytesOfMiB("vram_allocated_mb"), reserved);
    return {{"wants_slot", stagehand().wantsSlot()}};
  }
  if (op == "before_block")
    return before(event);
  if (op == "after_block" || op == "loaded" || op == "load_failed" || op == "load_denied" || op == "evicted" ||
      op == "save_back_failed" || op == "drop")
    return moved(event);
  if (op == "changed") {
    stagehand().changed(event.text("id"), event.bytesOrMiB());
    return Json::object();
  }
  if (op == "make_room")
    return answerOf(stagehand().makeRoom(event.bytesOrMiB()));
  if (op == "next_use")
    return {{"distance", stagehand().nextUse(event.text("id"))}};
  if (op == "stall") {
    stagehand().addStall(event.number("ms"));
    return Json::object();
  }
  if (op == "in_time") {
    stagehand().inTime(event.text("id"));
    return Json::object();
  }
  if (op == "state")
    return {{"state", nameOf(stagehand().state(event.text("id")))}, {"uses", stagehand().useCount(event.text("id"))}};
  if (op == "keep") {
    scopes_[event.text("id")] = stagehand().keepResident(event.texts("ids"));
    return Json::object();
  }
  if (op == "reserve") {
    bool primary = event.text("rank", "PRIMARY") == "PRIMARY";
    scopes_[event.text("id")] = stagehand().reserve(
        event.text("model"), primary ? ResidencyRank::Primary : ResidencyRank::Secondary, event.bytesOrMiB());
    return Json::object();
  }
  if (op == "guest") {
    scopes_[event.text("id")] = stagehand().asGuest(event.text("model"));
    return {{"headroom_mb", double(stagehand().headroomBytes()) / (1 << 20)}};
  }
  if (op == "release") {
    scopes_[event.text("id")].release();
    return {{"headroom_mb", double(stagehand().headroomBytes()) / (1 << 20)}};
  }
  if (op == "pool_wait")
    return {{"warning", stagehand().addPoolWait(event.text("id"), event.number("ms"))}};
  if (op == "pool") {
    stagehand();
    return pool();
  }
  if (op == "abort_step") {
    stagehand().abortStep();
    return stagehand_->telemetry();
  }
  if (op == "end_step") {
    Json answer = answerOf(stagehand().endStep());
    answer.update(stagehand_->telemetry());
    answer["rolling"] = stagehand_->rolling();
    answer["line"] = stagehand_->logLine();
    answer["window"] = stagehand_->window();
    return answer;
  }
  event.unknownOp({"start",        "register",   "limits",           "config_case", "score_v0",
                   "order",        "ring",       "restate",          "begin_step",  "phase",
                   "hints",        "measure",    "before_block",     "after_block", "observe",
                   "promotion",    "loaded",     "load_failed",      "load_denied", "evicted",
                   "drop",         "saved_back", "save_back_failed", "changed",     "make_room",
                   "next_use",     "stall",      "in_time",          "state",       "keep",
                   "reserve",      "guest",      "release",          "pool",        "pool_wait",
                   "abandon_uses", "abort_step", "end_step"});
}

std::unique_ptr<Replayer> createWeightReplayer(const ReplayLog &log) { return std::make_unique<WeightReplayer>(log); }

} // namespace segue::tool
