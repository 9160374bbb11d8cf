//===- RankModesTest.cpp - ranks under every service ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A model of blocks, trained by two ranks that have each a budget of their own: to the bits
// of one rank without services that has the batches of both. Gradients are sent while
// backward goes on.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "CompiledModule.h"
#include "DeepModel.h"
#include "ErrorOf.h"
#include "LeastOfRanks.h"
#include "RandomTensors.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

using namespace segue;
using namespace segue::test;

static constexpr int steps = 20;
/// The strategies in which each rank updates parameters of its own.
static constexpr Sharding sharded[] = {Sharding::States, Sharding::Gradients};

namespace {
struct Way {
  /// The name, and the device but for its memory, which is the least that trains; FOLDER stands for one of the test.
  const char *name, *device;
  /// The section memory.stagehand; empty: no services, and memory for everything.
  const char *services = "";
};

/// Notes how many messages have been given to the network when each backward ends.
struct Messages final : ForwardEvents {
  DeviceRef device;
  uint64_t before = 0;
  std::vector<uint64_t> inBackward;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::Backward)
      before = device->position(Queue::Network);
    else if (begin.phase == Phase::Optimizer)
      inBackward.push_back(device->position(Queue::Network) - before);
  }
  void on(const auto &) {}
};

struct RankModes : testing::TestWithParam<Way> {};

const char *const marks = R"({"activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
  "pinned_pool_classes_mb": [1], "slabs_per_class": 6, "vram_high_watermark_mb": 0.001, "vram_low_watermark_mb": 0},
  "state_stagehand": {"mode": "on", "telemetry_enabled": false}})";
const char *const plan = R"({"activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";
const char *const ring = R"({"telemetry_enabled": false, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5})";
const char *const planAndRing = R"({"telemetry_enabled": false, "prefetch_window_blocks": 1,
  "vram_high_watermark_mb": 0.5,
  "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";
} // namespace

static const DeepModel model{.layers = 6, .rows = 256, .width = 64, .isRandom = true};

static const Binary &binary() {
  static const Binary file = model.compiled();
  return file;
}

static void setValues(Session &session) {
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
}

/// Returns true if two tensors have the same bytes.
static bool haveEqualValues(const Tensor &a, const Tensor &b) {
  Tensor left = toHost(a), right = toHost(b);
  uint64_t bytes = left.desc().spanBytes();
  return left.desc() == right.desc() && std::memcmp(left.bytes(), right.bytes(), bytes) == 0;
}

/// How the batches of a step are given: at once, so that the last one is known, or one by one.
enum class Given { AtOnce, OneByOne };

/// Returns losses and norms of so many steps, and the parameters after the last.
static std::vector<float> trainParameters(Session &session, int count, int first, int batches,
                                          Given given = Given::AtOnce) {
  std::vector<float> bits;
  for (int i = 0; i < count; ++i) {
    std::vector<TensorMap> step;
    for (int batch = first; batch < first + batches; ++batch) {
      auto seed = uint32_t(100 + 4 * session.stepCount() + batch);
      step.push_back({{"x", randomTensor(session.device(), {model.rows, model.width}, seed)}});
    }
    if (given == Given::OneByOne)
      for (const TensorMap &batch : step)
        session.forwardBackward(batch);
    StepResult result = given == Given::OneByOne ? session.optimize(1e-2) : session.step(step, 1e-2);
    bits.push_back(float(result.loss));
    bits.push_back(float(result.gradNorm));
  }
  for (const ParameterInfo &info : session.parameters())
    std::ranges::copy(values(session.parameter(info.key)), std::back_inserter(bits));
  return bits;
}

/// Returns these, and the states after the last.
static std::vector<float> train(Session &session, int count, int first, int batches, Given given = Given::AtOnce) {
  std::vector<float> bits = trainParameters(session, count, first, batches, given);
  for (const auto &[key, state] : session.state())
    std::ranges::copy(values(state), std::back_inserter(bits));
  return bits;
}

