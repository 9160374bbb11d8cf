//===- RanksTest.cpp - sessions of several ranks --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two ranks with a batch each train as one rank does with both batches, to the bit; what
// fails on one rank ends the step on all, with nothing changed.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "Session/TemporaryFolder.h"
#include "TrainOnRanks.h"
#include <atomic>
#include <gtest/gtest.h>
#include <limits>

using namespace segue;
using namespace segue::test;

namespace {
/// A way to train; `make` gets what each rank has besides.
struct Recipe {
  const char *name;
  std::function<Session(const DeviceRef &, SessionOptions)> make;
  double rate = 1e-3;
  /// Modules share a parameter, to whose gradient one rank adds them one by one: batch after batch, where ranks add
  /// what they have of all modules.
  bool isTied = false;
};

struct RanksTest : testing::TestWithParam<const char *> {};
} // namespace

static const Recipe recipes[] = {
    {"plain", stitched},
    {"clipped",
     [](const DeviceRef &device, SessionOptions options) {
       options.maxGradNorm = 0.5;
       return stitched(device, std::move(options));
     }},
    {"the loss is scaled",
     [](const DeviceRef &device, SessionOptions options) {
       options.lossScaling = LossScaling{.scale = 1024};
       return stitched(device, std::move(options));
     }},
    {"tied, with a frozen module between",
     [](const DeviceRef &device, SessionOptions options) {
       options.tied = {{{"front", "w"}, {"back", "v"}}};
       options.wires = {{"middle", "x", "front", "h"}, {"back", "hidden", "middle", "h"}};
       return Session(
           device,
           {{"front", makeLayer()}, {"middle", makeLayer({.parameter = "f", .frozen = true})}, {"back", makeHead()}},
           std::move(options));
     },
     1e-3,
     /*isTied=*/true},
    {"random numbers",
     [](const DeviceRef &device, SessionOptions options) {
       options.seed = 7;
       return Session(device, {{"hypers", makeHypers()}, {"back", makeHead()}}, std::move(options));
     },
     1e-9},
};

INSTANTIATE_TEST_SUITE_P(Devices, RanksTest,
                         testing::Values("cpu:threads=1", "sim:dram=1MiB,pinned=1MiB,link=1GB/s,latency=5us",
                                         "sim:dram=1MiB,adversarial=1", "sim:dram=1MiB,pinned=0,adversarial=4",
                                         "sim:streams,dram=1MiB,adversarial=2"));

TEST_P(RanksTest, TwoRanksAreOneWithTwoBatches) {
  for (const Recipe &recipe : recipes) {
    SCOPED_TRACE(recipe.name);
    Session alone = recipe.make(Device::open("cpu:threads=1"), {});
    setValues(alone, 1);
    Course expected = train(alone, 20, 0, 2, recipe.rate);
    EXPECT_EQ(onRanks(
                  2, GetParam(),
                  [&](Rank &rank) {
                    Session session = recipe.make(rank.device, {.collectives = rank.together});
                    setValues(session, 1);
                    Course course = train(session, 20, rank.number(), 1, recipe.rate);
                    for (size_t step = 0; step < 20 && recipe.isTied; ++step)
                      EXPECT_NEAR(course.norms[step], expected.norms[step], 1e-5);
                    if (recipe.isTied)
                      return;
                    EXPECT_EQ(course.losses, expected.losses);
                    EXPECT_EQ(course.norms, expected.norms);
                    EXPECT_EQ(course.clips, expected.clips);
                    EXPECT_EQ(course.tensors, expected.tensors);
                  },
                  {.seed = 3}),
              nothing(2));
  }
}

