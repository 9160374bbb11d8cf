//===- WeightStagehandTest.cpp - which weights are on the device ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The worked examples of docs/specs are replay logs (weight-*.json in
// test/tools/segue-run/replay); here are what a log cannot say, the parts, and
// what must hold for any sequence of events.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "WeightRig.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightMatching.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

using namespace segue;
using namespace segue::test;

static bool has(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

//===----------------------------------------------------------------------===//
// Config
//===----------------------------------------------------------------------===//

TEST(WeightConfig, DefaultsAreTheSpecifications) {
  WeightStagehandConfig config = parse("{}");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.pinnedSlabAlignment, 512);
  EXPECT_EQ(config.maxInflightTransfers, 2);
  EXPECT_EQ(config.copyStreamPriority, -1);
  EXPECT_EQ(config.policy, WeightStagehandConfig::Policy::Static);
  EXPECT_EQ(config.prefetchWindowBlocks, 3);
  EXPECT_EQ(config.evictionCooldownSteps, 2);
  EXPECT_TRUE(config.strictBf16 && config.failOnDtypePromotion && config.nanInfCheck);
  EXPECT_TRUE(config.telemetry.enabled);
  EXPECT_EQ(config.telemetry.file, "stagehand_telemetry.jsonl");
  EXPECT_EQ(config.telemetryIntervalSteps, 10);
  EXPECT_FALSE(config.debugTrace || config.squareqSlab || config.squareqManifest);
  WeightLimits limits = config.limits({});
  EXPECT_EQ(limits.slabBytes, 256 * mib);
  EXPECT_EQ(limits.slabs, 8192 / 256);
  EXPECT_EQ(limits.highBytes, 22000 * mib);
  EXPECT_EQ(limits.lowBytes, 18000 * mib);
}

TEST(WeightConfig, SlabsAreRoundedUpToTheirAlignment) {
  WeightLimits limits =
      parse(R"({"pinned_pool_mb": 6, "pinned_slab_mb": 3, "pinned_slab_alignment": 2097152})").limits({});
  EXPECT_EQ(limits.slabBytes, 4 * mib);
  EXPECT_EQ(limits.slabs, 2);
}

TEST(WeightConfig, SaysWhatIsWrong) {
  auto message = [](const char *text) {
    auto [code, what] = errorOf([&] { parse(text); });
    EXPECT_EQ(code, ErrorCode::ConfigInvalid) << text;
    return what;
  };
  EXPECT_TRUE(has(message(R"({"pinned_pool_mb": 1000, "pinned_slab_mb": 300})"), "pool must be a multiple of slab"));
  EXPECT_TRUE(has(message(R"({"pinned_slab_mb": 300})"), "pool must be a multiple of slab: 8192 and 300 MiB"));
  EXPECT_TRUE(has(message(R"({"pinned_slab_alignment": 500})"), "a power of two"));
  EXPECT_TRUE(has(message(R"({"vram_high_watermark_mb": 100, "vram_low_watermark_mb": 100})"),
                  "high must be greater than low"));
  EXPECT_TRUE(has(message(R"({"vram_low_watermark_mb": 22000})"), "high must be greater than low"));
  EXPECT_TRUE(has(message(R"({"squareq_manifest_path": "x"})"), "given both or not at all"));
  EXPECT_TRUE(has(message(R"({"strict_bf61": true})"), "strict_bf16"));
  // A low mark of the file above the automatic high one.
  auto [code, what] = errorOf([] {
    parse(R"({"vram_low_watermark_mb": 900})").limits({.largestBlockBytes = mib, .vramBudgetBytes = 1000 * mib});
  });
  EXPECT_EQ(code, ErrorCode::ConfigInvalid);
  EXPECT_TRUE(has(what, "memory.stagehand.vram_low_watermark_mb: high must be greater than low")) << what;
}

TEST(WeightConfig, ClampsThePriorityWithAWarning) {
  std::string warning;
  EXPECT_EQ(parse("{}").copyPriority(-5, 0, &warning), -1);
  EXPECT_EQ(warning, "");
  EXPECT_EQ(parse(R"({"copy_stream_priority": -9})").copyPriority(-5, 0, &warning), -5);
  EXPECT_EQ(warning, "memory.stagehand.copy_stream_priority: -9 is outside of the device's range, -5 to 0; -5 is used");
}

//===----------------------------------------------------------------------===//
// The pool
//===----------------------------------------------------------------------===//