static SessionOptions optionsOf(const Way &way) {
  SessionOptions options;
  options.maxGradNorm = 1e-3;
  options.seed = 11;
  options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
  std::string services = way.services;
  if (!services.empty())
    options.config = Config::parse(R"({"memory": {"stagehand": )" + services + "}}", "test");
  return options;
}

/// Returns a session of one rank with everything in memory.
static Session makeAlone() {
  Session session(Device::open("cpu:threads=1"), {{"deep", binary()}}, optionsOf({"", ""}));
  setValues(session);
  return session;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, RankModes,
    testing::Values(Way{"Cpu", "cpu:threads=1"}, Way{"Sim", "sim:pinned=16MiB,threads=1,link=8GB/s"},
                    Way{"Streams", "sim:streams,pinned=16MiB,threads=1,adversarial=5"},
                    Way{"Marks", "sim:pinned=16MiB,threads=1,link=8GB/s", marks},
                    Way{"MarksInAnyOrder", "sim:pinned=16MiB,threads=1,adversarial=6", marks},
                    Way{"Plan", "sim:pinned=16MiB,threads=1,link=8GB/s", plan},
                    Way{"PlanInAnyOrder", "sim:streams,pinned=16MiB,threads=1,adversarial=7", plan},
                    Way{"Ring", "sim:pinned=16MiB,threads=1,link=8GB/s", ring},
                    Way{"PlanAndRing", "sim:pinned=16MiB,threads=1,link=8GB/s", planAndRing},
                    Way{"PlanAboveADisk", "cpu:threads=1,disk=FOLDER?capacity=64MiB", plan},
                    Way{"MarksAboveADisk", "cpu:threads=1,disk=FOLDER?capacity=64MiB", marks},
                    Way{"PlanWithADiskBelowTheHost", "sim:host=512KiB,threads=1,disk=FOLDER?capacity=64MiB", plan}),
    [](const auto &info) { return info.param.name; });

namespace {
struct RankModesRun {
  /// `spare`: more memory than that, as a part of it.
  explicit RankModesRun(const Way &way, size_t batches = 1, double spare = 0, Sharding sharding = Sharding::None)
      : way(way), sharding(sharding) {
    std::string name = way.device;
    if (size_t at = name.find("FOLDER"); at != name.npos)
      name.replace(at, 6, folder.path.string());
    std::string services = way.services;
    uint64_t least = services.empty() ? 16 << 20 : smallest(name, batches);
    device = name + ",dram=" + std::to_string(uint64_t(double(least) * (1 + spare)));
  }
  std::vector<std::string> onRanks(const std::function<void(Rank &)> &body) const {
    return segue::test::onRanks(2, device, body, {.seed = 9}, {.bucketBytes = 20000});
  }
  Session make(Rank &rank, EventSink *events = nullptr) const {
    SessionOptions options = optionsOf(way);
    options.seed += rank.number(); // that of rank 0 is taken
    options.collectives = rank.together;
    options.sharding = sharding;
    options.events = events;
    Session session(rank.device, {{"deep", binary()}}, std::move(options));
    setValues(session);
    return session;
  }

  const Way way;
  const Sharding sharding;
  TemporaryFolder folder;
  std::string device;

private:
  /// The smallest memory in which no rank is refused for steps of so many batches.
  uint64_t smallest(const std::string &name, size_t batches) const {
    return leastOfRanks(2, name, [&](Rank &rank) { make(rank).certify(batches); });
  }
};
} // namespace

