//===- PrecisionRanksTest.cpp - ranks choose the same forms ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two ranks train adapters over a slab, each with batches of its own, or some of the modules:
// forms, losses and parameters are those of one rank with the batches of both, and what one
// rank finds out about a form the other knows.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "PrecisionAnswers.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <limits>
#include <utility>

using namespace segue;
using namespace segue::test;

namespace {
/// A Course is what a run leaves: losses and norms of its steps, the trained parameters, the state of the decisions.
struct Course {
  std::vector<double> numbers;
  std::vector<float> parameters;
  std::string state;
};

struct PrecisionRanks : testing::TestWithParam<const char *> {
  PrecisionRanks() { // before there are several threads
    loraBinary();
    loraModules();
  }
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, PrecisionRanks,
                         testing::Values("cpu:threads=1", "sim:dram=4MiB,pinned=8MiB,threads=1,link=4GB/s,latency=2us",
                                         "sim:streams,dram=4MiB,pinned=8MiB,threads=1,adversarial=2"));

static std::vector<TensorMap> batchesOf(const DeviceRef &device, int64_t step, int first, int count) {
  std::vector<TensorMap> batches;
  for (int batch = first; batch < first + count; ++batch)
    batches.push_back(loraBatch(device, 2 * step + batch));
  return batches;
}

/// Trains up to step `to` with `count` batches from `first` on.
static void train(Session &session, Course &course, int64_t to, int first, int count) {
  while (session.stepCount() < to) {
    StepResult result = session.step(batchesOf(session.device(), session.stepCount(), first, count), 1e-3);
    course.numbers.push_back(result.loss);
    course.numbers.push_back(result.gradNorm);
  }
  course.parameters.clear();
  session.gatherParameters([&](const ParameterInfo &info, const Tensor &value) {
    if (info.trained)
      std::ranges::copy(values(value), std::back_inserter(course.parameters));
  });
  course.state = session.services()->precisionState();
}

static Session sessionOf(Rank &rank, const std::string &config, SessionOptions options = {}) {
  options.collectives = rank.together;
  if (options.sharding == Sharding::Modules)
    return sessionOfLora(rank.device, loraModules(), config, std::move(options));
  return loraSession(rank.device, config, std::move(options));
}

/// Trains a rank of two: each has a batch of each step, or both of all where they run some modules each.
static void trainRank(Session &session, Course &course, int64_t to, const Rank &rank, Sharding sharding) {
  bool hasAll = sharding == Sharding::Modules;
  train(session, course, to, hasAll ? 0 : rank.number(), hasAll ? 2 : 1);
}

static void expectEqual(const Course &a, const Course &b) {
  EXPECT_EQ(a.numbers, b.numbers);
  EXPECT_TRUE(a.parameters == b.parameters);
  EXPECT_EQ(a.state, b.state);
}

TEST_P(PrecisionRanks, ChooseTheFormsOfOneRankWithAllBatches) {
  constexpr int64_t steps = 32;
  LoraFolder whole, cut;
  Course ofOne, ofModules;
  for (bool isCut : {false, true}) {
    LoraFolder &folder = isCut ? cut : whole;
    std::string config = precisionConfig(folder, dynamicPrecision(folder), "", 0.3);
    DeviceRef device = Device::open(GetParam());
    Session session = isCut ? sessionOfLora(device, loraModules(), config, {}) : loraSession(device, config);
    train(session, isCut ? ofModules : ofOne, steps, 0, 2);
    ASSERT_EQ(precisionOf(session, "h.0"), "int8");
    ASSERT_EQ(precisionOf(session, "h.4"), "bf16");
  }
  for (Sharding sharding : shardings) {
    SCOPED_TRACE(name(sharding));
    bool isCut = sharding == Sharding::Modules;
    LoraFolder folder;
    std::vector<Course> courses(2);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        Session own = sessionOf(rank, precisionConfig(folder, dynamicPrecision(folder), "", 0.3),
                                                {.sharding = sharding});
                        trainRank(own, courses[size_t(rank.number())], steps, rank, sharding);
                      },
                      {.seed = 3}),
              nothing(2));
    for (const Course &course : courses)
      expectEqual(course, isCut ? ofModules : ofOne);
    EXPECT_EQ(linesOf(folder.path / "precision.jsonl"), linesOf((isCut ? cut : whole).path / "precision.jsonl"))
        << "of one rank alone";
  }
}

