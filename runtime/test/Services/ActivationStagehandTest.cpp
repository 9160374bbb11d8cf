//===- ActivationStagehandTest.cpp - which activations leave --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The worked examples of docs/specs are replay logs (see
// test/tools/segue-run/replay); here are the states, the faults and what must
// hold for any sequence of events.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ActivationStagehand.h"
#include "ErrorOf.h"
#include "segue/runtime/Error.h"
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

using namespace segue;
using Save = SaveDecision::Kind;
using Need = NeedDecision::Kind;
using Transfer = TransferDecision::Kind;
using Ids = std::vector<std::string>;

static constexpr int64_t mib = 1 << 20;

static ActivationStagehandConfig parse(const char *text) {
  Json object = Json::parse(text);
  ConfigReader reader(object, "memory.stagehand.activation_stagehand", ConfigReader::Files::Ignore);
  return ActivationStagehandConfig::read(reader);
}

/// Spills everything: high 0 is not legal, so 1 MiB, and all saves say more.
static ActivationStagehandConfig spillAll() {
  return parse(R"({"vram_high_watermark_mb": 100, "vram_low_watermark_mb": 0, "pinned_pool_classes_mb": [1, 4],
                   "slabs_per_class": [2, 2], "max_inflight_d2h": 4, "max_inflight_h2d": 1})");
}

static SaveDecision save(ActivationStagehand &stagehand, const std::string &id, int64_t used = 200 * mib,
                         int64_t bytes = mib, bool recomputable = false) {
  return stagehand.save({.id = id, .bytes = bytes, .usedBytes = used, .recomputable = recomputable});
}

static Json endStep(ActivationStagehand &stagehand) {
  stagehand.stepEnd();
  return stagehand.telemetry();
}

static Json abortStep(ActivationStagehand &stagehand) {
  stagehand.abortStep();
  return stagehand.telemetry();
}

TEST(ActivationConfig, RefusesNonsense) {
  auto message = [](const char *text) {
    auto [code, what] = errorOf([&] { parse(text); });
    EXPECT_EQ(code, ErrorCode::ConfigInvalid) << text;
    return what;
  };
  auto has = [](const std::string &what, const char *part) {
    EXPECT_NE(what.find(part), std::string::npos) << part << " in " << what;
  };
  has(message(R"({"vram_high_watermark_mb": 100, "vram_low_watermark_mb": 100})"), "high must be greater than low");
  has(message(R"({"pinned_pool_classes_mb": [1, 4, 4]})"), "pinned_pool_classes_mb[2]");
  has(message(R"({"pinned_pool_classes_mb": [0, 4]})"), "pinned_pool_classes_mb[0]");
  has(message(R"({"slabs_per_class": [1, 2, 3, 4]})"), "5 classes, 4 counts");
  has(message(R"({"slabs_per_class": -1})"), "slabs_per_class");
  has(message(R"({"max_inflight_d2h": 0})"), "max_inflight_d2h");
  has(message(R"({"pinned_pool_max_mb": 1191})"), "initial pool of 1192 MiB");
  has(message(R"({"transfer_retries": 11})"), "transfer_retries");
  has(message(R"({"vram_high_watermark": 1})"), "vram_high_watermark_mb");
  has(message(R"({"mode": "oracle"})"), "planned");
  has(errorOf([] { parse("{}").checkCapacity(uint64_t(8) << 30); }).second, "8192 MiB");
  parse("{}").checkCapacity(uint64_t(24) << 30);
}

TEST(ActivationConfig, DefaultsAreTheSpecifications) {
  ActivationStagehandConfig config = parse("{}");
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.highWatermarkMiB, 20000);
  EXPECT_EQ(config.initialPoolMiB(), 1192);
  EXPECT_EQ(config.pinnedPoolMaxMiB, 2384);
  EXPECT_EQ(parse(R"({"slabs_per_class": 3})").slabsPerClass, std::vector<int64_t>(5, 3));
  EXPECT_EQ(parse(R"({"pinned_pool_classes_mb": [2, 8]})").slabsPerClass, std::vector<int64_t>(2, 2));
}