// Any number of ranks, with any number of batches: the order of addition is that of ranks, so that bits are those of
// one rank whose batches come in the order in which they are added.
TEST_P(RanksTest, ThreeAndFourRanksAdditionsInOrder) {
  for (int ranks : {3, 4}) {
    Session alone = stitched(Device::open("cpu:threads=1"), {});
    setValues(alone, 1);
    Course expected = train(alone, 8, 0, ranks);
    EXPECT_EQ(onRanks(
                  ranks, GetParam(),
                  [&](Rank &rank) {
                    Session session = stitched(rank.device, {.collectives = rank.together});
                    setValues(session, 1);
                    EXPECT_EQ(train(session, 8, rank.number(), 1), expected);
                  },
                  {.seed = 4}, {.bucketBytes = 40, .addsInOrder = true}),
              nothing(ranks));
  }
}

// Batches that are accumulated are added up over ranks once.
TEST_P(RanksTest, AccumulatedBatchesAreReducedOnce) {
  std::vector<Course> courses(2);
  std::vector<uint64_t> messages(2);
  EXPECT_EQ(onRanks(2, GetParam(),
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together});
                      setValues(session, 1);
                      courses[size_t(rank.number())] = train(session, 5, 3 * rank.number(), 3);
                    }),
            nothing(2));
  EXPECT_EQ(courses[0], courses[1]);
  Session alone = stitched(Device::open("cpu:threads=1"), {});
  setValues(alone, 1);
  Course expected = train(alone, 5, 0, 6);
  for (size_t step = 0; step < 5; ++step)
    EXPECT_NEAR(courses[0].losses[step], expected.losses[step], 1e-5 * expected.losses[step]);
}

TEST_P(RanksTest, ValuesAndSeedAreThoseOfRank0) {
  std::vector<Course> courses(3);
  std::vector<std::string> logs(3);
  EXPECT_EQ(onRanks(3, GetParam(),
                    [&](Rank &rank) {
                      Session session(rank.device, {{"hypers", makeHypers()}, {"back", makeHead()}},
                                      {.seed = 5 + rank.number(),
                                       .collectives = rank.together,
                                       .log = [&](const std::string &text) { logs[size_t(rank.number())] += text; }});
                      setValues(session, 1 + float(rank.number()));
                      train(session, 2, 0, 1);
                      EXPECT_EQ(session.seed(), 5);
                      setValues(session, 3 - float(rank.number())); // in mid-run, again not the same
                      courses[size_t(rank.number())] = train(session, 2, 0, 1);
                    }),
            nothing(3));
  EXPECT_EQ(courses[1].tensors, courses[0].tensors);
  EXPECT_EQ(courses[2].tensors, courses[0].tensors);
  EXPECT_NE(logs[1].find("1 parameters and states were not the same on all ranks"), std::string::npos) << logs[1];
}

// What one rank alone is given makes all agree again.
TEST_P(RanksTest, ARankThatIsGivenValuesAloneHasThoseOfRank0) {
  std::vector<Course> courses(2);
  EXPECT_EQ(onRanks(2, GetParam(),
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together});
                      setValues(session, 1);
                      train(session, 2, 0, 1);
                      if (rank.number() == 1)
                        setValues(session, 3);
                      courses[size_t(rank.number())] = train(session, 2, 0, 1);
                    }),
            nothing(2));
  EXPECT_EQ(courses[0], courses[1]);
}

/// Takes a third step by `step`, which no rank may take: it throws what is asked for, changes nothing, and all go on.
static void expectNoThirdStep(Rank &rank, const std::function<void(Session &)> &step, const std::string &words) {
  Session session = stitched(rank.device, {.collectives = rank.together});
  setValues(session, 1);
  train(session, 2, rank.number(), 1);
  Course before = train(session, 0, 0, 1);
  auto [code, error] = errorOf([&] { step(session); });
  EXPECT_EQ(train(session, 0, 0, 1), before);
  EXPECT_EQ(session.stepCount(), 2);
  EXPECT_NE(error.find(words), std::string::npos) << error;
  train(session, 3, rank.number(), 1);
  EXPECT_EQ(session.stepCount(), 5);
}