TEST(HostSlabQueue, AllOrNone) {
  HostSlabQueue slabs(100, 4);
  EXPECT_EQ(slabs.slabsFor(101), 2);
  EXPECT_TRUE(slabs.acquire("a", 300, true));
  // Two waiters of 2 slabs each never hold one each.
  EXPECT_FALSE(slabs.acquire("b", 200, true));
  EXPECT_FALSE(slabs.acquire("c", 200, true));
  EXPECT_EQ(slabs.inUse(), 3);
  // First come, first served: one slab is free, and nobody passes.
  EXPECT_FALSE(slabs.acquire("d", 100, false));
  EXPECT_EQ(slabs.release("a"), (Ids{"b", "c"}));
  EXPECT_EQ(slabs.peakInUse(), 4);
  EXPECT_EQ(slabs.waitCount(), 2);
}

TEST(HostSlabQueue, SaysWhatIsWrong) {
  HostSlabQueue slabs(100, 2);
  auto expect = [](ErrorCode code, const char *part, std::pair<ErrorCode, std::string> error) {
    EXPECT_EQ(error.first, code);
    EXPECT_TRUE(has(error.second, part)) << error.second;
  };
  expect(ErrorCode::InvalidArgument, "\"a\" needs 3 slabs of 100 bytes, and the pool has 2; raise pinned_pool_mb",
         errorOf([&] { slabs.acquire("a", 201, true); }));
  slabs.acquire("a", 200, true);
  slabs.acquire("b", 100, true);
  expect(ErrorCode::StateTransition, "\"a\" holds slabs already", errorOf([&] { slabs.acquire("a", 1, true); }));
  expect(ErrorCode::StateTransition, "\"b\" waits for slabs already", errorOf([&] { slabs.acquire("b", 1, true); }));
  EXPECT_EQ(slabs.addWait("b", 99), "");
  EXPECT_EQ(slabs.addWait("b", 120),
            "pinned pool: \"b\" waited 120 ms for slabs; all 2 are in use, raise pinned_pool_mb");
  EXPECT_EQ(slabs.totalWaitMs(), 219);
  EXPECT_EQ(slabs.shutDown(), Ids{"b"});
  expect(ErrorCode::ShutDown, "after the pool was shut down", errorOf([&] { slabs.acquire("c", 1, true); }));
  slabs.release("a");
  expect(ErrorCode::StateTransition, "gives slabs back that it does not hold", errorOf([&] { slabs.release("a"); }));
}

//===----------------------------------------------------------------------===//
// Guards, matching
//===----------------------------------------------------------------------===//

TEST(WeightGuards, RefuseOtherTypes) {
  WeightStagehand strict = make("{}", {{"a", 1}});
  strict.checkStored("w", ElementType::bf16, ElementType::bf16);
  auto [code, what] = errorOf([&] { strict.checkStored("w", ElementType::f32, ElementType::bf16); });
  EXPECT_EQ(code, ErrorCode::DtypeMismatch);
  EXPECT_TRUE(has(what, "weight \"w\" is stored as f32 and declared as bf16")) << what;
  strict.checkPromotion("a", "bf16", "f16");
  strict.checkPromotion("a", "f64", "f32");
  EXPECT_EQ(errorOf([&] { strict.checkPromotion("a", "fp8", "bf16"); }).first, ErrorCode::DtypeMismatch);

  WeightStagehand lenient =
      make(R"({"strict_bf16": false, "fail_on_dtype_promotion": false, "nan_inf_check": false})", {{"a", 1}});
  lenient.checkStored("w", ElementType::f32, ElementType::bf16);
  lenient.beginStep(1);
  lenient.checkPromotion("a", "f16", "f32");
  lenient.enterPhase(StepPhase::Forward);
  lenient.beforeBlock("a");
  lenient.loaded("a");
  lenient.afterBlock("a", {.nans = 3});
  lenient.endStep();
  EXPECT_EQ(lenient.telemetry()["dtype_promotions"], 1);
  EXPECT_EQ(lenient.telemetry()["nan_count"], 0);
}

