//===- PipelineTest.cpp - modules that ranks run one behind the other -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks that have some of the modules each train to the bits of one rank that has them all,
// with the same batches, under every service, within a budget of their own.
//
//===----------------------------------------------------------------------===//

#include "PipelineModel.h"
#include "RankModes.h"

using namespace segue;
using namespace segue::test;
using namespace segue::test::ranked;

namespace {
/// The losses and norms of steps, and the tensors of the ranks together.
struct Pipelined {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> tensors;
  bool operator==(const Pipelined &) const = default;
};

/// Ends one of the programs that begin, or a step.
struct FailingPrograms final : ForwardEvents {
  /// How many programs may begin before; -1: all.
  int left = -1;
  bool failsStep = false;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (failsStep && begin.phase == Phase::StepBegin)
      throw Error(ErrorCode::TransferFailed, "the test ends this step");
  }
  void on(const event::Submit &) {
    if (left >= 0 && left-- == 0)
      throw Error(ErrorCode::TransferFailed, "the test ends this program");
  }
  void on(const auto &) {}
};

struct Pipeline : testing::TestWithParam<Way> {};

struct NamedModel {
  const char *name;
  const PipelineModel &model;
};
struct PipelineModels : testing::TestWithParam<NamedModel> {};
} // namespace
INSTANTIATE_TEST_SUITE_P(SampleOf3, Pipeline, testing::ValuesIn(rankWays), [](const auto &info) { return info.param.name; });

static const PipelineModel small;
/// The first and the last module share a parameter, as a GPT does with its table of tokens; a module between them has it,
/// too.
static const PipelineModel tied{.tied = {{{"embed", "embed"}, {"layer1", "v"}, {"head", "head"}}}};
/// The last one trains what a module before it takes as it is.
static const PipelineModel tiedToFrozen{.tied = {{{"layer2", "v"}, {"head", "head"}}}};

INSTANTIATE_TEST_SUITE_P(Models, PipelineModels,
                         testing::Values(NamedModel{"Apart", small}, NamedModel{"Tied", tied},
                                         NamedModel{"TiedToFrozen", tiedToFrozen}),
                         [](const auto &info) { return info.param.name; });

static const std::vector<SessionModule> &modules() {
  static const std::vector<SessionModule> all = small.modules();
  return all;
}

static SessionOptions optionsFor(const PipelineModel &model, const Way &way) {
  SessionOptions options = optionsOf(way);
  options.maxGradNorm = 0.1;
  options.wires = model.wires();
  options.tied = model.tied;
  return options;
}

static std::string fullName(const ParameterRef &ref) { return ref.module + "." + ref.name; }

static std::vector<TensorMap> batchesOf(const Session &session, const PipelineModel &model, int count) {
  std::vector<TensorMap> batches;
  for (int batch = 0; batch < count; ++batch)
    batches.push_back(model.batch(session.device(), session.stepCount(), batch));
  return batches;
}

static void addTensors(const Session &session, std::map<std::string, std::vector<float>> &tensors) {
  std::vector<std::string> elsewhere = session.parametersElsewhere();
  for (const ParameterInfo &info : session.parameters())
    if (!std::ranges::count(elsewhere, info.key)) {
      EXPECT_TRUE(tensors.emplace(info.key, values(session.parameter(info.key))).second) << info.key << " is on two ranks";
    }
  for (const auto &[key, state] : session.state())
    EXPECT_TRUE(tensors.emplace("state " + key, values(state)).second) << key << " is on two ranks";
}

static Pipelined trainOn(Session &session, const PipelineModel &model, int count, int batches) {
  Pipelined run;
  for (int i = 0; i < count; ++i) {
    StepResult result = session.step(batchesOf(session, model, batches), 1e-2);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.gradNorm);
  }
  addTensors(session, run.tensors);
  return run;
}