// NaN on one rank: no rank updates anything, and each says whose step it was.
TEST_P(RanksTest, NanOfOneRankStopsAllBeforeAnyUpdate) {
  EXPECT_EQ(onRanks(3, GetParam(),
                    [&](Rank &rank) {
                      TensorMap bad = batchOf(rank.device, 2, rank.number());
                      if (rank.number() == 1)
                        bad["x"] = onHost(rank.device, std::numeric_limits<float>::quiet_NaN(), 0);
                      expectNoThirdStep(rank, [&](Session &session) { session.step(bad, 1e-3); },
                                        rank.number() == 1 ? "NAN_LOSS: step 3"
                                                           : "RANK_FAILED: rank 1 cannot take step 3: NAN_LOSS");
                    }),
            nothing(3));
}

TEST_P(RanksTest, WhatDiffersIsRefusedByName) {
  auto thrown = [&](const std::function<Session(Rank &)> &make) {
    return onRanks(2, GetParam(), [&](Rank &rank) {
      Session session = make(rank);
      setValues(session, 1);
      train(session, 1, 0, 1);
    });
  };
  auto expectAll = [](const std::vector<std::string> &texts, std::string_view words) {
    for (const std::string &text : texts) {
      EXPECT_EQ(text.rfind("RANK_FAILED", 0), 0u) << text;
      EXPECT_NE(text.find(words), std::string::npos) << text;
    }
  };
  expectAll(thrown([](Rank &rank) {
              return Session(rank.device, {{"front", makeLayer()}, {rank.number() ? "rear" : "back", makeHead()}},
                             {.collectives = rank.together});
            }),
            "rank 0 has module \"back\", and rank 1 has not");
  expectAll(thrown([](Rank &rank) {
              return Session(rank.device,
                             {{"front", makeLayer({.parameter = "w", .frozen = rank.number() == 1})}, {"back", makeHead()}},
                             {.collectives = rank.together});
            }),
            "differs: rank 0 has");
  expectAll(thrown([](Rank &rank) {
              return stitched(rank.device, {.maxGradNorm = double(rank.number()), .collectives = rank.together});
            }),
            "the norm that gradients are clipped to differs: rank 0 has 0.0, and rank 1 has 1.0");
}

TEST_P(RanksTest, RatesThatDifferAreRefusedBeforeAnyUpdate) {
  EXPECT_EQ(onRanks(2, GetParam(),
                    [&](Rank &rank) {
                      TensorMap batch = batchOf(rank.device, 2, rank.number());
                      expectNoThirdStep(
                          rank, [&](Session &session) { session.step(batch, rank.number() ? 0.25 : 0.5); },
                          "step 3: learning rates differ: rank 0 has [0.5], and rank 1 has [0.25]");
                    }),
            nothing(2));
}

// A rank that fails at any of its calls, or vanishes there, ends the others with an error that names it; what they
// have is that of the last step that all have taken.
TEST_P(RanksTest, ARankThatIsGoneAtAnyMomentEndsTheOthers) {
  Session alone = stitched(Device::open("cpu:threads=1"), {});
  setValues(alone, 1);
  std::vector<Course> states;
  for (int step = 0; step < 5; ++step)
    states.push_back(train(alone, step > 0, 0, 2));
  for (bool vanishes : {false, true})
    for (uint64_t call = 0; call < 19; call += vanishes ? 4 : 1) {
      if (!isTried(call))
        continue;
      int gone = int(call % 2);
      std::vector<std::string> thrown = onRanks(
          2, GetParam(),
          [&](Rank &rank) {
            Session session = stitched(rank.device, {.collectives = rank.together});
            setValues(session, 1);
            std::string error;
            try {
              train(session, 4, rank.number(), 1);
            } catch (const Error &caught) {
              error = caught.what();
            }
            EXPECT_EQ(error.rfind("RANK_FAILED", 0), 0u) << error;
            EXPECT_TRUE(rank.number() == gone || error.find("rank " + std::to_string(gone)) != std::string::npos) << error;
            Course now = train(session, 0, 0, 1);
            EXPECT_EQ(now.tensors, states[size_t(session.stepCount())].tensors) << call;
          },
          {.timeoutSeconds = vanishes ? 0.2 : 20, .fault = InProcessOptions::Fault{gone, call, vanishes}});
      EXPECT_EQ(thrown, nothing(2)) << call;
    }
}

