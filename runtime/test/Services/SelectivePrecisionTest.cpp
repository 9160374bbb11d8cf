//===- SelectivePrecisionTest.cpp - which blocks may be quantised ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The worked examples of docs/specs; hysteresis tables and fingerprints
// are replay logs (test/tools/segue-run/replay).
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SelectivePrecision.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/CalibrationCache.h"
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

using namespace segue;
using Norms = std::vector<std::optional<double>>;

static SelectivePrecisionConfig parse(const std::string &text) {
  Json object = Json::parse(text);
  ConfigReader reader(object, "memory.stagehand.selective_precision", ConfigReader::Files::Ignore);
  return SelectivePrecisionConfig::read(reader);
}

static SelectivePrecision make(const std::string &config, std::initializer_list<const char *> names) {
  std::vector<PrecisionUnit> units;
  for (const char *name : names)
    units.push_back({.name = name});
  return SelectivePrecision(parse(config), units);
}

/// The score is the relative magnitude / 1: easy to steer.
static const char plain[] = R"({"grad_weight": 1, "error_weight": 0, "grad_sensitivity_threshold": 1,
  "history_window": 1, "warmup_steps": 0, "update_interval_steps": 1, "min_steps_between_switches": 0,
  "quarantine_steps": 50, "loss_window": 20})";

static std::string messageOf(auto &&call) {
  try {
    call();
  } catch (const Error &error) {
    return error.what();
  }
  return "nothing was thrown";
}

static void expectPart(const std::string &text, const char *part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(SelectivePrecisionConfig, RefusesNonsense) {
  auto message = [](const char *text) { return messageOf([&] { parse(text); }); };
  expectPart(message(R"({"int8_threshold": 0.6})"), "int8_threshold must be below bf16_threshold");
  expectPart(message(R"({"hysteresis_margin": 0.3})"), "no unit could ever switch to int8");
  expectPart(message(R"({"grad_weight": 0, "error_weight": 0})"), "above 0");
  expectPart(message(R"({"mode": "sometimes"})"), "off, static or dynamic");
  expectPart(message(R"({"loss_window": 4})"), "loss_window");
  expectPart(message(R"({"calibration_samples": 0})"), "calibration_samples");
  expectPart(message(R"({"force_bf16_blocks": ["a"], "force_int8_blocks": ["a"]})"), "in both lists");
  expectPart(message(R"({"low_precisions": ["int4"]})"), "low_precisions[0]");
  expectPart(message(R"({"low_precisions": []})"), "at least one");
  expectPart(message(R"({"warmup_step": 1})"), "warmup_steps");
  expectPart(messageOf([] { make(R"({"force_int8_blocks": ["b1"]})", {"b", "b10"}); }), "no unit");
  expectPart(messageOf([] {
               SelectivePrecision(parse(R"({"force_int8_blocks": ["b"]})"),
                                  {{.name = "b", .eligible = false, .why = "its base weights are trained"}});
             }),
             "its base weights are trained");
}

// Section 1: l2 = 1, 2, 3 give 0.5, 1, 1.5.
TEST(SelectivePrecision, MagnitudesAreRelativeToTheMean) {
  auto precision = make(R"({"warmup_steps": 0, "update_interval_steps": 1})", {"A", "B", "C", "D"});
  EXPECT_TRUE(precision.stats(0, Norms{1, 2, 3, std::nullopt}));
  PrecisionDecision decision = precision.decide(0);
  ASSERT_TRUE(decision.evaluated);
  EXPECT_EQ(decision.units[0].relative, 0.5);
  EXPECT_EQ(decision.units[1].relative, 1.0);
  EXPECT_EQ(decision.units[2].relative, 1.5);
  EXPECT_EQ(decision.units[3].reason, "silent");
  EXPECT_FALSE(decision.units[3].sensitivity);
  EXPECT_EQ(precision.telemetry(0, decision)["silent_units"], 1);
  // All zero: relative 0, not NaN.
  EXPECT_TRUE(precision.stats(1, Norms{0, 0, 0, 0}));
  EXPECT_EQ(precision.decide(1).units[3].relative, 0.0);
}

// Section 2, the worked scores.
TEST(SelectivePrecision, ScoresOfTheTable) {
  struct Row {
    double relative;
    std::optional<double> error;
    const char *uncalibrated;
    double score;
  };
  for (const Row &row : {Row{1.0, 0.02, "drop_term", 0.47}, Row{3.0, 0.08, "drop_term", 1.0},
                         Row{0.2, 0.01, "drop_term", 0.13}, Row{0.5, std::nullopt, "drop_term", 0.175},
                         Row{0.5, std::nullopt, "renormalize", 0.25}, Row{1.0, INFINITY, "drop_term", 0.65}}) {
    auto precision = make(R"({"warmup_steps": 0, "update_interval_steps": 1, "uncalibrated_score": ")" +
                              std::string(row.uncalibrated) + "\"}",
                          {"x", "rest"});
    if (row.error)
      precision.calibrate("x", Precision::Int8, *row.error);
    // x / mean = relative for two units: rest = x (2 / relative - 1).
    double rest = row.relative < 2 ? 2 / row.relative - 1 : 0;
    precision.stats(0, row.relative < 2 ? Norms{1, rest} : Norms{1, 0});
    PrecisionDecision decision = precision.decide(0);
    double relative = row.relative < 2 ? row.relative : 2; // above 2 the score is capped all the same
    EXPECT_NEAR(*decision.units[0].relative, relative, 1e-12);
    EXPECT_NEAR(*decision.units[0].sensitivity, row.score, 1e-12) << row.relative;
  }
}