static Session makeAlone(const PipelineModel &model, const std::vector<SessionModule> &modules) {
  Session session(Device::open("cpu:threads=1"), modules, optionsFor(model, {"", ""}));
  model.setValues(session);
  return session;
}

static Session makeRank(Rank &rank, const PipelineModel &model, const std::vector<SessionModule> &modules, const Way &way,
                        std::vector<size_t> stages = {}) {
  SessionOptions options = optionsFor(model, way);
  options.seed += rank.number(); // that of rank 0 is taken
  options.collectives = rank.together;
  options.sharding = Sharding::Modules;
  options.stages = std::move(stages);
  Session session(rank.device, modules, std::move(options));
  model.setValues(session);
  return session;
}

static Session makeWatched(Rank &rank, const PipelineModel &model, EventSink &events) {
  SessionOptions options = optionsFor(model, {"", ""});
  options.collectives = rank.together;
  options.sharding = Sharding::Modules;
  options.events = &events;
  Session session(rank.device, modules(), std::move(options));
  model.setValues(session);
  return session;
}

/// Trains on so many ranks and expects of each what one rank has.
static void expectAsAlone(const PipelineModel &model, const std::vector<SessionModule> &modules, const Way &way,
                          const std::string &device, int ranks, int count, int batches, std::vector<size_t> stages = {}) {
  Session one = makeAlone(model, modules);
  Pipelined expected = trainOn(one, model, count, batches);
  std::set<std::string> tied;
  for (const ParameterInfo &info : one.parameters())
    if (info.members.size() > 1)
      tied.insert(info.key);
  std::mutex mutex;
  std::map<std::string, std::vector<float>> tensors;
  EXPECT_EQ(onRanks(
                ranks, device,
                [&](Rank &rank) {
                  Session session = makeRank(rank, model, modules, way, stages);
                  rank.device->memory().resetPeak();
                  Pipelined own = trainOn(session, model, count, batches);
                  EXPECT_EQ(own.losses, expected.losses);
                  EXPECT_EQ(own.norms, expected.norms);
                  EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram),
                            rank.device->memory().budget(Space::DeviceDram));
                  std::lock_guard lock(mutex);
                  for (auto &[key, value] : own.tensors)
                    EXPECT_TRUE(tensors.emplace(key, value).second || (tied.contains(key) && tensors.at(key) == value))
                        << key << " is on two ranks";
                },
                {.seed = 9}),
            nothing(ranks));
  EXPECT_EQ(tensors.size(), expected.tensors.size());
  EXPECT_TRUE(tensors == expected.tensors);
}

TEST(PipelineRanks, AnyNumberOfStagesAndBatches) {
  for (auto [ranks, batches] : {std::pair(2, 1), {2, 4}, {3, 2}, {4, 5}, {5, 3}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(batches) + " batches");
    expectAsAlone(small, modules(), {"", ""}, "cpu:threads=1", ranks, 5, batches);
  }
  // The last stage reads a value of the first, which passes through those between, in bf16, too.
  PipelineModel model;
  model.element = "bf16";
  std::vector<SessionModule> given = model.modules();
  expectAsAlone(model, given, {"", ""}, "cpu:threads=1", 3, 5, 4, {1, 3, 1});
  expectAsAlone(model, given, {"", ""}, "sim:streams,dram=16MiB,pinned=16MiB,threads=1,adversarial=3", 4, 5, 4,
                {1, 1, 1, 2});
  // Gradients of one value are added up in f32, also where the sum of two goes to the rank of the third.
  model.threeReadOne = true;
  expectAsAlone(model, given, {"", ""}, "cpu:threads=1", 2, 5, 3, {2, 3});
}