static std::map<std::string, std::vector<float>> parametersOf(const Session &session) {
  std::map<std::string, std::vector<float>> all;
  for (const ParameterInfo &info : session.parameters())
    all[info.key] = values(session.parameter(info.key));
  return all;
}

// A rank that is gone while ranks send each other what they have updated ends the others, too: parameters that a rank
// gives out are those of a whole step.
TEST_P(RanksTest, ARankThatIsGoneWhileUpdatesAreSentEndsTheOthers) {
  Session alone = stitched(Device::open("cpu:threads=1"), {});
  setValues(alone, 1);
  std::vector<std::map<std::string, std::vector<float>>> parameters;
  for (int step = 0; step < 5; ++step) {
    train(alone, step > 0, 0, 2);
    parameters.push_back(parametersOf(alone));
  }
  std::atomic<size_t> torn = 0, whole = 0; // of both ranks' threads
  auto isOneOf = [](Sharding sharding, bool vanishes, uint64_t call) {
    return call % (vanishes ? 5 : 1) == 0 && (sharding == Sharding::States ? isTried(call) : call % 3 == 0);
  };
  for (auto [sharding, vanishes] : {std::pair(Sharding::States, false), {Sharding::States, true},
                                    {Sharding::Gradients, false}, {Sharding::Gradients, true}})
    for (uint64_t call = 0; call < 31; ++call) {
      if (!isOneOf(sharding, vanishes, call))
        continue;
      int gone = int(call % 2);
      EXPECT_EQ(onRanks(
                    2, GetParam(),
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = sharding});
                      setValues(session, 1);
                      auto [code, what] = errorOf([&] { train(session, 4, rank.number(), 1); });
                      EXPECT_TRUE(code == ErrorCode::RankFailed || code == ErrorCode::StateTorn) << what;
                      std::map<std::string, std::vector<float>> now;
                      auto [end, why] = errorOf([&] { now = parametersOf(session); });
                      bool isTorn = end == ErrorCode::StateTorn;
                      ++(isTorn ? torn : whole);
                      EXPECT_TRUE(isTorn || now == parameters[size_t(session.stepCount())]) << call << ": " << why;
                    },
                    {.timeoutSeconds = vanishes ? 0.1 : 20, .fault = InProcessOptions::Fault{gone, call, vanishes}}),
                nothing(2))
          << call;
    }
  EXPECT_GT(torn, 0u);
  EXPECT_GT(whole, 0u);
}

// A rank that is gone while ranks save what they share out is waited for by nobody, and the file is whole or not there.
TEST_P(RanksTest, ARankThatIsGoneWhileAllSaveEndsTheOthers) {
  TemporaryFolder folder;
  std::string path = folder / "all.safetensors";
  size_t failed = 0, saved = 0;
  for (uint64_t call = 8; call < 48; ++call) {
    if (!isTried(call))
      continue;
    int gone = int(call % 2);
    std::filesystem::remove(path);
    std::vector<ErrorCode> codes(2);
    EXPECT_EQ(onRanks(
                  2, GetParam(),
                  [&](Rank &rank) {
                    Session session =
                        stitched(rank.device, {.collectives = rank.together, .sharding = Sharding::States});
                    setValues(session, 1);
                    auto [code, what] = errorOf([&] {
                      train(session, 1, rank.number(), 1);
                      session.save(path);
                      train(session, 1, rank.number(), 1);
                    });
                    codes[size_t(rank.number())] = code;
                    bool isWell = code == ErrorCode(-1); // the fault comes later
                    EXPECT_TRUE(code == ErrorCode::RankFailed || code == ErrorCode::StateTorn || isWell) << what;
                  },
                  {.timeoutSeconds = 20, .fault = InProcessOptions::Fault{gone, call, false}}),
              nothing(2))
        << call;
    if (!std::filesystem::exists(path)) {
      ++failed;
      EXPECT_NE(codes[0], ErrorCode(-1)) << call;
      continue;
    }
    ++saved;
    Session alone = stitched(Device::open("cpu:threads=1"), {});
    alone.load(path);
    EXPECT_EQ(alone.stepCount(), 1);
  }
  EXPECT_GT(failed, 0u);
  EXPECT_GT(saved, 0u);
}