TEST(SelectivePrecision, BadNumbersNeverLowerAUnit) {
  auto precision = make(plain, {"x", "y"});
  for (double bad : {NAN, INFINITY, -INFINITY})
    EXPECT_FALSE(precision.stats(0, Norms{0.01, bad}));
  PrecisionDecision decision = precision.decide(0);
  EXPECT_EQ(decision.units[0].precision, Precision::Bf16);
  EXPECT_EQ(decision.units[0].reason, "silent");
  EXPECT_EQ(precision.telemetry(0, decision)["stats_skipped"], 3);
}

TEST(SelectivePrecision, DecidesAfterWarmupAtIntervals) {
  auto precision = make(R"({"warmup_steps": 10, "update_interval_steps": 10})", {"x", "y"});
  for (int64_t step : {0, 9, 11, 19}) {
    precision.stats(step, Norms{0.01, 1.99});
    EXPECT_FALSE(precision.decide(step).evaluated) << step;
  }
  precision.stats(20, Norms{0.01, 1.99});
  PrecisionDecision decision = precision.decide(20);
  EXPECT_TRUE(decision.evaluated);
  EXPECT_EQ(decision.units[0].precision, Precision::Int8);
  // In effect from the next step on.
  EXPECT_EQ(precision.precisions(20)[0], Precision::Bf16);
  EXPECT_EQ(precision.precisions(21)[0], Precision::Int8);
}

// Section 5: mean 1.00, sigma 0.01, limit 1.03; the fifth loss rolls back.
TEST(SelectivePrecision, LossTakesUnitsBack) {
  auto precision = make(plain, {"x", "y"});
  for (int64_t step = 0; step < 10; ++step)
    precision.loss(step, step % 2 ? 1.01 : 0.99);
  precision.stats(10, Norms{0.01, 1.99});
  precision.calibrate("x", Precision::Int8, 0.02);
  EXPECT_TRUE(precision.decide(10).watch);
  EXPECT_EQ(precision.precisions(11)[0], Precision::Int8);
  int64_t step = 11;
  for (double loss : {1.05, 1.02, 1.04, 1.04})
    EXPECT_TRUE(precision.loss(step++, loss).empty()) << step;
  EXPECT_EQ(precision.loss(15, 1.04), std::vector<size_t>{0});
  EXPECT_EQ(precision.precisions(15)[0], Precision::Int8) << "until the next step";
  EXPECT_EQ(precision.precisions(16)[0], Precision::Bf16);
  precision.stats(64, Norms{0.01, 1.99});
  PrecisionDecision decision = precision.decide(64); // 15 + 50 > 64
  EXPECT_EQ(decision.units[0].reason, "quarantine");
  EXPECT_EQ(decision.units[0].error, 0.04) << "the error counts double after a rollback";
  EXPECT_EQ(precision.telemetry(64, decision)["quarantined"], 1);
  EXPECT_EQ(precision.telemetry(64, decision)["rollbacks"], 1);
  precision.stats(65, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(65).units[0].reason, "down");
}