/// Trains on two ranks for twenty steps of four batches, with the least memory in which neither is refused.
static void expectAsAloneAtLeast(const PipelineModel &model, const Way &way) {
  TemporaryFolder folder;
  std::string name = way.device;
  if (size_t at = name.find("FOLDER"); at != name.npos)
    name.replace(at, 6, folder.path.string());
  uint64_t least = 16 << 20;
  if (*way.services)
    least = leastOfRanks(2, name, [&](Rank &rank) { makeRank(rank, model, modules(), way).certify(4); });
  expectAsAlone(model, modules(), way, name + ",dram=" + std::to_string(least), 2, steps, 4);
}

TEST_P(Pipeline, TwoStagesAreOneRank) { expectAsAloneAtLeast(small, GetParam()); }

TEST_P(Pipeline, TwoStagesThatShareAParameterAreOneRank) { expectAsAloneAtLeast(tied, GetParam()); }

// A sum over stages and batches is added up in the order of one rank, whoever updates the parameter.
TEST(PipelineRanks, ParametersOfSeveralStages) {
  using Ties = std::vector<std::vector<ParameterRef>>;
  for (const Ties &ties : {Ties{{{"embed", "embed"}, {"head", "head"}}},
                           // three users, of which two are in one stage, and two of one module
                           Ties{{{"embed", "embed"}, {"layer1", "w"}, {"layer1", "v"}, {"head", "head"}}},
                           // two, of which one is of neighbours
                           Ties{{{"layer0", "v"}, {"head", "head"}}, {{"layer0", "w"}, {"layer1", "w"}}},
                           // one that the first of its stages does not train
                           Ties{{{"layer2", "v"}, {"head", "head"}}, {{"embed", "embed"}, {"layer1", "v"}}},
                           // one that nobody trains but a stage before
                           Ties{{{"embed", "embed"}, {"layer2", "w"}}},
                           // within a stage, if there are two
                           Ties{{{"layer0", "v"}, {"layer1", "w"}}}})
    for (auto [ranks, batches] : {std::pair(2, 3), {3, 2}, {4, 5}, {5, 1}}) {
      SCOPED_TRACE(fullName(ties[0][0]) + " = " + fullName(ties[0].back()) + ", " + std::to_string(ranks) + " ranks, " +
                   std::to_string(batches) + " batches");
      PipelineModel model{.tied = ties};
      expectAsAlone(model, modules(), {"", ""}, "cpu:threads=1", ranks, 4, batches);
      expectAsAlone(model, modules(), {"", ""}, "sim:streams,dram=16MiB,pinned=16MiB,threads=1,adversarial=3", ranks, 4,
                    batches);
    }
}

// Where each rank has the sums of some gradients alone, a parameter that modules share counts once in the norm, too.
TEST(PipelineRanks, SharedParametersCountOnceWithEveryStrategy) {
  // The rank that updates the shared one has the gradient of a module behind those that share it, too.
  const PipelineModel model{.tied = {{{"embed", "embed"}, {"layer0", "v"}}}};
  std::vector<Pipelined> found;
  for (Sharding sharding : {Sharding::None, Sharding::Gradients})
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      SessionOptions options = optionsFor(model, {"", ""});
      options.collectives = rank.together;
      options.sharding = sharding;
      Session session(rank.device, modules(), std::move(options));
      model.setValues(session);
      Pipelined run;
      for (int i = 0; i < 4; ++i) {
        std::vector<TensorMap> batches{model.batch(rank.device, i, rank.number())};
        run.norms.push_back(session.step(batches, 1e-2).gradNorm);
      }
      if (rank.number() == 0)
        found.push_back(std::move(run));
    }),
              nothing(2));
  EXPECT_EQ(found[0].norms, found[1].norms);
}