TEST(ActivationStagehand, SavesThatNeverLeaveSayWhy) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  EXPECT_EQ(stagehand.save({.id = "w", .bytes = mib, .usedBytes = 200 * mib, .notOwned = true}).reason, "not_owned");
  EXPECT_EQ(save(stagehand, "small", 200 * mib, 4095).reason, "too_small");
  EXPECT_EQ(save(stagehand, "least", 200 * mib, 4096).kind, Save::Spill);
  stagehand.setHints({.maxInflightD2h = 0});
  EXPECT_EQ(save(stagehand, "held").reason, "d2h_suppressed");
  stagehand.setHints({});
  EXPECT_EQ(stagehand.save({.id = "again", .bytes = mib, .usedBytes = 200 * mib, .planRecompute = true}).kind,
            Save::Recompute);
  Json record = endStep(stagehand);
  EXPECT_EQ(record["kept_reasons"], Json::parse(R"({"d2h_suppressed": 1, "not_owned": 1, "too_small": 1})"));
  EXPECT_EQ(record["activations_saved"], 5);
}

// A save decided before the watermarks are looked at must not move the flag.
TEST(ActivationStagehand, OwnershipComesBeforeTheWatermarks) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  stagehand.save({.id = "w", .bytes = mib, .usedBytes = 500 * mib, .notOwned = true});
  EXPECT_EQ(save(stagehand, "a", 99 * mib).reason, "not_pressured");
  EXPECT_EQ(save(stagehand, "b", 100 * mib).kind, Save::Spill);
  EXPECT_EQ(save(stagehand, "c", 0).kind, Save::Spill) << "low is 0: never below it";
  stagehand.stepEnd();
  stagehand.stepBegin(1);
  EXPECT_EQ(save(stagehand, "d", 50 * mib).reason, "not_pressured") << "the flag starts anew";
}

TEST(ActivationStagehand, OneStorageIsSavedOnce) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  auto event = SaveEvent{.id = "a", .bytes = mib, .usedBytes = 200 * mib, .storage = "s"};
  EXPECT_EQ(stagehand.save(event).kind, Save::Spill);
  event.id = "b";
  EXPECT_EQ(stagehand.save(event).kind, Save::Share);
  stagehand.transferDone("a");
  Ids order{"b", "a"};
  EXPECT_EQ(stagehand.backwardBegin(order, 50 * mib), Ids{"a"}) << "restored once";
  EXPECT_EQ(stagehand.need("b", 50 * mib).kind, Need::Wait);
  stagehand.release("b", 50 * mib);
  EXPECT_EQ(stagehand.need("a", 50 * mib).kind, Need::Use);
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 1);
  stagehand.release("a", 50 * mib);
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 2) << "the last use gives the slab back";
  Json record = endStep(stagehand);
  EXPECT_EQ(record["activations_saved"], 1);
  EXPECT_EQ(record["activations_shared"], 1);
  EXPECT_EQ(record["activations_leaked"], 0);
}

TEST(ActivationStagehand, RescueKeepsTheDeviceCopy) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  save(stagehand, "a");
  stagehand.backwardBegin(Ids{"a"}, 200 * mib);
  EXPECT_EQ(stagehand.need("a", 200 * mib).kind, Need::Rescue);
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 1) << "the copy still writes the slab";
  EXPECT_EQ(stagehand.need("a", 200 * mib).kind, Need::Use);
  stagehand.release("a", 200 * mib);
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 1);
  stagehand.transferDone("a");
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 2);
  EXPECT_EQ(endStep(stagehand)["activations_rescued"], 1);
}