// Accumulated gradients, and a checkpoint in mid-run from which other ranks go on.
TEST_P(PrecisionRanks, GoOnFromACheckpointOfOneRank) {
  LoraFolder folder;
  std::string config = precisionConfig(folder, dynamicPrecision(folder), "", 0.3);
  std::filesystem::path checkpoint = folder.path / "checkpoint.safetensors";
  Course expected;
  Session alone = loraSession(Device::open(GetParam()), config);
  train(alone, expected, 17, 0, 2);
  alone.save(checkpoint);
  expected.numbers.clear();
  train(alone, expected, 28, 0, 2);
  std::vector<Course> courses(2);
  EXPECT_EQ(onRanks(2, GetParam(),
                    [&](Rank &rank) {
                      Session own = sessionOf(rank, config);
                      own.load(checkpoint);
                      Course &course = courses[size_t(rank.number())];
                      while (own.stepCount() < 28) {
                        own.forwardBackward(batchesOf(rank.device, own.stepCount(), rank.number(), 1).front());
                        StepResult result = own.optimize(1e-3);
                        course.numbers.push_back(result.loss);
                        course.numbers.push_back(result.gradNorm);
                      }
                      train(own, course, 28, 0, 0);
                    }),
            nothing(2));
  for (const Course &course : courses)
    expectEqual(course, expected);
}

// Where each rank has a part of the model, another number of ranks goes on from its checkpoint with the forms and the
// bits of one.
TEST_P(PrecisionRanks, OneRankGoesOnFromACheckpointOfTwo) {
  for (Sharding sharding : {Sharding::Parameters, Sharding::Modules}) {
    SCOPED_TRACE(name(sharding));
    LoraFolder folder;
    std::string config = precisionConfig(folder, dynamicPrecision(folder), "", 0.3);
    std::filesystem::path checkpoint = folder.path / "checkpoint.safetensors";
    std::vector<Course> courses(2);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        Session own = sessionOf(rank, config, {.sharding = sharding});
                        Course &course = courses[size_t(rank.number())];
                        trainRank(own, course, 17, rank, sharding);
                        own.save(checkpoint);
                        course.numbers.clear();
                        trainRank(own, course, 22, rank, sharding);
                      }),
              nothing(2));
    DeviceRef device = Device::open(GetParam());
    Session alone = sharding == Sharding::Modules ? sessionOfLora(device, loraModules(), config, {})
                                                  : loraSession(device, config);
    alone.load(checkpoint);
    Course course;
    train(alone, course, 22, 0, 2);
    for (const Course &each : courses)
      expectEqual(each, course);
  }
}

// A form that one rank cannot read is given up on both, as a decision of all; in a pipeline that rank alone reads it.
TEST_P(PrecisionRanks, AFormThatOneRankCannotReadIsRefusedOnBoth) {
  for (Sharding sharding : {Sharding::None, Sharding::Parameters, Sharding::Modules}) {
    SCOPED_TRACE(name(sharding));
    std::string unit = sharding == Sharding::Modules ? "h.5" : "h.1";
    LoraFolder whole, damaged;
    damage(damaged.path / "int8.safetensors", unit + ".fc");
    std::vector<Course> courses(2);
    std::vector<std::string> forms(2), reasons(2);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        LoraFolder &folder = rank.number() ? damaged : whole;
                        SessionOptions options{.sharding = sharding, .warn = [](const std::string &) {}};
                        std::string precision = dynamicPrecision(folder, R"(, "run_calibration": false)");
                        Session own = sessionOf(rank, precisionConfig(folder, precision, "", 0.3), options);
                        trainRank(own, courses[size_t(rank.number())], 12, rank, sharding);
                        forms[size_t(rank.number())] = precisionOf(own, unit) + precisionOf(own, "h.3");
                        reasons[size_t(rank.number())] =
                            own.services()->precisionRecord()["block_details"][unit]["reason"].get<std::string>();
                      }),
              nothing(2));
    expectEqual(courses[0], courses[1]);
    EXPECT_EQ(forms, std::vector<std::string>(2, "bf16int8"));
    EXPECT_EQ(reasons, std::vector<std::string>(2, "quarantine"));
  }
}