TEST(SelectivePrecision, NonFiniteLossTakesBackAtOnce) {
  auto precision = make(plain, {"x", "y"});
  for (int64_t step = 0; step < 5; ++step)
    precision.loss(step, 1);
  precision.stats(5, Norms{0.01, 1.99});
  EXPECT_TRUE(precision.decide(5).watch);
  EXPECT_EQ(precision.loss(6, NAN), std::vector<size_t>{0});
}

TEST(SelectivePrecision, TooFewLossesOpenNoWatch) {
  auto precision = make(plain, {"x", "y"});
  for (int64_t step = 0; step < 4; ++step)
    precision.loss(step, 1);
  precision.loss(4, NAN); // not finite: does not count
  precision.stats(5, Norms{0.01, 1.99});
  EXPECT_FALSE(precision.decide(5).watch);
  EXPECT_TRUE(precision.loss(6, 100).empty());
}

// Only the most recent watch counts; the one below goes on with no streak.
TEST(SelectivePrecision, WatchesAreStacked) {
  auto precision = make(plain, {"x", "y", "z"});
  for (int64_t step = 0; step < 5; ++step)
    precision.loss(step, 1);
  precision.stats(5, Norms{0.01, 1.49, 1.5});
  EXPECT_TRUE(precision.decide(5).watch); // x
  precision.loss(6, 2);
  precision.loss(7, 2); // streak 2 for the watch over x
  precision.stats(7, Norms{0.01, 0.01, 2.98});
  EXPECT_TRUE(precision.decide(7).watch); // y; its limit knows the losses of 2
  for (int64_t step = 8; step < 10; ++step)
    EXPECT_TRUE(precision.loss(step, 9).empty());
  EXPECT_EQ(precision.loss(10, 9), std::vector<size_t>{1});
  EXPECT_TRUE(precision.loss(11, 9).empty()) << "the streak over x starts anew";
  EXPECT_TRUE(precision.loss(12, 9).empty());
  EXPECT_EQ(precision.loss(13, 9), std::vector<size_t>{0});
}

TEST(SelectivePrecision, AWatchThatEndsWellEarnsTrust) {
  auto precision = make(plain, {"x", "y"});
  precision.calibrate("x", Precision::Int8, 0.02);
  for (int64_t step = 0; step < 5; ++step)
    precision.loss(step, 1);
  precision.stats(5, Norms{0.01, 1.99});
  EXPECT_TRUE(precision.decide(5).watch);
  for (int64_t step = 6; step <= 25; ++step)
    EXPECT_TRUE(precision.loss(step, 1).empty());
  precision.stats(25, Norms{0.01, 1.99});
  EXPECT_NEAR(*precision.decide(25).units[0].error, 0.018, 1e-15);
  for (int64_t step = 26; step < 40; ++step)
    EXPECT_TRUE(precision.loss(step, 100).empty()) << "nobody watches any more";
}

TEST(SelectivePrecision, AbortForgetsTheStep) {
  auto precision = make(plain, {"x", "y"});
  precision.stats(0, Norms{1, 1});
  precision.decide(0);
  precision.stats(1, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(1).units[0].precision, Precision::Int8);
  precision.abortStep(1);
  EXPECT_EQ(precision.precisions(2)[0], Precision::Bf16);
  EXPECT_EQ(precision.decide(1).units[0].relative, 1.0) << "the collection went with it";
  precision.abortStep(7); // not the current step: nothing
  EXPECT_EQ(precision.decide(2).units[0].relative, 1.0);
}

// The session aborts a step whose loss is not a number; that loss takes units back
// all the same, and the step is tried again without them.
TEST(SelectivePrecision, TheLossOfAnAbortedStepTakesUnitsBack) {
  auto precision = make(plain, {"x", "y"});
  for (int64_t step = 0; step < 5; ++step)
    precision.loss(step, 1);
  precision.stats(5, Norms{0.01, 1.99});
  EXPECT_TRUE(precision.decide(5).watch);
  EXPECT_EQ(precision.precisions(6)[0], Precision::Int8);
  precision.stats(6, Norms{0.01, 1.99});
  precision.abortStep(6);
  EXPECT_EQ(precision.loss(6, NAN), std::vector<size_t>{0});
  EXPECT_EQ(precision.precisions(6)[0], Precision::Bf16) << "when it is tried again";
  precision.stats(6, Norms{0.01, 1.99});
  precision.abortStep(6); // for another reason
  EXPECT_EQ(precision.precisions(6)[0], Precision::Bf16) << "and again";
  precision.stats(6, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(6).units[0].reason, "quarantine");
}