TEST(ActivationStagehand, ReleasedRecordsAreGone) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(3);
  save(stagehand, "a", 0);
  stagehand.release("a", 0);
  EXPECT_EQ(errorOf([&] { stagehand.need("a", 0); }).first, ErrorCode::StateTransition);
  EXPECT_EQ(errorOf([&] { stagehand.release("a", 0); }).first, ErrorCode::StateTransition);
  auto [code, what] = errorOf([&] { stagehand.need("b", 0); });
  EXPECT_EQ(code, ErrorCode::NameUnknown);
  EXPECT_NE(what.find("\"b\" was not saved in step 3"), std::string::npos);
  EXPECT_EQ(errorOf([&] { save(stagehand, "c", 0, -1); }).first, ErrorCode::InvalidArgument);
  EXPECT_EQ(save(stagehand, "a", 0).kind, Save::Keep) << "a released id may be used again";
}

// Table "Under faults": a copy out fails.
TEST(ActivationStagehand, FailedSpillLosesNothing) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  save(stagehand, "a");
  EXPECT_EQ(stagehand.transferFailed("a").kind, Transfer::Retry);
  EXPECT_EQ(stagehand.transferFailed("a").kind, Transfer::Keep);
  EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 2);
  EXPECT_EQ(stagehand.need("a", 0).kind, Need::Use);
  EXPECT_EQ(errorOf([&] { stagehand.transferFailed("a"); }).first, ErrorCode::StateTransition);
  EXPECT_EQ(endStep(stagehand)["transfer_retries"], 1);
}

// A save waits for the copy out before its own, without a word on how that ends: it is
// tried no more often for that.
TEST(ActivationStagehand, AnInlineFinalizeGivesNoRetries) {
  ActivationStagehand stagehand(spillAll());
  stagehand.setHints({.maxInflightD2h = 1});
  stagehand.stepBegin(0);
  save(stagehand, "a");
  EXPECT_EQ(stagehand.transferFailed("a").kind, Transfer::Retry);
  EXPECT_EQ(save(stagehand, "b").finalized, Ids{"a"});
  EXPECT_EQ(stagehand.transferFailed("a").kind, Transfer::Keep);
  stagehand.transferDone("b");
  // What comes back has retries of its own.
  EXPECT_EQ(stagehand.need("b", 0).kind, Need::Restore);
  EXPECT_EQ(stagehand.transferFailed("b").kind, Transfer::Retry);
  EXPECT_EQ(stagehand.transferFailed("b").kind, Transfer::Abort);
  EXPECT_EQ(abortStep(stagehand)["transfer_retries"], 2);
}

// Table "Under faults": a copy in fails.
TEST(ActivationStagehand, FailedRestoreIsRecomputedOrAborts) {
  for (bool recomputable : {false, true}) {
    ActivationStagehand stagehand(spillAll());
    stagehand.stepBegin(0);
    save(stagehand, "a", 200 * mib, mib, recomputable);
    stagehand.transferDone("a");
    EXPECT_EQ(stagehand.backwardBegin(Ids{"a"}, 0), Ids{"a"});
    EXPECT_EQ(stagehand.transferFailed("a").kind, Transfer::Retry);
    EXPECT_EQ(stagehand.transferFailed("a").kind, recomputable ? Transfer::Recompute : Transfer::Abort);
    EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), recomputable ? 2 : 1) << "the last copy is kept";
    if (recomputable) {
      EXPECT_EQ(stagehand.need("a", 0).kind, Need::Recompute);
    }
    Json record = abortStep(stagehand);
    EXPECT_EQ(record["aborted"], true);
    EXPECT_EQ(stagehand.hostBuffers().freeSlabs(0), 2);
  }
}

TEST(ActivationStagehand, BadChecksumIsRecomputedOrAborts) {
  ActivationStagehand stagehand(spillAll());
  stagehand.stepBegin(0);
  save(stagehand, "a", 200 * mib, mib, true);
  save(stagehand, "b");
  stagehand.transferDone("a");
  stagehand.transferDone("b");
  EXPECT_TRUE(stagehand.checksumFailed("a"));
  EXPECT_EQ(stagehand.need("a", 0).kind, Need::Recompute);
  EXPECT_FALSE(stagehand.checksumFailed("b"));
  EXPECT_EQ(abortStep(stagehand)["checksum_recovered"], 1);
  stagehand.stepBegin(1);
  EXPECT_EQ(endStep(stagehand)["checksum_recovered"], 0) << "the next step's telemetry starts at 0";
}