// A parameter that its rank has updated and cannot read reaches nobody as numbers.
TEST(Ranks, AnUpdateThatCannotBeReadIsNotTaken) {
  Session alone = stitched(Device::open("cpu:threads=1"), {});
  setValues(alone, 1);
  alone.step(std::vector{batchOf(alone.device(), 0, 0), batchOf(alone.device(), 0, 1)}, 1e-3);
  size_t torn = 0;
  for (int copy = 1; copy < 24; ++copy)
    onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      if (rank.number() == 1) {
        rank.device = Device::open("sim:dram=1MiB,fail-d2h=" + std::to_string(copy) + "+");
        rank.together = makeCollectives(rank.device, rank.transport);
      }
      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = Sharding::States});
      setValues(session, 1);
      errorOf([&] { session.step(batchOf(rank.device, 0, rank.number()), 1e-3); });
      std::map<std::string, std::vector<float>> now;
      if (auto [code, what] = errorOf([&] { now = parametersOf(session); }); rank.number() == 0 && session.stepCount()) {
        EXPECT_TRUE(code == ErrorCode::StateTorn || now == parametersOf(alone)) << copy << ": " << what;
        torn += code == ErrorCode::StateTorn;
      }
    });
  EXPECT_GT(torn, 0u);
}

namespace {
/// A Next is a way in which the step ends that follows one whose update has failed; `act` is given the number of the
/// rank whose update that was.
struct Next {
  const char *name;
  std::function<void(Session &, Rank &, int)> act;
};
} // namespace

/// Returns the batch that a rank has of step 4, which all ranks of a pipeline have.
static TensorMap fourthBatch(Session &session, const Rank &rank, Sharding sharding) {
  return batchOf(session.device(), 3, sharding == Sharding::Modules ? 0 : rank.number());
}