TEST(SelectivePrecision, AFormThatAUnitLacksIsNotChosen) {
  std::string config = plain;
  config.insert(config.rfind('}'), R"(, "low_precisions": ["int8", "fp8_e4m3"], "force_int8_blocks": ["x"])");
  std::vector<PrecisionUnit> units{{.name = "x"}, {.name = "y", .forms = {Precision::Fp8E4M3}}, {.name = "z"}};
  SelectivePrecision precision(parse(config), units);
  precision.stats(0, Norms{0.01, 0.01, 2.98});
  EXPECT_EQ(precision.decide(0).units[1].precision, Precision::Fp8E4M3);
  units[0].forms = {Precision::Fp8E4M3};
  expectPart(messageOf([&] { SelectivePrecision(parse(config), units); }),
             "\"x\" cannot be int8: no slab has it in int8");
}

TEST(SelectivePrecision, UnitsThatAreNotEligibleStay) {
  std::vector<PrecisionUnit> units{
      {.name = "x", .eligible = false, .why = "no source", .stays = Precision::Int8, .bf16Bytes = 20, .int8Bytes = 10},
      {.name = "y", .bf16Bytes = 20, .int8Bytes = 11}};
  SelectivePrecision precision(parse(plain), units);
  EXPECT_EQ(precision.precisions(0)[0], Precision::Int8);
  precision.stats(0, Norms{1.99, 0.01});
  PrecisionDecision decision = precision.decide(0);
  EXPECT_EQ(decision.units[0].precision, Precision::Int8);
  EXPECT_EQ(decision.units[0].reason, "ineligible");
  EXPECT_EQ(decision.changes, 1);
  EXPECT_EQ(precision.storedBytes(precision.precisions(1)), std::pair(int64_t(21), int64_t(40)));
}

// Faults: the slab fails, or there is no memory for the other form.
TEST(SelectivePrecision, RefusedAndPostponedUnits) {
  auto precision = make(plain, {"x", "y"});
  precision.stats(0, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(0).units[0].precision, Precision::Int8);
  precision.postpone("x", 0);
  EXPECT_EQ(precision.precisions(1)[0], Precision::Bf16);
  precision.stats(1, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(1).units[0].reason, "first") << "the next decision tries again";
  precision.stats(2, Norms{0.01, 1.99});
  EXPECT_EQ(precision.precisions(3)[0], Precision::Int8);
  precision.postpone("x", 1); // there was memory for the switch, and is none now
  EXPECT_EQ(precision.precisions(3)[0], Precision::Bf16);
  precision.refuse("x", 2);
  EXPECT_EQ(precision.precisions(2)[0], Precision::Bf16) << "at once";
  precision.stats(3, Norms{0.01, 1.99});
  EXPECT_EQ(precision.decide(3).units[0].reason, "quarantine");
  expectPart(messageOf([&] { precision.refuse("w", 2); }), "no unit \"w\"");
}

TEST(SelectivePrecision, ModesAndForces) {
  auto fixed = make(R"({"mode": "static", "force_int8_blocks": ["x"]})", {"x", "y"});
  EXPECT_EQ(fixed.precisions(0)[0], Precision::Int8);
  fixed.stats(0, Norms{1.99, 0.01});
  EXPECT_FALSE(fixed.decide(0).evaluated);
  EXPECT_EQ(fixed.precisions(1)[1], Precision::Bf16);

  std::string config = plain;
  config.insert(config.rfind('}'), R"(, "force_int8_blocks": ["x"], "force_bf16_blocks": ["y"])");
  auto forced = make(config, {"x", "y"});
  forced.stats(0, Norms{1.99, 0.01});
  PrecisionDecision decision = forced.decide(0);
  EXPECT_EQ(decision.units[0].precision, Precision::Int8);
  EXPECT_EQ(decision.units[1].precision, Precision::Bf16);
  EXPECT_EQ(decision.units[0].reason, "forced");
  EXPECT_FALSE(decision.watch);
}