TEST_P(RankModes, TwoRanksAreOneWithTwoBatches) {
  RankModesRun run(GetParam());
  bool hasServices = *GetParam().services;
  std::vector<std::vector<uint64_t>> sent(2);
  static const std::vector<float> expected = [] {
    Session alone = makeAlone();
    return train(alone, steps, 0, 2);
  }();
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Messages messages;
    messages.device = rank.device;
    Session session = run.make(rank, &messages);
    rank.device->memory().resetPeak();
    EXPECT_TRUE(train(session, steps, rank.number(), 1) == expected); // a thousand numbers would be told
    sent[size_t(rank.number())] = messages.inBackward;
    EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram), rank.device->memory().budget(Space::DeviceDram));
    if (!hasServices)
      return;
    Json saved = session.services()->activationRecord(), weights = session.services()->weightRecord();
    int64_t moved = 0;
    for (const auto &[record, key] : {std::pair(saved, "activations_spilled"), std::pair(weights, "loads")})
      moved += record.is_object() && record.contains(key) ? record[key].get<int64_t>() : 0;
    EXPECT_GT(moved, 0) << saved.dump() << weights.dump();
  }),
            nothing(2));
  for (const std::vector<uint64_t> &each : sent)
    EXPECT_EQ(each.size(), size_t(steps));
  // All gradients are final before backward ends; those that live on the host are sent behind it.
  if (!hasServices) {
    EXPECT_EQ(sent, std::vector(2, std::vector<uint64_t>(steps, uint64_t(model.layers))));
  }
}

// Of several batches the last one's backward sends the sums, with those of the batches before in them. The bits are
// those of batches that are given one by one, whose sums are sent when all is over.
TEST_P(RankModes, AccumulatedGradientsAreSentInTheLastBackward) {
  auto bitsOf = [](const RankModesRun &of, Given given) {
    std::vector<std::vector<float>> bits(2);
    EXPECT_EQ(of.onRanks([&](Rank &rank) {
      Session session = of.make(rank);
      bits[size_t(rank.number())] = trainParameters(session, 6, 2 * rank.number(), 2, given);
    }),
              nothing(2));
    EXPECT_TRUE(bits[0] == bits[1]);
    return bits[0];
  };
  static const std::vector<float> expected = bitsOf(RankModesRun({"", "cpu:threads=1"}), Given::OneByOne);
  for (Sharding sharding : {Sharding::None, Sharding::Gradients}) {
    SCOPED_TRACE(name(sharding));
    EXPECT_TRUE(bitsOf(RankModesRun(GetParam(), /*batches=*/2, /*spare=*/0, sharding), Given::AtOnce) == expected);
  }
}

// A checkpoint that one rank alone loads, in mid-run: parameters and states are those of rank 0, wherever they are.
TEST_P(RankModes, ACheckpointOfOneRankAloneIsThatOfRank0OrNone) {
  RankModesRun run(GetParam(), /*batches=*/1, /*spare=*/0.3); // so that states stay on the device between steps
  std::string checkpoint = run.folder / "other.safetensors";
  Session other = makeAlone();
  train(other, 3, 17, 1);
  other.save(checkpoint);
  for (int loader : {0, 1}) {
    SCOPED_TRACE(loader);
    Session alone = makeAlone();
    train(alone, 3, 0, 2);
    if (loader == 0)
      alone.load(checkpoint);
    std::vector<float> expected = train(alone, 3, 0, 2);
    EXPECT_EQ(run.onRanks([&](Rank &rank) {
      Session session = run.make(rank);
      train(session, 3, rank.number(), 1);
      if (rank.number() == loader)
        session.load(checkpoint);
      EXPECT_TRUE(train(session, 3, rank.number(), 1) == expected);
    }),
              nothing(2));
  }
}

// Each rank has states of some parameters alone, and maybe their gradients: together they are those of one rank, and no parameter differs. In the least
// memory everything leaves; in much of it, parameters stay on the device from step to step.
TEST_P(RankModes, ShardsOfStatesAreThoseOfOneRank) {
  static std::map<std::string, std::vector<float>> states;
  static const std::vector<float> expected = [] {
    Session alone = makeAlone();
    std::vector<float> bits = trainParameters(alone, steps, 0, 2);
    for (const auto &[key, state] : alone.state())
      states[key] = values(state);
    return bits;
  }();
  for (Sharding sharding : sharded)
    for (double spare : {0.0, 4.0}) {
      SCOPED_TRACE(std::string(name(sharding)) + " " + std::to_string(spare));
      RankModesRun run(GetParam(), 1, spare, sharding);
      std::vector<size_t> counts(2);
      EXPECT_EQ(run.onRanks([&](Rank &rank) {
        Session session = run.make(rank);
        rank.device->memory().resetPeak();
        EXPECT_TRUE(trainParameters(session, steps, rank.number(), 1) == expected);
        EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram), rank.device->memory().budget(Space::DeviceDram));
        for (const auto &[key, state] : session.state())
          EXPECT_TRUE(values(state) == states.at(key)) << key;
        counts[size_t(rank.number())] = session.state().size();
      }),
                nothing(2));
      EXPECT_EQ(counts, std::vector(2, states.size() / 2));
    }
}