// An update that is queued may fail when its step has returned. Whatever ends the next step, and on whichever rank: no
// rank hears that parameters are those of a step, all hear whose are not and what to do, and the group is over.
TEST_P(RanksTest, AnUpdateThatFailsLateIsSaidToAll) {
  for (Sharding sharding : {Sharding::None, Sharding::States, Sharding::Gradients, Sharding::Modules}) {
    bool isWhole = sharding == Sharding::None; // each has all parameters, and makes all updates
    const Next nexts[] = {
        {"a step", [&](Session &s, Rank &rank, int) { s.step(fourthBatch(s, rank, sharding), 1e-3); }},
        {"a batch that is refused at once",
         [&](Session &s, Rank &rank, int bad) {
           TensorMap batch = fourthBatch(s, rank, sharding);
           if (rank.number() == bad || sharding == Sharding::Modules) // which is given the same batches
             batch["x"] = Tensor::zeros(rank.device, TensorDesc({moduleWidth + 1}, ElementType::f32));
           s.step(batch, 1e-3);
         }},
        {"a loss that is none on another rank",
         [&](Session &s, Rank &rank, int bad) {
           TensorMap batch = fourthBatch(s, rank, sharding);
           if (rank.number() != bad || sharding == Sharding::Modules)
             batch["x"] = onHost(rank.device, std::numeric_limits<float>::quiet_NaN(), 0);
           s.step(batch, 1e-3);
         }},
        {"a learning rate that is none on another rank",
         [&](Session &s, Rank &rank, int bad) {
           s.step(fourthBatch(s, rank, sharding), rank.number() != bad ? std::numeric_limits<double>::infinity() : 1e-3);
         }},
        {"batches one by one",
         [&](Session &s, Rank &rank, int) {
           if (!isWhole) // whose steps are whole
             return (void)s.step(fourthBatch(s, rank, sharding), 1e-3);
           s.forwardBackward(fourthBatch(s, rank, sharding));
           s.optimize(1e-3);
         }},
    };
    for (const Next &next : nexts)
      for (int bad : {0, 1}) {
        SCOPED_TRACE(std::string(name(sharding)) + ", rank " + std::to_string(bad) + ", then " + next.name);
        int ranks = isWhole ? 3 : 2;
        EXPECT_EQ(onRanks(
                      ranks, GetParam(),
                      [&](Rank &rank) {
                        bool isBad = rank.number() == bad;
                        const char *update = isBad ? "sgd_of_small_rates" : "sgd";
                        Session session(rank.device,
                                        {{"front", makeLayer({.parameter = "w", .update = isWhole ? "sgd" : update})},
                                         {"back", makeHead({.parameter = "v", .update = update})}},
                                        {.collectives = rank.together, .sharding = sharding});
                        setValues(session, 1);
                        int first = sharding == Sharding::Modules ? 0 : rank.number();
                        for (int64_t step = 0; step < 2; ++step)
                          session.step(batchOf(rank.device, step, first), 1e-3);
                        auto [code, what] = errorOf([&] {
                          session.step(batchOf(rank.device, 2, first), 2);
                          next.act(session, rank, bad);
                        });
                        bool lacksUpdates = !isWhole && code == ErrorCode::StateTorn; // of the other rank
                        EXPECT_TRUE(code == (isBad ? ErrorCode::StateTorn : ErrorCode::RankFailed) || lacksUpdates) << what;
                        EXPECT_EQ(what.find("are those of step"), what.npos) << what;
                        EXPECT_NE(what.find("the last checkpoint"), what.npos) << what;
                        EXPECT_TRUE(isBad || what.find("rank " + std::to_string(bad)) != what.npos) << what;
                        EXPECT_TRUE(!isBad || what.find("step 3 was torn") != what.npos) << what;
                        auto [again, why] = errorOf([&] { session.step(batchOf(rank.device, 3, first), 1e-3); });
                        EXPECT_TRUE(again == ErrorCode::RankFailed || again == ErrorCode::StateTorn) << why;
                        EXPECT_EQ(why.find("within 10"), why.npos) << why;
                        if (isWhole && !isBad) { // has the update
                          EXPECT_EQ(parametersOf(session).size(), 2u);
                        }
                      },
                      {.timeoutSeconds = 10}),
                  nothing(ranks));
      }
  }
}

// A rank whose last update fails in its queue, and that saves nothing, hears of it by finishUpdates().
TEST_P(RanksTest, ALastUpdateThatFailsLateIsSaid) {
  EXPECT_EQ(onRanks(
                2, GetParam(),
                [&](Rank &rank) {
                  bool isBad = rank.number() == 1;
                  const char *update = isBad ? "sgd_of_small_rates" : "sgd";
                  Session session(rank.device,
                                  {{"front", makeLayer({.parameter = "w", .update = update})},
                                   {"back", makeHead({.parameter = "v", .update = update})}},
                                  {.collectives = rank.together});
                  setValues(session, 1);
                  session.step(batchOf(rank.device, 0, rank.number()), 1e-3);
                  session.finishUpdates();
                  auto [code, what] = errorOf([&] {
                    session.step(batchOf(rank.device, 1, rank.number()), 2);
                    session.finishUpdates();
                  });
                  if (isBad) {
                    EXPECT_EQ(code, ErrorCode::StateTorn) << what;
                    EXPECT_NE(what.find("step 2 was torn"), what.npos) << what;
                  } else if (what != "nothing was thrown") { // where the update fails within the step
                    EXPECT_EQ(code, ErrorCode::RankFailed) << what;
                  }
                },
                {.timeoutSeconds = 10}),
            nothing(2));
}