// A rank holds what is of its modules, and of activations those of as many batches as there are stages from it on.
TEST(PipelineRanks, EachHoldsItsModulesAndFewBatches) {
  uint64_t matrix = uint64_t(small.width * small.width) * sizeof(float);
  std::vector<uint64_t> peaks[2] = {std::vector<uint64_t>(2), std::vector<uint64_t>(2)};
  for (int i : {0, 1})
    EXPECT_EQ(onRanks(2, "sim:dram=16MiB,pinned=16MiB,threads=1", [&](Rank &rank) {
      Session session = makeRank(rank, small, modules(), {"", ""}, {2, 3});
      uint64_t before = rank.device->memory().liveBytes(Space::DeviceDram);
      // embed and layer0 have three matrices with two states each; layer1, a frozen layer2 and head have five, three of
      // them with states.
      EXPECT_EQ(before, (rank.number() ? 5 + 3 * 2 : 3 + 3 * 2) * matrix);
      rank.device->memory().resetPeak();
      trainOn(session, small, 3, i ? 12 : 4);
      // Plans leave to messages the bytes that these take.
      EXPECT_EQ(rank.device->transfer().leftToMessages(), rank.together->figures().peakBytes);
      EXPECT_GT(rank.device->transfer().leftToMessages(), 0u);
      peaks[i][size_t(rank.number())] = rank.device->memory().peakBytes(Space::DeviceDram);
    }),
              nothing(2));
  // More batches come and go; the losses of all are read when the step ends.
  for (size_t rank : {0, 1})
    EXPECT_LE(peaks[1][rank], peaks[0][rank] + 12 * 2 * 64);
}

// A rank has the value of a parameter that another one updates, and neither states nor an update of it.
TEST(PipelineRanks, WhoSharesAParameterHasItsValue) {
  uint64_t matrix = uint64_t(tied.width * tied.width) * sizeof(float);
  EXPECT_EQ(onRanks(2, "sim:dram=16MiB,pinned=16MiB,threads=1", [&](Rank &rank) {
    Session session = makeRank(rank, tied, modules(), {"", ""}, {2, 3});
    // embed and layer0 have three matrices with two states each; layer1 and head share that of embed, and layer1 has one
    // with states, layer2 two that are frozen.
    EXPECT_EQ(rank.device->memory().liveBytes(Space::DeviceDram), (rank.number() ? 4 + 2 : 3 + 3 * 2) * matrix);
    std::vector<std::string> first{"layer0.v", "layer0.w"}, second{"layer1.w", "layer2.v", "layer2.w"};
    EXPECT_EQ(session.parametersElsewhere(), rank.number() ? first : second);
    if (rank.number()) {
      for (const char *program : {"optimizer", "grad_norm"})
        EXPECT_TRUE(session.modules()[4].find(program)->inputs().empty()) << program;
    }
    trainOn(session, tied, 3, 4);
    EXPECT_EQ(rank.device->transfer().leftToMessages(), rank.together->figures().peakBytes);
  }),
            nothing(2));
}

// Who updates a parameter says its value.
TEST(PipelineRanks, SharedValuesAreThoseOfWhoUpdatesThem) {
  for (const auto &[model, key, owner] : {std::tuple(&tied, "embed", 0), {&tiedToFrozen, "layer2.v", 2}}) {
    auto set = [key = key](Session &session, uint32_t seed) {
      session.setParameter(key, randomTensor(session.device(), session.parameters()[0].desc.shape, seed));
    };
    Session one = makeAlone(*model, modules());
    set(one, 1);
    Pipelined expected = trainOn(one, *model, 2, 2);
    EXPECT_EQ(onRanks(3, "sim:dram=16MiB,pinned=16MiB,threads=1", [&, model = model, owner = owner](Rank &rank) {
      Session session = makeRank(rank, *model, modules(), {"", ""}, {1, 3, 1});
      set(session, rank.number() == owner ? 1 : 2);
      Pipelined own = trainOn(session, *model, 2, 2);
      EXPECT_EQ(own.losses, expected.losses);
      EXPECT_EQ(own.norms, expected.norms);
    }),
              nothing(3));
  }
}