TEST(WeightMatching, ListsAllThatDoesNotMatchOnBothSides) {
  std::vector<FrozenWeight> wanted{{"h.0.to_q.weight", {4, 8}}, {"h.0.norm.weight", {4}}, {"h.1.to_q.weight", {4, 8}}};
  std::vector<SourceWeight> sources{
      {"h.0.q_proj.orig.weight", {4, 8}}, {"h.0.norm.weight", {4}, ElementType::f32}, {"lm_head.weight", {9, 4}}};
  auto [code, what] = errorOf([&] { matchWeights(wanted, sources, {{"to_q", "q_proj"}}); });
  EXPECT_EQ(code, ErrorCode::MissingWeight);
  EXPECT_EQ(what, "MISSING_WEIGHT: 2 of 3 frozen weights have no source; declare aliases or give a file that has them:"
                  "\n  wanted h.0.norm.weight (bf16[4]): the source has f32[4]"
                  "\n  wanted h.1.to_q.weight (bf16[4,8]): no source has it"
                  "\n  left over in the source: lm_head.weight");
  wanted.pop_back();
  WeightMatch match = matchWeights(wanted, sources, {{"to_q", "q_proj"}}, /*strictTypes=*/false);
  EXPECT_EQ(match.sources, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(match.unused, Ids{"lm_head.weight"});
}

//===----------------------------------------------------------------------===//
// Planned
//===----------------------------------------------------------------------===//

TEST(WeightPlan, HidesWhatComputeCovers) {
  std::vector<uint32_t> order{0, 1, 2, 3, 4, 4, 3, 2, 1, 0};
  std::vector<PlannedWeight> even(5, {.size = mib, .computeMs = 2, .loadMs = 2});
  // A load ahead suffices; nothing need stay.
  WeightPlan plan = planWeights(order, even, {.cap = 2 * mib}, 1);
  EXPECT_EQ(plan.window, 1);
  EXPECT_TRUE(plan.resident.empty());
  EXPECT_NEAR(plan.exposedMs, 0, 1e-6);
  // Loads of three times the compute: whatever fits stays, and more helps.
  std::vector<PlannedWeight> slow(5, {.size = mib, .computeMs = 2, .loadMs = 6});
  WeightPlan small = planWeights(order, slow, {.cap = 3 * mib}, 1),
             large = planWeights(order, slow, {.cap = 4 * mib}, 1);
  EXPECT_LT(large.exposedMs, small.exposedMs);
  EXPECT_LT(small.exposedMs, exposedLoadMs(order, slow, 0, std::vector<bool>(5), {.cap = mib}));
  EXPECT_EQ(planWeights(order, slow, {.cap = 6 * mib}, 1).exposedMs, 0);
  // Nothing fits: the least window, at its cost.
  EXPECT_EQ(planWeights(order, slow, {}, 1).window, 1);
}

// Residents leave slots for what runs, for what else is open and for the window.
// A long load that little computes beside is what stays.
TEST(WeightPlan, ResidentsLeaveRoomInARing) {
  std::vector<uint32_t> order{0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
  std::vector<PlannedWeight> weights(6, {.size = 1, .computeMs = 2, .loadMs = 1.5});
  weights[3].loadMs = 9;
  for (int64_t slots = 1; slots <= 7; ++slots)
    for (int64_t beside : {0, 1}) {
      WeightRoom room{.cap = slots, .openBeside = beside};
      WeightPlan plan = planWeights(order, weights, room, 0);
      EXPECT_LE(int64_t(plan.resident.size()), std::max<int64_t>(slots - beside - 1 - plan.window, 0));
      if (slots - beside == 3) {
        EXPECT_EQ(plan.resident, std::vector<uint32_t>{3});
        EXPECT_LT(plan.exposedMs, exposedLoadMs(order, weights, plan.window, std::vector<bool>(6), room));
      }
      if (slots - beside >= 6) {
        EXPECT_EQ(plan.exposedMs, 0) << "all are there";
      }
    }
}

// What somebody writes between steps is loaded in every step, wherever it lies:
// all of them fit, and the window hides their loads.
TEST(WeightPlan, WhatIsReadAnewIsLoadedAhead) {
  std::vector<uint32_t> order{0, 1, 2, 3, 3, 2, 1, 0};
  std::vector<PlannedWeight> weights(4, {.size = 1, .computeMs = 3, .loadMs = 2});
  EXPECT_EQ(planWeights(order, weights, {.cap = 4}, 0).exposedMs, 0);
  for (PlannedWeight &each : weights)
    each.isReadAnew = true;
  WeightPlan plan = planWeights(order, weights, {.cap = 4}, 0);
  EXPECT_GE(plan.window, 1);
  EXPECT_EQ(plan.exposedMs, 2) << "the first one's";
}

// Two blocks whose loads differ by less than a tenth: whichever is there stays. One
// that takes four times as long is kept in its place.
TEST(WeightPlan, ResidentsStayForATenth) {
  std::vector<uint32_t> order{0, 1, 2, 3, 3, 2, 1, 0};
  std::vector<PlannedWeight> weights(4, {.size = 1, .computeMs = 0.1, .loadMs = 4});
  weights[1].loadMs = 10;
  WeightPlan plan = planWeights(order, weights, {.cap = 2}, 0);
  ASSERT_EQ(plan.resident, std::vector<uint32_t>{1});
  weights[2].loadMs = 10.1;
  EXPECT_NE(planWeights(order, weights, {.cap = 2}, 0).resident, std::vector<uint32_t>{1});
  EXPECT_EQ(planWeights(order, weights, {.cap = 2}, 0, &plan).resident, std::vector<uint32_t>{1});
  weights[2].loadMs = 40;
  EXPECT_EQ(planWeights(order, weights, {.cap = 2}, 0, &plan).resident, std::vector<uint32_t>{2});
}

TEST(WeightPlan, DriftsByATenth) {
  WeightPlan plan{.weights = {{mib, 10, 20}}};
  EXPECT_FALSE(hasDrifted(plan, std::vector<PlannedWeight>{{mib, 10.9, 18.1}}));
  EXPECT_TRUE(hasDrifted(plan, std::vector<PlannedWeight>{{mib, 11.1, 20}}));
  EXPECT_TRUE(hasDrifted(plan, std::vector<PlannedWeight>{{mib, 10, 17.9}}));
}

/// `longMs`: how long the loads of "c" and "d" take, if not as the others do.
static Json runStep(WeightStagehand &stagehand, int64_t step, const Ids &ids, double computeMs, double loadMs,
                    double longMs = 0) {
  auto loadMsOf = [&](const std::string &id) { return longMs > 0 && (id == "c" || id == "d") ? longMs : loadMs; };
  stagehand.beginStep(step);
  stagehand.enterPhase(StepPhase::Forward);
  for (const std::string &id : ids)
    runBlock(stagehand, id, computeMs, loadMsOf(id));
  stagehand.enterPhase(StepPhase::Backward);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id)
    runBlock(stagehand, *id, computeMs, loadMsOf(*id));
  for (const WeightAction &action : stagehand.endStep())
    if (action.kind == WeightAction::Kind::Evict)
      stagehand.evicted(action.block);
  return stagehand.telemetry();
}

// The plan is made when all times are known, and again when they drift.
TEST(WeightPolicy, PlannedFollowsTheMeasurements) {
  WeightStagehand stagehand = make(R"({"policy": "planned", "prefetch_window_blocks": 2})", sized(six), 4);
  EXPECT_EQ(stagehand.window(), 2);
  EXPECT_FALSE(stagehand.plan());
  runStep(stagehand, 0, six, 2, 1); // loads are short
  ASSERT_TRUE(stagehand.plan());
  EXPECT_EQ(stagehand.window(), stagehand.plan()->window);
  EXPECT_EQ(stagehand.plan()->exposedMs, 0);
  runStep(stagehand, 1, six, 2, 1.05); // within a tenth
  EXPECT_EQ(stagehand.plan()->weights[0].loadMs, 1);
  runStep(stagehand, 2, six, 2, 9); // and now they are not
  EXPECT_EQ(stagehand.plan()->weights[1].loadMs, 9);
  // What the plan keeps is never loaded again once it is there.
  runStep(stagehand, 3, six, 2, 9);
  int64_t streamed = int64_t(six.size() - stagehand.plan()->resident.size());
  Json settled = runStep(stagehand, 4, six, 2, 9);
  EXPECT_LE(settled["loads"].get<int64_t>(), 2 * streamed);
}

// A block takes a slot whatever its size: one that is large, seven that are small.
TEST(WeightPolicy, PlannedKeepsToTheSlots) {
  std::vector<std::pair<std::string, int64_t>> blocks{{"large", 8 * mib}};
  Ids ids{"large"};
  for (int i = 0; i < 7; ++i) {
    ids.push_back("h." + std::to_string(i));
    blocks.push_back({ids.back(), mib / 8});
  }
  for (double loadMs : {0.5, 3.0, 9.0}) {
    WeightStagehand stagehand = make(R"({"policy": "planned", "prefetch_window_blocks": 2})", blocks, 3);
    for (int64_t step = 0; step < 6; ++step)
      runStep(stagehand, step, ids, 2, step > 3 ? 5 * loadMs : loadMs);
    ASSERT_TRUE(stagehand.plan());
    EXPECT_LE(int64_t(stagehand.plan()->resident.size()), 2 - stagehand.window());
  }
}

/// Six blocks of 1 MiB, and the loads of two take long, after two steps.
static WeightStagehand plannedInARing() {
  WeightStagehand stagehand = make(R"({"policy": "planned", "prefetch_window_blocks": 0})", sized(six));
  stagehand.setRing(fourSlots);
  for (int64_t step = 0; step < 2; ++step)
    runStep(stagehand, step, six, 2, 4, 30);
  EXPECT_TRUE(stagehand.plan() && !stagehand.plan()->resident.empty());
  return stagehand;
}

// Fewer slots than the plan was made for: what it keeps leaves where nothing else
// can, and the next step has another plan.
TEST(WeightPolicy, APlanGivesWayToARingThatShrinks) {
  WeightStagehand stagehand = plannedInARing();
  stagehand.beginStep(2);
  stagehand.enterPhase(StepPhase::Forward);
  runBlock(stagehand, "a", 2, 9);
  size_t given = 0;
  for (const WeightAction &action : stagehand.makeRoom(100 * mib))
    if (action.kind == WeightAction::Kind::GiveSlot)
      ++given;
    else
      stagehand.evicted(action.block);
  EXPECT_EQ(given, 3u) << "one stays for what runs";
  EXPECT_EQ(stagehand.ring().slots, 1);
  EXPECT_FALSE(stagehand.wantsSlot()) << "for good";
  for (const char *id : {"b", "c", "d", "e", "f"})
    runBlock(stagehand, id, 2, 9);
  stagehand.enterPhase(StepPhase::Backward);
  for (const char *id : {"f", "e", "d", "c", "b", "a"})
    runBlock(stagehand, id, 2, 9);
  stagehand.endStep();
  EXPECT_EQ(stagehand.plan()->cap, 1);
  EXPECT_TRUE(stagehand.plan()->resident.empty());
  // And a ring that others shrank between steps.
  WeightStagehand other = plannedInARing();
  other.setRing({.slots = 2, .most = 2, .slotBytes = mib});
  EXPECT_LE(other.plan()->resident.size(), 1u);
  runStep(other, 2, six, 2, 9);
}

// Blocks that a scope keeps take slots that no plan has.
TEST(WeightPolicy, APlanCountsWhatScopesKeep) {
  WeightStagehand stagehand = plannedInARing();
  auto scope = stagehand.keepResident(Ids{"a", "b"});
  for (int64_t step = 2; step < 5; ++step)
    runStep(stagehand, step, six, 2, 9);
  EXPECT_LE(stagehand.plan()->resident.size(), 1u);
  EXPECT_EQ(stagehand.plan()->cap, 2);
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

// What reads a block may be queued behind its load: it has run, as far as the policy
// knows, and does not leave before the load is told of. What had arrived when the
// device came to it was a hit.
TEST(WeightPolicy, ReadersMayWaitInTheirQueue) {
  WeightStagehand stagehand = make(R"({"prefetch_window_blocks": 1})", sized({"a", "b"}), 2);
  stagehand.beginStep(1);
  stagehand.enterPhase(StepPhase::Forward);
  EXPECT_EQ(stagehand.beforeBlock("a").use, BeforeBlock::Use::Miss);
  stagehand.afterBlock("a");
  EXPECT_EQ(stagehand.beforeBlock("b").use, BeforeBlock::Use::Late);
  stagehand.afterBlock("b");
  EXPECT_TRUE(stagehand.makeRoom(mib).empty()) << "both are on their way";
  stagehand.inTime("b");
  auto [code, what] = errorOf([&] { stagehand.inTime("b"); });
  EXPECT_EQ(code, ErrorCode::StateTransition);
  EXPECT_TRUE(has(what, "block \"b\" was in time, and none of the step was late")) << what;
  stagehand.loaded("a");
  EXPECT_TRUE(stagehand.loadFailed("b").retry);
  EXPECT_FALSE(stagehand.loadFailed("b").retry);
  EXPECT_EQ(stagehand.state("b"), BlockState::Unloaded);
  stagehand.endStep();
  Json record = stagehand.telemetry();
  EXPECT_EQ(record["prefetch_hits"], 1);
  EXPECT_EQ(record["prefetch_late"], 0);
  EXPECT_EQ(record["prefetch_misses"], 1);
  EXPECT_EQ(record["stall_count"], 1);
  WeightStagehand none = make("{}", sized({"a"}), 1);
  none.beginStep(1);
  none.enterPhase(StepPhase::Forward);
  none.beforeBlock("a");
  none.loadFailed("a"), none.loadFailed("a");
  std::tie(code, what) = errorOf([&] { none.afterBlock("a"); });
  EXPECT_EQ(code, ErrorCode::StateTransition);
  EXPECT_TRUE(has(what, "\"a\" has run, and it is UNLOADED: report its load first")) << what;
}

TEST(WeightPolicy, RecordHasTheKeysOfTheSpecification) {
  WeightStagehand stagehand = make("{}", sized(six), 3);
  Json record = runStep(stagehand, 7, six, 1, 0.5);
  Ids keys;
  for (const auto &[key, value] : record.items())
    keys.push_back(key);
  Ids expected{"step",
               "h2d_bytes",
               "d2h_bytes",
               "copy_time_ms",
               "compute_time_ms",
               "stall_time_ms",
               "stall_count",
               "evictions",
               "prefetch_hits",
               "prefetch_misses",
               "vram_used_mb",
               "vram_reserved_mb",
               "host_pool_free",
               "host_pool_in_use",
               "dtype_promotions",
               "nan_count",
               "inf_count",
               "prefetch_late",
               "loads",
               "reload_ratio",
               "file_read_ms",
               "denied_speculative",
               "save_back_bytes",
               "blocks_rescued",
               "blocks_lent",
               "aborted"};
  std::ranges::sort(expected);
  std::ranges::sort(keys);
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(record["compute_time_ms"], 12);
  EXPECT_EQ(record["copy_time_ms"].get<double>(), 0.5 * record["loads"].get<double>());
  EXPECT_EQ(stagehand.logLine(), ""); // step 7 of every tenth
}

TEST(WeightPolicy, TrendOfMemory) {
  WeightStagehand stagehand = make("{}", {{"a", 1}});
  stagehand.beginStep(0);
  stagehand.measure(900 * mib);
  stagehand.endStep();
  EXPECT_EQ(stagehand.rolling()["vram_trend"], "stable"); // under three steps
  auto run = [&](int64_t usedMiB, int steps) {
    for (int i = 0; i < steps; ++i) {
      stagehand.beginStep(i);
      stagehand.measure(usedMiB * mib);
      stagehand.endStep();
    }
    return stagehand.rolling()["vram_trend"].get<std::string>();
  };
  EXPECT_EQ(run(100, 100), "stable");
  EXPECT_EQ(run(150, 50), "stable"); // 50 is not more than 50
  EXPECT_EQ(run(300, 1), "growing"); // 153 against 101
  EXPECT_EQ(run(1, 50), "shrinking");
  EXPECT_EQ(stagehand.rolling()["steps"], 100);
}

// Between steps a block that was used lately stays, whatever the watermark.
TEST(WeightPolicy, CooldownCountsBetweenSteps) {
  WeightStagehand stagehand =
      make(R"({"prefetch_window_blocks": 0, "vram_high_watermark_mb": 2, "vram_low_watermark_mb": 1})",
           {{"a", mib}, {"b", mib / 4}});
  auto useA = [&](int64_t step) {
    stagehand.beginStep(step);
    stagehand.enterPhase(StepPhase::Forward);
    runBlock(stagehand, "a", 1, 1);
  };
  useA(1);
  stagehand.measure(3 * mib);
  EXPECT_TRUE(stagehand.endStep().empty()); // used in step 1, 1 > 1 - 2
  for (int64_t step : {2, 3}) {
    stagehand.beginStep(step);
    WeightActions actions = stagehand.endStep();
    EXPECT_EQ(actions.size(), step == 3 ? 1u : 0u);
  }
}

TEST(WeightPolicy, KeepsWhatAScopeHoldsEvenOnExceptions) {
  WeightStagehand stagehand = make(R"({"prefetch_window_blocks": 0})", sized({"a", "b"}), 1);
  stagehand.beginStep(0);
  stagehand.enterPhase(StepPhase::Forward);
  runBlock(stagehand, "a", 1, 1);
  try {
    auto scope = stagehand.keepResident(Ids{"a"});
    auto [code, what] = errorOf([&] { stagehand.beforeBlock("b"); });
    EXPECT_EQ(code, ErrorCode::DeviceOom);
    EXPECT_EQ(what, "DEVICE_OOM: weight stagehand: no room for block \"b\" (1048576 bytes): 1 slots, held by a "
                    "(1048576 bytes, kept resident)");
    EXPECT_EQ(stagehand.useCount("b"), 0); // nothing has changed
    throw 1;
  } catch (int) {
  }
  runBlock(stagehand, "b", 1, 1);
  EXPECT_EQ(stagehand.resident(), Ids{"b"});
  EXPECT_EQ(errorOf([&] { (void)stagehand.keepResident(Ids{"c"}); }).first, ErrorCode::NameUnknown);
}

// A recompute region: the block stands twice in the order and is loaded once.
TEST(WeightPolicy, RecomputedBlocksLoadOnce) {
  WeightStagehand stagehand = make(R"({"prefetch_window_blocks": 1})", sized({"a", "b", "c"}), 2);
  stagehand.setOrder(StepPhase::Backward, Ids{"c", "c", "b", "b", "a", "a"});
  stagehand.beginStep(0);
  stagehand.enterPhase(StepPhase::Forward);
  for (const char *id : {"a", "b", "c"})
    runBlock(stagehand, id, 1, 1);
  stagehand.enterPhase(StepPhase::Backward);
  for (const char *id : {"c", "c", "b", "b", "a", "a"})
    runBlock(stagehand, id, 1, 1);
  stagehand.endStep();
  EXPECT_EQ(stagehand.telemetry()["loads"], 4);
  EXPECT_EQ(stagehand.telemetry()["prefetch_misses"], 1);
}

TEST(WeightPolicy, EvaluationHasNoWayBack) {
  WeightStagehand stagehand = make(R"({"prefetch_window_blocks": 1})", sized({"a", "b", "c"}), 2);
  stagehand.beginStep(0, /*isTraining=*/false);
  stagehand.enterPhase(StepPhase::Forward);
  for (const char *id : {"a", "b", "c"})
    runBlock(stagehand, id, 1, 1);
  stagehand.endStep();
  EXPECT_EQ(stagehand.nextUse("a"), 1); // of the next step
  EXPECT_EQ(stagehand.resident(), (Ids{"a", "c"}));
}

// A block that is stored in another form takes other bytes from its next load
// on; not while it is on the device.
TEST(WeightPolicy, BlocksChangeTheirForm) {
  WeightStagehand stagehand = make("{}", {{"a", 8 * mib}, {"b", 8 * mib}});
  auto [code, what] = errorOf([&] { stagehand.restate("b", 0, false); });
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(has(what, "has 0 bytes")) << what;
  stagehand.restate("a", 4 * mib, false);
  stagehand.beginStep(0);
  stagehand.enterPhase(StepPhase::Forward);
  runBlock(stagehand, "a", 1, 1);
  stagehand.endStep();
  EXPECT_EQ(stagehand.telemetry()["h2d_bytes"], 12 * mib) << "and b ahead";
  std::tie(code, what) = errorOf([&] { stagehand.restate("a", 8 * mib, false); });
  EXPECT_EQ(code, ErrorCode::StateTransition);
  EXPECT_TRUE(has(what, "cannot be stored in another form now")) << what;
}

//===----------------------------------------------------------------------===//
// What holds after any events
//===----------------------------------------------------------------------===//

/// `slots`: whose memory is there, those that are still to be given back among
/// them.
static void expectSound(const WeightStagehand &stagehand, const Ids &ids, const std::map<std::string, int64_t> &bytes,
                        int64_t slots) {
  int64_t slabs = 0, onDevice = 0, ring = slots;
  EXPECT_LE(stagehand.ring().slots, slots);
  for (const std::string &id : ids) {
    BlockState state = stagehand.state(id);
    // Slabs are held by loads alone.
    slabs += stagehand.slabs().holds(id) ? stagehand.slabs().slabsFor(bytes.at(id)) : 0;
    if (stagehand.slabs().holds(id)) {
      EXPECT_TRUE(state == BlockState::Prefetching || stagehand.useCount(id) > 0);
    }
    onDevice += state == BlockState::Prefetching || state == BlockState::GpuReady || state == BlockState::Evicting;
  }
  EXPECT_EQ(slabs, stagehand.slabs().inUse());
  EXPECT_LE(stagehand.slabs().inUse(), stagehand.slabs().slabs());
  if (ring) {
    EXPECT_LE(onDevice, ring);
  }
}

// Blocks run in order while copies end late, fail and are denied: every block is
// there when it runs, slots and slabs are never exceeded, nothing waits for
// ever, and when the step is over nothing is held.
TEST(WeightProperty, HoldsAfterAnyEvents) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    int64_t ring = int64_t(random() % 4);
    Ids ids;
    std::map<std::string, int64_t> bytes;
    WeightStagehandConfig config =
        parse(random() % 2 ? R"({"prefetch_window_blocks": 2, "pinned_pool_mb": 6, "pinned_slab_mb": 2,
                                 "vram_high_watermark_mb": 9, "vram_low_watermark_mb": 6})"
                           : R"({"prefetch_window_blocks": 3, "pinned_pool_mb": 4, "pinned_slab_mb": 1,
                                 "max_inflight_transfers": 3, "policy": "planned"})");
    WeightStagehand stagehand(config, config.limits({}));
    for (size_t i = 0, count = 2 + random() % 8; i < count; ++i) {
      ids.push_back("b" + std::to_string(i));
      bytes[ids.back()] = int64_t(1 + random() % 4) * mib;
      stagehand.registerBlock({.id = ids.back(), .bytes = bytes[ids.back()], .staged = random() % 4 > 0});
    }
    bool ownsMemory = ring > 0 && random() % 2;
    if (ownsMemory)
      stagehand.setRing({.slots = ring, .most = ring, .slotBytes = 4 * mib});
    else
      stagehand.setRing(ring);

    std::vector<WeightAction> underWay;
    auto queue = [&](const WeightActions &actions) {
      for (const WeightAction &action : actions)
        if (action.kind == WeightAction::Kind::GiveSlot)
          --ring;
        else
          underWay.push_back(action);
      // Memory that is given up without a copy is free at once.
      for (size_t i = 0; i < underWay.size(); ++i)
        if (underWay[i].kind == WeightAction::Kind::Evict && !underWay[i].saveBack) {
          WeightActions more = stagehand.evicted(underWay[i].block);
          underWay.erase(underWay.begin() + int64_t(i--));
          for (const WeightAction &action : more)
            if (action.kind != WeightAction::Kind::GiveSlot)
              underWay.push_back(action);
        }
    };
    auto finishOne = [&] {
      size_t i = random() % underWay.size();
      WeightAction action = underWay[i];
      underWay.erase(underWay.begin() + int64_t(i));
      if (action.kind == WeightAction::Kind::Evict)
        return queue(random() % 8 ? stagehand.evicted(action.block) : stagehand.saveBackFailed(action.block));
      if (action.priority == Priority::Speculative && random() % 8 == 0 && stagehand.useCount(action.block) == 0)
        return queue(stagehand.loadDenied(action.block));
      if (random() % 16 == 0) {
        if (stagehand.loadFailed(action.block).retry)
          underWay.push_back(action);
        else
          throw Error(ErrorCode::TransferFailed, action.block);
        return;
      }
      queue(stagehand.loaded(action.block, {.copyMs = double(random() % 5)}));
    };
    int aborted = 0;
    for (int64_t step = 0; step < 6 && !::testing::Test::HasFailure(); ++step) {
      stagehand.beginStep(step);
      try {
        for (StepPhase phase : {StepPhase::Forward, StepPhase::Backward}) {
          stagehand.enterPhase(phase);
          for (size_t i = 0; i < ids.size(); ++i) {
            const std::string &id = phase == StepPhase::Forward ? ids[i] : ids[ids.size() - 1 - i];
            stagehand.setHints({.suppressSpeculative = random() % 4 == 0});
            if (ownsMemory)
              stagehand.measure(int64_t(random() % 3 ? 0 : random() % 10) * mib + stagehand.ring().slots * 4 * mib);
            while (stagehand.wantsSlot()) {
              WeightRing more = stagehand.ring();
              ++more.slots, ++ring;
              stagehand.setRing(more);
            }
            if (random() % 16 == 0)
              queue(stagehand.makeRoom(int64_t(random() % 6) * mib));
            queue(stagehand.beforeBlock(id).actions);
            expectSound(stagehand, ids, bytes, ring);
            while (stagehand.state(id) != BlockState::GpuReady) {
              ASSERT_FALSE(underWay.empty()) << id << " waits for ever: " << stagehand.describe();
              finishOne();
              expectSound(stagehand, ids, bytes, ring);
            }
            while (!underWay.empty() && random() % 2)
              finishOne();
            ASSERT_EQ(stagehand.state(id), BlockState::GpuReady);
            if (random() % 3 == 0)
              stagehand.changed(id, mib / 2);
            queue(stagehand.afterBlock(id, {.computeMs = double(random() % 5)}));
            expectSound(stagehand, ids, bytes, ring);
          }
        }
        queue(stagehand.endStep());
      } catch (const Error &error) {
        ASSERT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom) << error.what();
        ++aborted;
        stagehand.abortStep();
        EXPECT_TRUE(stagehand.telemetry()["aborted"]);
      }
      while (!underWay.empty())
        try {
          finishOne();
        } catch (const Error &) {
        }
      for (const std::string &id : ids)
        EXPECT_EQ(stagehand.useCount(id), 0);
      EXPECT_EQ(stagehand.slabs().inUse(), 0);
    }
    if (HasFailure())
      return; // the first is enough, with its seed
  }
}