TEST(SelectivePrecision, TakesTheFormWithTheSmallerError) {
  std::string config = plain;
  config.insert(config.rfind('}'), R"(, "low_precisions": ["fp8_e4m3", "int8"])");
  auto precision = make(config, {"a", "b", "c", "rest"});
  for (auto [unit, int8, fp8] : {std::tuple("a", 0.02, 0.01), {"b", 0.01, 0.02}, {"c", 0.01, 0.01}}) {
    precision.calibrate(unit, Precision::Int8, int8);
    precision.calibrate(unit, Precision::Fp8E4M3, fp8);
  }
  precision.stats(0, Norms{0.01, 0.01, 0.01, 3});
  PrecisionDecision decision = precision.decide(0);
  EXPECT_EQ(decision.units[0].precision, Precision::Fp8E4M3);
  EXPECT_EQ(decision.units[1].precision, Precision::Int8);
  EXPECT_EQ(decision.units[2].precision, Precision::Int8) << "int8 on a tie";
  EXPECT_EQ(precision.telemetry(0, decision)["blocks_fp8"], 1);
}

// The published sample: 29 of 48 blocks give 30.2 %.
TEST(SelectivePrecision, SavingOfTheSample) {
  std::vector<PrecisionUnit> units;
  Norms norms;
  for (int i = 0; i < 48; ++i) {
    units.push_back({.name = "b" + std::to_string(i), .bf16Bytes = 200, .int8Bytes = 101});
    norms.push_back(i < 29 ? 0.01 : 2.0);
  }
  SelectivePrecision precision(parse(plain), units);
  precision.stats(0, norms);
  PrecisionDecision decision = precision.decide(0);
  Json record = precision.telemetry(0, decision);
  EXPECT_EQ(record["blocks_int8"], 29);
  EXPECT_NEAR(record["estimated_bandwidth_saving_pct"].get<double>(), 30.2, 0.05);
  EXPECT_NEAR(record["actual_bandwidth_saving_pct"].get<double>(), 100.0 * 29 * 99 / (48 * 200), 1e-9);
  EXPECT_EQ(record["block_details"]["b0"]["reason"], "first");
}

TEST(SelectivePrecision, EventsDoNotGoBack) {
  auto precision = make(plain, {"x"});
  precision.stats(5, Norms{1});
  expectPart(messageOf([&] { precision.stats(4, Norms{1}); }), "step 4 comes after one of step 5");
  expectPart(messageOf([&] { precision.stats(6, Norms{1, 2}); }), "2 norms for 1 units");
  expectPart(messageOf([&] { precision.calibrate("x", Precision::Int8, -1); }), "0 or more");
}

// A run that is stopped and restored anywhere decides as the one that went on.
TEST(SelectivePrecision, RestoredRunsDecideTheSame) {
  const char config[] = R"({"warmup_steps": 2, "update_interval_steps": 3, "min_steps_between_switches": 4,
    "loss_window": 6, "quarantine_steps": 9, "grad_sensitivity_threshold": 1.5})";
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    auto whole = make(config, {"a", "b", "c"});
    auto parts = std::make_unique<SelectivePrecision>(make(config, {"a", "b", "c"}));
    whole.calibrate("a", Precision::Int8, 0.01);
    parts->calibrate("a", Precision::Int8, 0.01);
    for (int64_t step = 0; step < 60; ++step) {
      double loss = uniform(random) < 0.1 ? 5 : 1 + 0.01 * uniform(random);
      Norms norms{uniform(random), uniform(random), uniform(random) < 0.1 ? NAN : uniform(random)};
      ASSERT_EQ(whole.loss(step, loss), parts->loss(step, loss));
      ASSERT_EQ(whole.stats(step, norms), parts->stats(step, norms));
      PrecisionDecision a = whole.decide(step), b = parts->decide(step);
      ASSERT_EQ(whole.telemetry(step, a).dump(), parts->telemetry(step, b).dump());
      if (uniform(random) < 0.3) {
        auto fresh = std::make_unique<SelectivePrecision>(make(config, {"a", "b", "c"}));
        fresh->restoreState(Json::parse(parts->saveState().dump()));
        parts = std::move(fresh);
      }
    }
  }
}