// Outputs and losses of evaluations are there on every rank.
TEST_P(PipelineModels, EvaluatesOnEveryRank) {
  Session one = makeAlone(GetParam().model, modules());
  TensorMap expected = one.evaluate(GetParam().model.batch(one.device(), 7, 7));
  for (const char *device : {"cpu:threads=1", "sim:dram=16MiB,pinned=16MiB,threads=1,adversarial=4"})
    EXPECT_EQ(onRanks(3, device, [&](Rank &rank) {
      Session session = makeRank(rank, GetParam().model, modules(), {"", ""});
      for (int i = 0; i < 3; ++i) {
        TensorMap found = session.evaluate(GetParam().model.batch(rank.device, 7, 7));
        EXPECT_EQ(found.size(), expected.size());
        for (const auto &[name, tensor] : expected)
          EXPECT_EQ(values(found.at(name)), values(tensor)) << name;
      }
    }),
              nothing(3));
}

// Who gets outputs in memory of the host may read it at once.
TEST(PipelineRanks, OutputsHaveArrivedWhenAnEvaluationEnds) {
  class Slow final : public EventSink {
    void receive(const Event &event) override {
      if (std::holds_alternative<event::Submit>(event))
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } slow;
  FailingPrograms nobody;
  EXPECT_EQ(onRanks(3, "cpu:threads=1", [&](Rank &rank) {
    Session session = makeWatched(rank, small, rank.number() == 2 ? static_cast<EventSink &>(slow) : nobody);
    for (const auto &[name, tensor] : session.evaluate(small.batch(rank.device, 7, 7)))
      EXPECT_TRUE(rank.device->isDone(tensor.storage()->writes())) << name;
  }),
            nothing(3));
}

// All parameters can be had on every rank.
TEST_P(PipelineModels, ParametersAreGathered) {
  Session one = makeAlone(GetParam().model, modules());
  trainOn(one, GetParam().model, 2, 2);
  std::map<std::string, std::vector<float>> expected;
  for (const ParameterInfo &info : one.parameters())
    expected[info.key] = values(one.parameter(info.key));
  EXPECT_EQ(onRanks(3, "sim:dram=16MiB,pinned=16MiB,threads=1", [&](Rank &rank) {
    Session session = makeRank(rank, GetParam().model, modules(), {"", ""});
    trainOn(session, GetParam().model, 2, 2);
    std::map<std::string, std::vector<float>> found;
    session.gatherParameters([&](const ParameterInfo &info, const Tensor &value) { found[info.key] = values(value); });
    EXPECT_TRUE(found == expected);
  }),
            nothing(3));
}

// A checkpoint is that of one rank, in a file and in a folder, and goes on with other stages.
TEST_P(PipelineModels, CheckpointsGoOnWithOtherStages) {
  Session one = makeAlone(GetParam().model, modules());
  trainOn(one, GetParam().model, 3, 2);
  TemporaryFolder folder;
  std::string whole = (folder.path / "whole.safetensors").string();
  one.save(whole);
  Pipelined expected = trainOn(one, GetParam().model, 3, 2);
  std::string later = (folder.path / "later.safetensors").string();
  one.save(later);
  for (const char *name : {"file.safetensors", "parts/"}) {
    std::string path = (folder.path / name).string();
    EXPECT_EQ(onRanks(3, "cpu:threads=1", [&](Rank &rank) {
      Session session = makeRank(rank, GetParam().model, modules(), {"", ""}, {2, 2, 1});
      trainOn(session, GetParam().model, 3, 2);
      session.save(path);
    }),
              nothing(3));
    if (name[0] == 'f') {
      EXPECT_EQ(bytesOf(path), bytesOf(whole));
    }
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      Session session = makeRank(rank, GetParam().model, modules(), {"", ""}, {4, 1});
      session.load(path);
      Pipelined own = trainOn(session, GetParam().model, 3, 2);
      EXPECT_EQ(own.losses, expected.losses);
      EXPECT_EQ(own.norms, expected.norms);
      session.save(folder.path / "two.safetensors");
    }),
              nothing(2));
    EXPECT_EQ(bytesOf(folder.path / "two.safetensors"), bytesOf(later));
  }
}