// Every optimizer is shared out by the blocks that it updates.
// Parameters lie as their module wants them: those that are not dense rows are sent by way of copies that are.
TEST(RankModes, UpdatesOfParametersInAnyLayoutAreSent) {
  for (const char *layout : {"tile = [16, 16]", "strides = [1, 64]"})
    for (const char *device : {"cpu:threads=1", "sim:streams,pinned=16MiB,threads=1,dram=16MiB,adversarial=8"}) {
      SCOPED_TRACE(std::string(layout) + " on " + device);
      std::string text = model.text();
      const std::string role = "segue.role = #segue.role<parameter>";
      const std::string attribute = std::string(", segue.layout = #segue.layout<") + layout + ">";
      for (size_t at = 0; (at = text.find(role, at)) != text.npos;)
        text.insert(at += role.size(), attribute);
      CompiledModule module(text, {.name = "deep", .training = true, .optimizer = "adamw"});
      ASSERT_TRUE(module.binary) << module.diagnostics;
      auto make = [&](const DeviceRef &on, SessionOptions options) {
        options.seed = 11;
        Session session(on, {{"deep", *module.binary}}, std::move(options));
        setValues(session);
        return session;
      };
      Session alone = make(Device::open("cpu:threads=1"), {});
      EXPECT_FALSE(alone.parameter("w0").desc().isDense());
      std::vector<float> expected = trainParameters(alone, 6, 0, 2);
      EXPECT_EQ(onRanks(2, device,
                        [&](Rank &rank) {
                          for (Sharding sharding : sharded) {
                            Session session = make(rank.device, {.collectives = rank.together, .sharding = sharding});
                            EXPECT_TRUE(trainParameters(session, 6, rank.number(), 1) == expected);
                          }
                        },
                        {.seed = 5}),
                nothing(2));
    }
}

// A plan has gradients that another rank updates by leave, too: of a model that is mostly parameters, a rank with half of the
// states needs no more memory than one with all, but for less than one gradient: plans of other programs fit otherwise.
TEST(RankModes, GradientsOfOtherRanksLeaveByAPlan) {
  DeepModel wide{.layers = 8, .rows = 16, .width = 128};
  Binary file = wide.compiled();
  auto least = [&](Sharding sharding) {
    return leastOfRanks(2, "sim:pinned=16MiB,threads=1,link=8GB/s", [&](Rank &rank) {
      SessionOptions options = optionsOf({"", "", plan});
      options.collectives = rank.together;
      options.sharding = sharding;
      Session session(rank.device, {{"deep", file}}, std::move(options));
      session.allocateParameters();
      session.certify(1);
    });
  };
  uint64_t states = least(Sharding::States);
  EXPECT_LT(states, least(Sharding::None) + 128 * 128 * sizeof(float));
  EXPECT_LT(least(Sharding::Gradients), states + 128 * 128 * sizeof(float));
}