// The loss that is none on one rank takes decisions back on both, and the step is taken again with other batches. In a
// pipeline the last rank alone sees it.
TEST_P(PrecisionRanks, ALossThatIsNoneOnOneRankTakesFormsBackOnBoth) {
  LoraFolder folder;
  for (auto [sharding, bad] : {std::pair(Sharding::None, 0), std::pair(Sharding::None, 1),
                               std::pair(Sharding::Parameters, 1), std::pair(Sharding::Modules, -1)}) {
    SCOPED_TRACE(name(sharding));
    std::vector<Course> courses(2);
    std::vector<int> rollbacks(2), lowBefore(2), lowAfter(2);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        auto own = size_t(rank.number());
                        std::string precision = dynamicPrecision(folder, R"(, "warmup_steps": 10)");
                        Session session =
                            sessionOf(rank, precisionConfig(folder, precision, "", 0.3), {.sharding = sharding});
                        trainRank(session, courses[own], 12, rank, sharding);
                        lowBefore[own] = precisionOf(session, "h.0") == "int8";
                        std::vector<TensorMap> batches = batchesOf(rank.device, 12, bad < 0 ? 0 : rank.number(), 1);
                        if (bad < 0 || rank.number() == bad)
                          batches[0]["x"].data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
                        EXPECT_THROW(session.step(batches, 1e-3), Error);
                        trainRank(session, courses[own], 16, rank, sharding);
                        lowAfter[own] = precisionOf(session, "h.0") == "int8";
                        rollbacks[own] = session.services()->precisionRecord()["rollbacks"].get<int>();
                      }),
              nothing(2));
    expectEqual(courses[0], courses[1]);
    EXPECT_EQ(lowBefore, std::vector(2, 1));
    EXPECT_EQ(lowAfter, std::vector(2, 0)) << "in quarantine";
    EXPECT_EQ(rollbacks, std::vector(2, 1));
  }
}

// Ranks that would decide by other rules, or have other forms, are told before the first step.
TEST(PrecisionRankRules, RulesThatDifferAreNamed) {
  loraBinary();
  LoraFolder folder;
  std::vector<std::string> thrown = onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    std::string more = rank.number() ? R"(, "history_window": 4)" : "";
    Session own = sessionOf(rank, precisionConfig(folder, dynamicPrecision(folder, more)));
    own.step(loraBatch(rank.device, rank.number()), 1e-3);
  });
  for (const std::string &each : thrown) {
    expectPart(each, "Selective Precision differs: rank 0 has");
    expectPart(each, "history_window");
  }
}

// A calibration that fails on one rank is told each time that it is tried, and nobody waits for that rank, whatever it
// was to send.
TEST_P(PrecisionRanks, ACalibrationThatFailsIsToldEachTime) {
  for (Sharding sharding : {Sharding::None, Sharding::Parameters, Sharding::Modules}) {
    SCOPED_TRACE(name(sharding));
    LoraFolder folder;
    std::string config = precisionConfig(folder, dynamicPrecision(folder), "", 0.3);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        Session session = sessionOf(rank, config, {.sharding = sharding});
                        TensorMap batch = loraBatch(rank.device, 0);
                        if (rank.number() == 1)
                          batch.erase(batch.begin());
                        for (int tries = 0; tries < 2; ++tries) {
                          std::string what = messageOf([&] { session.step(batch, 1e-2); });
                          if (rank.number() == 0)
                            expectPart(what, "rank 1 ");
                        }
                      },
                      {.timeoutSeconds = 5}),
              nothing(2));
  }
}

// One that is asked for before training takes all ranks, and what it has found is kept for a next run of one.
TEST_P(PrecisionRanks, CalibrateTogetherBeforeTraining) {
  for (Sharding sharding : {Sharding::None, Sharding::Parameters, Sharding::Modules}) {
    SCOPED_TRACE(name(sharding));
    LoraFolder folder;
    std::string config = precisionConfig(folder, dynamicPrecision(folder), "", 0.3);
    std::vector<int64_t> before(2), after(2);
    EXPECT_EQ(onRanks(2, GetParam(),
                      [&](Rank &rank) {
                        Session session = sessionOf(rank, config, {.sharding = sharding});
                        before[size_t(rank.number())] = session.calibrationSamples();
                        session.calibrate(batchesOf(rank.device, 0, 0, 2));
                        after[size_t(rank.number())] = session.calibrationSamples();
                      }),
              nothing(2));
    EXPECT_EQ(before, std::vector<int64_t>(2, 1));
    EXPECT_EQ(after, std::vector<int64_t>(2, 0));
    EXPECT_EQ(loraSession(Device::open(GetParam()), config).calibrationSamples(), 0);
  }
}