// A rank whose device is too small says so before any other waits for it, and a step that ends where it begins serves them.
TEST_P(PipelineModels, ARankThatCannotBeginIsNamed) {
  Session one = makeAlone(GetParam().model, modules());
  Pipelined expected = trainOn(one, GetParam().model, 2, 3);
  for (int failing : {0, 1, 2}) {
    EXPECT_EQ(onRanks(3, "sim:dram=16MiB,pinned=16MiB,threads=1", [&](Rank &rank) {
      bool fails = rank.number() == failing;
      if (fails) {
        rank.device = Device::open("sim:dram=64KiB,pinned=16MiB,threads=1");
        rank.together = makeCollectives(rank.device, rank.transport);
      }
      Session session = makeRank(rank, GetParam().model, modules(), {"", "", plan});
      auto [code, what] = errorOf([&] { trainOn(session, GetParam().model, 1, 3); });
      EXPECT_EQ(code, fails ? ErrorCode::BudgetInfeasible : ErrorCode::RankFailed) << what;
      EXPECT_NE(what.find("the smallest budget is"), what.npos) << what;
      if (!fails) {
        EXPECT_NE(what.find("rank " + std::to_string(failing) + " cannot take step 1"), what.npos) << what;
      }
    }),
              nothing(3));
    EXPECT_EQ(onRanks(3, "sim:dram=16MiB,pinned=16MiB,threads=1", [&](Rank &rank) {
      FailingPrograms events;
      Session session = makeWatched(rank, GetParam().model, events);
      events.failsStep = rank.number() == failing;
      auto [code, what] = errorOf([&] { trainOn(session, GetParam().model, 1, 3); });
      EXPECT_NE(what.find("the test ends this step"), what.npos) << what;
      events.failsStep = false;
      Pipelined own = trainOn(session, GetParam().model, 2, 3);
      EXPECT_EQ(own.losses, expected.losses);
    }),
              nothing(3));
  }
}

// An evaluation that fails on one rank is an error on all, and the next step is taken.
TEST_P(PipelineModels, AnEvaluationThatFailsFailsOnAll) {
  for (int failing : {0, 1, 2})
    EXPECT_EQ(onRanks(3, "cpu:threads=1", [&](Rank &rank) {
      FailingPrograms events;
      Session session = makeWatched(rank, GetParam().model, events);
      trainOn(session, GetParam().model, 1, 2);
      events.left = rank.number() == failing ? 0 : -1;
      auto [code, what] = errorOf([&] {
        for (const auto &[name, tensor] : session.evaluate(GetParam().model.batch(rank.device, 5, 5)))
          values(tensor);
      });
      EXPECT_EQ(code, rank.number() == failing ? ErrorCode::TransferFailed : ErrorCode::RankFailed)
          << rank.number() << " of " << failing << ": " << what;
      events.left = -1;
      trainOn(session, GetParam().model, 1, 2);
    }),
              nothing(3));
}

// Batches of other extents run their own programs on every rank, and are evaluated by theirs.
TEST_P(PipelineModels, BatchesOfOtherExtents) {
  PipelineModel shorter{.rows = 48, .tied = GetParam().model.tied};
  std::vector<SessionModule> others = shorter.modules();
  auto course = [&](Session &session) {
    session.addSizes(others);
    Pipelined run;
    for (int i = 0; i < 3; ++i) {
      std::vector<TensorMap> step = batchesOf(session, GetParam().model, 3);
      step[size_t(i)] = shorter.batch(session.device(), i, 9);
      StepResult result = session.step(step, 1e-2);
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradNorm);
    }
    run.losses.push_back(session.evaluate(shorter.batch(session.device(), 7, 7)).at("loss").item());
    return run;
  };
  Session one = makeAlone(GetParam().model, modules());
  Pipelined expected = course(one);
  for (const char *services : {"", plan})
    EXPECT_EQ(onRanks(3, "sim:streams,dram=4MiB,pinned=16MiB,threads=1,adversarial=3", [&](Rank &rank) {
      Session session = makeRank(rank, GetParam().model, modules(), {"", "", services});
      EXPECT_TRUE(course(session) == expected);
    }),
              nothing(3));
}