// Where each rank has the sums of some gradients alone, the others go as their messages do: of a model that is mostly
// parameters, a rank holds half of the gradients, and those of a few messages. Its owner alone can be asked for one.
TEST(RankModes, GradientsOfOtherRanksAreGivenUp) {
  DeepModel wide{.layers = 16, .rows = 16, .width = 128};
  Binary file = wide.compiled();
  constexpr uint64_t gradient = 128 * 128 * sizeof(float);
  for (const char *device : {"cpu:threads=1", "sim:streams,pinned=64MiB,threads=1"}) {
    SCOPED_TRACE(device);
    auto peaks = [&](Sharding sharding) {
      std::vector<uint64_t> bytes(2);
      EXPECT_EQ(onRanks(
                    2, device,
                    [&](Rank &rank) {
                      Session session(rank.device, {{"deep", file}}, {.collectives = rank.together, .sharding = sharding});
                      for (const ParameterInfo &info : session.parameters())
                        session.setParameter(info.key, Tensor::zeros(rank.device, info.desc));
                      TensorMap batch{{"x", randomTensor(rank.device, {16, 128}, 3)}};
                      session.step(batch, 1e-3);
                      rank.device->memory().resetPeak();
                      session.step(batch, 1e-3);
                      bytes[size_t(rank.number())] = rank.device->memory().peakBytes(Space::DeviceDram);
                    },
                    {}, {.bucketBytes = gradient}),
                nothing(2));
      return std::ranges::max(bytes);
    };
    uint64_t states = peaks(Sharding::States), gradients = peaks(Sharding::Gradients);
    EXPECT_LT(gradients, states - 6 * gradient);
    EXPECT_GT(gradients, states - 9 * gradient);
  }
}

// A batch alone may not be the last, and so has no gradients yet that anybody could give up.
TEST(RankModes, SharedGradientsAreOfWholeSteps) {
  EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    Session session(rank.device, {{"deep", binary()}}, {.collectives = rank.together, .sharding = Sharding::Gradients});
    setValues(session);
    TensorMap batch{{"x", randomTensor(rank.device, {model.rows, model.width}, uint32_t(rank.number()))}};
    auto [code, what] = errorOf([&] { session.forwardBackward(batch); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument) << what;
    EXPECT_NE(what.find("give all batches to step()"), what.npos) << what;
    session.step(batch, 1e-3);
    auto [noCode, none] = errorOf([&] { session.gradient("w0"); });
    EXPECT_EQ(noCode, ErrorCode::InvalidArgument) << none;
  }),
            nothing(2));
}

// The sum of a gradient can be seen, and changed, where it is.
TEST(RankModes, HooksSeeTheGradientsOfTheirRank) {
  for (Sharding sharding : shardings) {
    SCOPED_TRACE(name(sharding));
    std::atomic<int> seen = 0;
    std::vector<std::vector<float>> bits(2);
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      Session session(rank.device, {{"deep", binary()}}, {.collectives = rank.together, .sharding = sharding});
      setValues(session);
      auto half = [&](Tensor &gradient) {
        ++seen;
        for (float &each : std::span(gradient.data<float>(), size_t(gradient.elementCount())))
          each *= 0.5f;
      };
      TensorMap batch{{"x", randomTensor(rank.device, {model.rows, model.width}, uint32_t(rank.number()))}};
      bits[size_t(rank.number())].push_back(float(session.step(std::span(&batch, 1), 1e-3, std::vector<GradientHook>{{"w2", half}}).gradNorm));
      std::ranges::copy(values(session.parameter("w2")), std::back_inserter(bits[size_t(rank.number())]));
    }),
              nothing(2));
    EXPECT_EQ(seen, sharding == Sharding::Gradients ? 1 : 2);
    EXPECT_TRUE(bits[0] == bits[1]);
  }
}