// Table "Under faults": no memory while restoring. What is needed last goes
// first, and comes back without a second copy out.
TEST(ActivationStagehand, RestoredRecordsMakeRoom) {
  ActivationStagehandConfig config = spillAll();
  config.maxInflightH2d = 3;
  ActivationStagehand stagehand(config);
  stagehand.stepBegin(0);
  Ids order{"a", "b", "c"};
  for (const std::string &id : order)
    save(stagehand, id), stagehand.transferDone(id);
  EXPECT_EQ(stagehand.backwardBegin(order, 0), order);
  for (const std::string &id : order)
    stagehand.transferDone(id, 0);
  EXPECT_EQ(stagehand.dropRestored(mib + 1), (Ids{"c", "b"}));
  EXPECT_EQ(stagehand.need("a", 99 * mib).kind, Need::Use);
  EXPECT_EQ(stagehand.release("a", 98 * mib), Ids{"b"});
  EXPECT_EQ(stagehand.need("b", 99 * mib).kind, Need::Wait);
  EXPECT_EQ(stagehand.need("c", 99 * mib).kind, Need::Restore);
}

TEST(ActivationStagehand, SuppressionLeavesOneAhead) {
  ActivationStagehandConfig config = spillAll();
  config.maxInflightH2d = 4;
  ActivationStagehand stagehand(config);
  stagehand.stepBegin(0);
  Ids order{"a", "b", "c"};
  for (const std::string &id : order)
    save(stagehand, id), stagehand.transferDone(id);
  stagehand.setHints({.suppressSpeculative = true});
  EXPECT_EQ(stagehand.backwardBegin(order, 0), Ids{"a"});
  EXPECT_EQ(stagehand.transferDone("a", 0).issued, Ids{}) << "a is back, but not needed yet";
  EXPECT_EQ(stagehand.need("a", 0).issued, Ids{"b"});
}

TEST(ActivationStagehand, PoolGrowsBetweenStepsWithinItsLimit) {
  ActivationStagehandConfig config = parse(
      R"({"vram_high_watermark_mb": 1, "vram_low_watermark_mb": 0, "pinned_pool_classes_mb": [1, 4],
          "slabs_per_class": [1, 1], "pinned_pool_max_mb": 12, "max_inflight_d2h": 8})");
  ActivationStagehand stagehand(config);
  stagehand.stepBegin(0);
  for (const char *id : {"a", "b", "c", "d"}) // 1 MiB each: class 1, class 4, unpinned twice
    save(stagehand, id);
  for (const char *id : {"e", "f"}) // natural class 4
    save(stagehand, id, 200 * mib, 3 * mib);
  auto growth = stagehand.stepEnd();
  Json record = stagehand.telemetry();
  ASSERT_EQ(growth.size(), 2u);
  EXPECT_EQ(growth[0].slabs, 3) << "four buffers of natural class 1 at once, one slab so far";
  EXPECT_EQ(growth[1].slabs, 1) << "5 + 3 + 4 = 12 MiB";
  EXPECT_EQ(record["pool_grown_slabs"], 4);
  EXPECT_EQ(record["pool_bytes"], 12 * mib);
  EXPECT_EQ(record["pool_misses"], 4);
  EXPECT_EQ(record["unpinned_peak_mb"], 8.0);
  stagehand.growthFailed(0, 2);
  EXPECT_EQ(stagehand.hostBuffers().slabs(0), 2);
}