// Where the loss is scaled, NaN in a batch has all ranks skip the step, and the scale falls on all.
TEST_P(PipelineModels, AScaledLossThatIsNoneIsSkippedOnAll) {
  auto trainScaled = [](Session &session) {
    trainOn(session, GetParam().model, 1, 3);
    std::vector<TensorMap> batches = batchesOf(session, GetParam().model, 3);
    batches[1]["y"].data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(session.step(batches, 1e-2).isSkipped);
    EXPECT_EQ(session.lossScaling()->scale, 512);
    Pipelined run;
    for (int i = 0; i < 2; ++i) {
      StepResult result = session.step(batchesOf(session, GetParam().model, 3), 1e-2);
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradNorm);
    }
    return run;
  };
  auto scaled = [](SessionOptions options) {
    options.lossScaling = LossScaling{.scale = 1024};
    return options;
  };
  Session one(Device::open("cpu:threads=1"), modules(), scaled(optionsFor(GetParam().model, {"", ""})));
  GetParam().model.setValues(one);
  Pipelined expected = trainScaled(one);
  EXPECT_EQ(onRanks(3, "cpu:threads=1", [&](Rank &rank) {
    SessionOptions options = scaled(optionsFor(GetParam().model, {"", ""}));
    options.collectives = rank.together;
    options.sharding = Sharding::Modules;
    Session session(rank.device, modules(), std::move(options));
    GetParam().model.setValues(session);
    Pipelined own = trainScaled(session);
    EXPECT_EQ(own.losses, expected.losses);
    EXPECT_EQ(own.norms, expected.norms);
  }),
            nothing(3));
}

// NaN in a batch ends the step on all, with nothing changed, and the next one is taken.
TEST_P(PipelineModels, NanEndsTheStepOnAll) {
  for (int nanBatch : {0, 1, 2}) {
    Session one = makeAlone(GetParam().model, modules());
    trainOn(one, GetParam().model, 1, 3);
    Pipelined expected = trainOn(one, GetParam().model, 2, 3);
    EXPECT_EQ(onRanks(2, "sim:dram=16MiB,pinned=16MiB,threads=1,link=8GB/s", [&](Rank &rank) {
      Session session = makeRank(rank, GetParam().model, modules(), {"", ""});
      trainOn(session, GetParam().model, 1, 3);
      std::vector<TensorMap> batches = batchesOf(session, GetParam().model, 3);
      batches[size_t(nanBatch)]["x"].data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
      auto [code, what] = errorOf([&] { session.step(batches, 1e-2); });
      EXPECT_NE(what.find("the loss is nan"), what.npos) << what;
      EXPECT_EQ(code == ErrorCode::RankFailed, what.find("cannot take step 2") != what.npos) << what;
      EXPECT_EQ(session.stepCount(), 1);
      Pipelined own = trainOn(session, GetParam().model, 2, 3);
      EXPECT_EQ(own.losses, expected.losses);
      EXPECT_EQ(own.norms, expected.norms);
    }),
              nothing(2));
  }
}