// One file with the states of all ranks, the same that one rank writes, from which any number of ranks goes on.
TEST_P(RankModes, ACheckpointOfShardsIsThatOfOneRank) {
  RankModesRun run(GetParam(), 1, 0, Sharding::States);
  std::string alone = run.folder / "alone.safetensors", shards = run.folder / "shards.safetensors";
  Session one = makeAlone();
  train(one, 3, 0, 2);
  one.save(alone, "notes");
  std::vector<float> expected = trainParameters(one, 3, 0, 2);
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    train(session, 3, rank.number(), 1);
    session.save(shards, "notes");
    EXPECT_TRUE(trainParameters(session, 3, rank.number(), 1) == expected);
    EXPECT_EQ(session.load(shards), "notes");
    EXPECT_TRUE(trainParameters(session, 3, rank.number(), 1) == expected);
    // Where rank 0 cannot write, all hear of it, and train on.
    std::string where = run.folder / "missing" / "file.safetensors";
    auto [code, what] = errorOf([&] { session.save(where); });
    EXPECT_EQ(code, rank.number() ? ErrorCode::RankFailed : ErrorCode::IoFailed) << what;
    trainParameters(session, 1, rank.number(), 1);
  }),
            nothing(2));
  auto bytesOf = [](const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytesOf(shards) == bytesOf(alone));
  Session again = makeAlone();
  again.load(shards);
  EXPECT_TRUE(trainParameters(again, 3, 0, 2) == expected);
}

TEST(RankModes, StatesOfEveryOptimizerAreSharedOut) {
  for (const char *optimizer :
       {"sgd", "sgd:momentum=0.9", "adamw:amsgrad", "adamw:state-bits=8", "nadam", "radam", "lion", "adagrad",
        "rmsprop:centered,momentum=0.5", "adafactor", "muon:ns-steps=2"}) {
    SCOPED_TRACE(optimizer);
    DeepModel other{.layers = 3, .rows = 16, .width = 64, .optimizer = optimizer};
    Binary file = other.compiled();
    auto course = [&](Session &session, int first, int batches) {
      for (const ParameterInfo &info : session.parameters())
        session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
      std::vector<float> norms;
      for (int step = 0; step < 4; ++step) {
        std::vector<TensorMap> given;
        for (int batch = first; batch < first + batches; ++batch)
          given.push_back({{"x", randomTensor(session.device(), {16, 64}, uint32_t(10 * step + batch))}});
        norms.push_back(float(session.step(given, 1e-2).gradNorm));
      }
      return norms;
    };
    Session alone(Device::open("cpu:threads=1"), {{"deep", file}}, {});
    std::vector<float> norms = course(alone, 0, 2);
    std::vector<std::set<std::string>> keys(2);
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      Session both(rank.device, {{"deep", file}}, {.collectives = rank.together, .sharding = Sharding::Gradients});
      EXPECT_EQ(course(both, rank.number(), 1), norms);
      for (const ParameterInfo &info : both.parameters())
        EXPECT_TRUE(haveEqualValues(both.parameter(info.key), alone.parameter(info.key))) << info.key;
      Session session(rank.device, {{"deep", file}}, {.collectives = rank.together, .sharding = Sharding::States});
      EXPECT_EQ(course(session, rank.number(), 1), norms);
      for (const ParameterInfo &info : session.parameters())
        EXPECT_TRUE(haveEqualValues(session.parameter(info.key), alone.parameter(info.key))) << info.key;
      for (const auto &[key, state] : session.state()) {
        EXPECT_TRUE(haveEqualValues(state, alone.state().find(key)->second)) << key;
        keys[size_t(rank.number())].insert(key);
      }
    }),
              nothing(2));
    // Three parameters for two ranks.
    EXPECT_EQ(keys[0].size() + keys[1].size(), alone.state().size());
    EXPECT_EQ(keys[0].size(), 2 * keys[1].size());
    keys[0].merge(keys[1]);
    EXPECT_EQ(keys[0].size(), alone.state().size());
  }
}

TEST(RankModes, UpdatesInBackwardAreRefusedOnAll) {
  DeepModel inBackward = model;
  inBackward.optimizer = "adamw:in-backward=true";
  Binary file = inBackward.compiled();
  std::vector<std::string> thrown = onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    SessionOptions options;
    options.collectives = rank.together;
    Session(rank.device, {{"deep", file}}, std::move(options));
  });
  EXPECT_EQ(thrown[0], thrown[1]);
  EXPECT_NE(thrown[0].find("compile it without in-backward"), std::string::npos) << thrown[0];
}