// Telemetry and checkpoints have a text for what JSON has no number for.
TEST(SelectivePrecision, AnInfiniteErrorHasAName) {
  auto precision = make(plain, {"x", "y"});
  precision.calibrate("x", Precision::Int8, std::numeric_limits<double>::infinity());
  precision.stats(0, Norms{1.0, 1.0});
  Json record = precision.telemetry(0, precision.decide(0));
  EXPECT_EQ(record["block_details"]["x"]["error"], "inf");
  EXPECT_TRUE(record["block_details"]["y"]["error"].is_null());
  Json state = precision.saveState();
  EXPECT_EQ(state["units"]["x"]["errors"]["int8"], "inf");
  auto resumed = make(plain, {"x", "y"});
  resumed.restoreState(Json::parse(state.dump()));
  EXPECT_EQ(resumed.saveState(), state);
  Json older = state; // which wrote null for it
  older["units"]["x"]["errors"]["int8"] = nullptr;
  auto converted = make(plain, {"x", "y"});
  converted.restoreState(older);
  EXPECT_EQ(converted.saveState(), state);
}

TEST(SelectivePrecision, BadStateIsRefusedWhole) {
  auto precision = make(plain, {"x", "y"});
  precision.stats(0, Norms{0.01, 1.99});
  precision.decide(0);
  Json good = precision.saveState();
  auto damaged = [&](const char *pointer, Json value) {
    Json state = good;
    state[Json::json_pointer(pointer)] = std::move(value);
    return messageOf([&] { precision.restoreState(state); });
  };
  expectPart(damaged("/units/x/precision", "int4"), "int4");
  expectPart(damaged("/units/x/history", "none"), "bad state");
  expectPart(damaged("/version", 2), "another version");
  expectPart(damaged("/units/x/errors/int8", "nan"), "the error \"nan\"");
  expectPart(damaged("/watches", Json::parse(R"([{"step": 0, "limit": 1, "streak": 0, "units": [7]}])")),
             "does not exist");
  expectPart(messageOf([&] { make(plain, {"x", "z"}).restoreState(good); }), "lacks unit \"z\"");
  EXPECT_EQ(precision.saveState(), good);
}

TEST(CalibrationCache, ErrorOfOneSample) {
  std::vector<float> zero{0, 0}, three{3, 4}, near{3, 4.5f}, bad{NAN, 1};
  EXPECT_EQ(calibrationError(zero, zero), 0);
  EXPECT_EQ(calibrationError(zero, three), 1);
  EXPECT_EQ(calibrationError(three, near), 0.1);
  EXPECT_EQ(calibrationError(three, bad), INFINITY);
}

TEST(CalibrationCache, DamagedOrForeignCachesAreIgnored) {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("segue-calibration-" + std::to_string(::getpid()) + ".json");
  std::vector<std::string> units{"b0", "b1"};
  std::string warning;
  EXPECT_FALSE(loadCalibration(path, "f", units, warning));
  EXPECT_EQ(warning, "") << "no file is no fault";
  std::vector<double> errors{0.01, INFINITY};
  saveCalibration(path, "f", units, errors);
  EXPECT_EQ(loadCalibration(path, "f", units, warning), errors);
  EXPECT_FALSE(loadCalibration(path, "g", units, warning)) << "of another model";
  EXPECT_EQ(warning, "");
  units.push_back("b2");
  EXPECT_FALSE(loadCalibration(path, "f", units, warning));
  expectPart(warning, "a unit is missing");
  std::ofstream(path) << R"({"fingerprint": "f", "errors": {"b0": -1}})";
  EXPECT_FALSE(loadCalibration(path, "f", std::vector<std::string>{"b0"}, warning));
  std::ofstream(path) << R"({"fingerprint": )";
  EXPECT_FALSE(loadCalibration(path, "f", units, warning));
  expectPart(warning, "line 1");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_FALSE(loadCalibration(path, "f", units, warning));
  expectPart(warning, "Is a directory; calibrating again");
  std::filesystem::remove(path);
}

// The example of docs/specs/selective-precision.md.
TEST(CalibrationCache, FingerprintOfTheExample) {
  std::vector<PrecisionUnit> units{{.name = "b0", .shapes = {{8, 4}}}, {.name = "b1", .shapes = {{4, 8}}}};
  EXPECT_EQ(calibrationFingerprint("ad64e3c65840ef89", "per_row_symmetric:bits8:pad64", 4, units), "1566bb591397b174");
}