// A rank whose device is full in the midst of a step serves the others, who name it; the next step has room and is
// taken.
TEST_P(PipelineModels, ARankThatFailsIsNamedAndTheNextStepIsTaken) {
  for (int failing : {0, 1, 2})
    for (int at : {0, 2}) {
      SCOPED_TRACE(std::to_string(failing) + " " + std::to_string(at));
      Session one = makeAlone(GetParam().model, modules());
      trainOn(one, GetParam().model, 1, 4);
      Pipelined expected = trainOn(one, GetParam().model, 2, 4);
      EXPECT_EQ(onRanks(3, "sim:dram=16MiB,pinned=16MiB,threads=1,link=8GB/s", [&](Rank &rank) {
        FailingPrograms events;
        Session session = makeWatched(rank, GetParam().model, events);
        trainOn(session, GetParam().model, 1, 4);
        if (rank.number() == failing)
          events.left = at;
        auto [code, what] = errorOf([&] { session.step(batchesOf(session, GetParam().model, 4), 1e-2); });
        EXPECT_NE(what.find("the test ends this program"), what.npos) << what;
        EXPECT_EQ(code, rank.number() == failing ? ErrorCode::TransferFailed : ErrorCode::RankFailed) << what;
        if (rank.number() != failing) {
          EXPECT_NE(what.find("rank " + std::to_string(failing) + " cannot take step 2"), what.npos) << what;
        }
        events.left = -1;
        Pipelined own = trainOn(session, GetParam().model, 2, 4);
        EXPECT_EQ(own.losses, expected.losses);
        EXPECT_EQ(own.norms, expected.norms);
      }),
                nothing(3));
    }
}

// A pipeline that cannot be is refused on every rank with what to do, and whatever can go on does.
TEST(PipelineRanks, RefusesWhatCannotBe) {
  auto refused = [](int ranks, const std::function<void(Rank &)> &body, const std::string &why) {
    for (const std::string &what : onRanks(ranks, "cpu:threads=1", body))
      EXPECT_NE(what.find(why), what.npos) << what;
  };
  refused(6, [](Rank &rank) { makeRank(rank, small, modules(), {"", ""}); },
          "a pipeline of 6 ranks over 5 modules: each rank runs one at least");
  refused(2, [](Rank &rank) { makeRank(rank, small, modules(), {"", ""}, {2, 2}); }, "stages are given for 4 modules");
  refused(2, [](Rank &rank) { makeRank(rank, small, modules(), {"", ""}, {5}); }, "stages are given for 1 ranks");
  refused(2, [](Rank &rank) { makeRank(rank, small, modules(), {"", ""}, {0, 5}); }, "a stage is to have 0 modules");
  refused(2,
          [](Rank &rank) {
            Session session = makeRank(rank, small, modules(), {"", ""}, {size_t(1 + rank.number()), size_t(4 - rank.number())});
            trainOn(session, small, 1, 2);
          },
          "the number of modules of each rank differs");
  refused(2,
          [](Rank &rank) {
            Session session = makeRank(rank, small, modules(), {"", ""});
            session.forwardBackward(small.batch(rank.device, 0, 0));
          },
          "give all batches to step()");
  EXPECT_EQ(onRanks(2, "cpu:threads=1", [](Rank &rank) {
    Session session = makeRank(rank, small, modules(), {"", ""});
    for (auto [count, other, why] : {std::tuple(2 + rank.number(), 0, "rank 0 has 2 batches, and rank 1 3"),
                                     {2, rank.number(), "rank 0 has 2 batches, and rank 1 others"}}) {
      std::vector<TensorMap> batches;
      for (int batch = 0; batch < count; ++batch)
        batches.push_back(small.batch(rank.device, 0, batch + other));
      auto [code, what] = errorOf([&] { session.step(batches, 1e-2); });
      EXPECT_NE(what.find(why), what.npos) << what;
    }
    std::string key = rank.number() ? "embed" : "head";
    auto [code, what] = errorOf([&] { session.parameter(key); });
    EXPECT_NE(what.find("\"" + key + "\" lives on rank " + std::to_string(1 - rank.number())), what.npos) << what;
    trainOn(session, small, 1, 2);
  }),
            nothing(2));
}