// A state that a rank cannot read ends the save on all at once, whoever has it.
TEST(Ranks, AStateThatCannotBeReadEndsASave) {
  TemporaryFolder folder;
  size_t reached = 0;
  for (int copy = 1; copy < 24; ++copy) {
    std::vector<std::string> thrown(2);
    onRanks(
        2, "cpu:threads=1",
        [&](Rank &rank) {
          if (rank.number() == 1) {
            rank.device = Device::open("sim:dram=1MiB,fail-d2h=" + std::to_string(copy) + "+");
            rank.together = makeCollectives(rank.device, rank.transport);
          }
          Session session = stitched(rank.device, {.collectives = rank.together, .sharding = Sharding::States});
          setValues(session, 1);
          auto [code, what] = errorOf([&] {
            session.step(batchOf(rank.device, 0, rank.number()), 1e-3);
            session.save(folder / "all.safetensors");
          });
          thrown[size_t(rank.number())] = what;
        },
        {.timeoutSeconds = 3});
    EXPECT_EQ(thrown[0].find("within 3"), std::string::npos) << copy << ": " << thrown[0] << "; " << thrown[1];
    reached += thrown[0].find("cannot save") != std::string::npos;
  }
  EXPECT_GT(reached, 0u);
}

// A rank without values tells the others at the first meeting, and all may begin when it has some.
TEST_P(RanksTest, ARankWithoutValuesIsNamed) {
  EXPECT_EQ(onRanks(2, GetParam(),
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together});
                      if (rank.number() == 0)
                        setValues(session, 1);
                      std::string error;
                      try {
                        session.step(batchOf(rank.device, 0, 0), 1e-3);
                      } catch (const Error &caught) {
                        error = caught.what();
                      }
                      EXPECT_NE(error.find(rank.number() ? "MISSING_WEIGHT" :
                                           "RANK_FAILED: rank 1 cannot begin: MISSING_WEIGHT"), std::string::npos)
                          << error;
                      setValues(session, 1);
                      train(session, 2, 0, 1);
                    }),
            nothing(2));
}

// A config that one rank would be refused is refused on all, though only the first leaves its files.
TEST(Ranks, SelectivePrecisionWithoutItsServiceIsRefusedOnAll) {
  std::vector<std::string> thrown = onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    SessionOptions options{.collectives = rank.together};
    options.config = Config::parse(R"({"memory": {"stagehand": {"selective_precision": {"enabled": true}}}})", "test");
    stitched(rank.device, std::move(options));
  });
  EXPECT_NE(thrown[0], "");
  EXPECT_EQ(thrown[0], thrown[1]);
}

// Who reads a tensor that is on its way waits for it, also where all else is done at once.
TEST_P(RanksTest, ProgramsWaitForWhatComesFromRanks) {
  EXPECT_EQ(onRanks(
                2, GetParam(),
                [&](Rank &rank) {
                  Module layer(rank.device, makeLayer());
                  TensorDesc desc({moduleWidth}, ElementType::f32);
                  for (int i = 0; i < 20; ++i) {
                    // Two that are on their way: one is read by a program, the other is copied.
                    Tensor w = copyTo(rank.device, onHost(rank.device, float(rank.number() + i), 1), desc);
                    Tensor v = copyTo(rank.device, w, desc), x = onHost(rank.device, 1, 0);
                    rank.together->allReduce(std::span(&w, 1));
                    Tensor h = layer.infer({{"w", w}, {"x", x}}).front();
                    rank.together->allReduce(std::span(&v, 1));
                    Tensor copy = copyTo(rank.device, v, desc);
                    Vector sum;
                    for (int64_t k = 0; k < moduleWidth; ++k)
                      sum.push_back(float(2 * i + 1) + 2 * float(k));
                    EXPECT_EQ(values(copy), sum);
                    EXPECT_EQ(values(h), sum);
                  }
                },
                {.seed = 8}),
            nothing(2));
}