// Any order of events: nothing is lost, nothing leaks, the limits hold, and
// the counts add up.
TEST(ActivationStagehand, InvariantsHoldUnderRandomEvents) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    auto below = [&](int64_t limit) { return int64_t(random() % uint64_t(limit)); };
    ActivationStagehandConfig config = spillAll();
    config.highWatermarkMiB = 60;
    config.lowWatermarkMiB = 20;
    config.maxInflightD2h = 1 + below(3);
    config.maxInflightH2d = 1 + below(3);
    config.restoreWindow = 1 + below(4);
    config.unpinnedMaxMiB = double(below(8));
    config.recomputeThresholdBytes = below(2) * 2 * mib;
    ActivationStagehand stagehand(config);
    for (int step = 0; step < 3; ++step) {
      stagehand.stepBegin(step);
      Ids saved;
      std::set<std::string> out, in; // copies under way
      int64_t count = 1 + below(30);
      auto settle = [&](std::set<std::string> &copies, bool mayFail) {
        if (copies.empty())
          return Transfer::None;
        auto it = std::next(copies.begin(), below(int64_t(copies.size())));
        std::string id = *it;
        if (mayFail && below(8) == 0) {
          TransferDecision decision = stagehand.transferFailed(id, below(100) * mib);
          if (decision.kind != Transfer::Retry)
            copies.erase(id);
          in.insert(decision.issued.begin(), decision.issued.end());
          return decision.kind;
        }
        copies.erase(it);
        for (const std::string &issued : stagehand.transferDone(id, below(100) * mib).issued)
          in.insert(issued);
        return Transfer::None;
      };
      for (int64_t i = 0; i < count; ++i) {
        std::string id = std::to_string(i);
        SaveDecision decision = save(stagehand, id, below(100) * mib, below(6 * mib), below(2));
        saved.push_back(id);
        for (const std::string &finished : decision.finalized)
          ASSERT_EQ(out.erase(finished), 1u) << "only copies under way are waited for";
        if (decision.kind == Save::Spill && decision.buffer.poolClass)
          out.insert(id);
        ASSERT_LE(int64_t(out.size()), config.maxInflightD2h);
        if (below(3) == 0)
          settle(out, true);
      }
      std::ranges::reverse(saved);
      for (const std::string &id : stagehand.backwardBegin(saved, below(100) * mib))
        in.insert(id);
      bool aborted = false;
      for (const std::string &id : saved) {
        while (below(3) == 0)
          settle(out, true);
        if (below(2) && settle(in, true) == Transfer::Abort) {
          aborted = true;
          break;
        }
        NeedDecision need = stagehand.need(id, below(100) * mib);
        for (const std::string &finished : need.finalized)
          ASSERT_EQ(in.erase(finished), 1u);
        if (need.kind == Need::Wait) {
          ASSERT_EQ(in.erase(id), 1u);
        }
        for (const std::string &issued : need.issued)
          ASSERT_TRUE(in.insert(issued).second) << "one copy at a time";
        ASSERT_LE(int64_t(in.size()), config.maxInflightH2d);
        if (below(4) == 0) {
          for (const std::string &dropped : stagehand.dropRestored(below(4 * mib)))
            ASSERT_EQ(in.count(dropped), 0u);
        }
        for (const std::string &issued : stagehand.release(id, below(100) * mib))
          in.insert(issued);
      }
      if (aborted) {
        ASSERT_EQ(abortStep(stagehand)["aborted"], true);
      } else {
        for (const std::string &id : Ids(out.begin(), out.end()))
          stagehand.transferDone(id);
        Json r = endStep(stagehand);
        ASSERT_EQ(r["activations_saved"], count);
        ASSERT_EQ(r["activations_leaked"], 0);
        ASSERT_EQ(r["activations_kept"].get<int64_t>() + r["activations_spilled"].get<int64_t>() +
                      r["activations_recomputed"].get<int64_t>(),
                  count);
        ASSERT_EQ(r["pool_hits"].get<int64_t>() + r["pool_misses"].get<int64_t>(), r["activations_spilled"]);
      }
      for (size_t i = 0; i < 2; ++i)
        ASSERT_EQ(stagehand.hostBuffers().freeSlabs(i), stagehand.hostBuffers().slabs(i)) << "a slab leaked";
    }
  }
}
