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
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
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

/// Returns losses and norms of so many steps.
static std::vector<float> trainNorms(Session &session, int count, int first, int batches, Given given = Given::AtOnce) {
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
  return bits;
}

/// Returns these, and the parameters after the last.
static std::vector<float> trainParameters(Session &session, int count, int first, int batches,
                                          Given given = Given::AtOnce) {
  std::vector<float> bits = trainNorms(session, count, first, batches, given);
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
  options.warn = [](const std::string &text) {
    if (text.find(" NaN and ") == text.npos) // of a batch that has them
      ADD_FAILURE() << text;
  };
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
      std::vector<float> norms(expected.begin(), expected.begin() + 12);
      EXPECT_EQ(onRanks(2, device,
                        [&](Rank &rank) {
                          for (Sharding sharding : sharded) {
                            Session session = make(rank.device, {.collectives = rank.together, .sharding = sharding});
                            EXPECT_TRUE(trainParameters(session, 6, rank.number(), 1) == expected);
                          }
                          Session gathers =
                              make(rank.device, {.collectives = rank.together, .sharding = Sharding::Parameters});
                          EXPECT_TRUE(trainNorms(gathers, 6, rank.number(), 1) == norms);
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
      if (sharding != Sharding::Parameters) // which one rank alone can read
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
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      Session session(rank.device, {{"deep", file}}, {.collectives = rank.together, .sharding = Sharding::Parameters});
      EXPECT_EQ(course(session, rank.number(), 1), norms);
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

// Each rank has the parameters that it updates, and gathers the others with their block.
TEST_P(RankModes, GatheredParametersAreThoseOfOneRank) {
  static std::map<std::string, std::vector<float>> parameters, states;
  static const std::vector<float> expected = [] {
    Session alone = makeAlone();
    std::vector<float> bits = trainParameters(alone, steps, 0, 2);
    for (const ParameterInfo &info : alone.parameters())
      parameters[info.key] = values(alone.parameter(info.key));
    for (const auto &[key, state] : alone.state())
      states[key] = values(state);
    bits.resize(2 * steps);
    return bits;
  }();
  for (double spare : {0.0, 4.0}) {
    SCOPED_TRACE(spare);
    RankModesRun run(GetParam(), 1, spare, Sharding::Parameters);
    std::vector<size_t> owned(2), counts(2);
    std::vector<std::vector<uint64_t>> sent(2);
    EXPECT_EQ(run.onRanks([&](Rank &rank) {
      Messages messages;
      messages.device = rank.device;
      Session session = run.make(rank, &messages);
      rank.device->memory().resetPeak();
      EXPECT_TRUE(trainNorms(session, steps, rank.number(), 1) == expected);
      EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram), rank.device->memory().budget(Space::DeviceDram));
      for (const ParameterInfo &info : session.parameters()) {
        try {
          EXPECT_TRUE(values(session.parameter(info.key)) == parameters.at(info.key)) << info.key;
          ++owned[size_t(rank.number())];
        } catch (const Error &error) {
          std::string what = error.what();
          EXPECT_NE(what.find("lives on rank " + std::to_string(1 - rank.number()) + " alone"), what.npos) << what;
        }
      }
      for (const auto &[key, state] : session.state())
        EXPECT_TRUE(values(state) == states.at(key)) << key;
      counts[size_t(rank.number())] = session.state().size();
      sent[size_t(rank.number())] = messages.inBackward;
    }),
              nothing(2));
    EXPECT_EQ(sent[0], sent[1]);
    // All gradients, and all blocks but the two that forward has left in the ring.
    if (!*GetParam().services) {
      EXPECT_EQ(sent[0], std::vector<uint64_t>(steps, uint64_t(2 * model.layers - 2)));
    }
    EXPECT_EQ(owned, std::vector(2, parameters.size() / 2));
    EXPECT_EQ(counts, std::vector(2, states.size() / 2));
  }
}

static RankModesRun gathering(const Way &way, size_t batches = 1, double spare = 0) {
  return RankModesRun(way, batches, spare, Sharding::Parameters);
}

/// Returns a session of one rank that has taken so many steps of the batches of all.
static Session trainedAlone(int count, int batches) {
  Session session = makeAlone();
  trainNorms(session, count, 0, batches);
  return session;
}

/// Fails where a parameter that this rank has is not that of `other`. Returns how many it has.
static size_t expectParametersOf(const Session &other, const Session &session) {
  size_t owned = 0;
  for (const ParameterInfo &info : session.parameters())
    try {
      EXPECT_TRUE(values(session.parameter(info.key)) == values(other.parameter(info.key))) << info.key;
      ++owned;
    } catch (const Error &error) {
      if (error.code() == ErrorCode::StateTorn)
        throw;
      EXPECT_NE(std::string(error.what()).find(" alone and comes with its block (zero3)"), std::string::npos)
          << error.what();
    }
  return owned;
}

TEST_P(RankModes, SumsOfSeveralBatchesGatherForEach) {
  static const std::vector<float> expected = [] {
    std::vector<float> bits;
    RankModesRun plain({"", "cpu:threads=1"});
    plain.onRanks([&](Rank &rank) {
      Session session = plain.make(rank);
      std::vector<float> own = trainNorms(session, 6, 2 * rank.number(), 2);
      if (rank.number() == 0)
        bits = own;
    });
    return bits;
  }();
  RankModesRun run = gathering(GetParam(), /*batches=*/2);
  for (Given given : {Given::AtOnce, Given::OneByOne}) {
    if (given == Given::OneByOne && *GetParam().services)
      continue; // a plan or the least memory is that of batches that are known
    EXPECT_EQ(run.onRanks([&](Rank &rank) {
      Session session = run.make(rank);
      EXPECT_TRUE(trainNorms(session, 6, 2 * rank.number(), 2, given) == expected);
    }),
              nothing(2));
  }
}

// Between steps a rank has its own parameters and a ring of two blocks, wherever homes are.
TEST_P(RankModes, ARankHasTheParametersThatItUpdatesAndARing) {
  uint64_t one = uint64_t(model.width * model.width) * sizeof(float), all = uint64_t(model.layers) * one;
  auto bytesOf = [&](Sharding sharding) {
    RankModesRun run(GetParam(), 1, /*spare=*/4, sharding);
    std::vector<std::pair<uint64_t, uint64_t>> bytes(2);
    EXPECT_EQ(run.onRanks([&](Rank &rank) {
      Session session = run.make(rank);
      trainNorms(session, 2, rank.number(), 1);
      rank.device->memory().resetPeak(); // that of now
      auto &[homes, slots] = bytes[size_t(rank.number())];
      for (const SpaceInfo &info : rank.device->spaces())
        for (const MemoryHolder &holder : rank.device->memory().holders(info.space))
          if (holder.owner.role == "parameter")
            (holder.owner.value == "(weights)" ? slots : homes) += holder.bytesAtPeak;
    }),
              nothing(2));
    EXPECT_EQ(bytes[0], bytes[1]);
    return bytes[0];
  };
  EXPECT_EQ(bytesOf(Sharding::Parameters), std::pair(all / 2, 2 * one));
  EXPECT_GE(bytesOf(Sharding::States).first, all);
}

// One file, the same that one rank writes, from which any number of ranks goes on, each with what is its own.
TEST_P(RankModes, ACheckpointOfGatheredParametersIsThatOfOneRank) {
  TemporaryFolder folder;
  std::string alone = folder / "alone.safetensors", shared = folder / "shared.safetensors";
  Session one = trainedAlone(3, 2);
  one.save(alone, "notes");
  trainNorms(one, 2, 0, 2);
  RankModesRun run = gathering(GetParam());
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    trainNorms(session, 3, rank.number(), 1);
    session.save(shared, "notes");
    trainNorms(session, 2, rank.number(), 1);
    expectParametersOf(one, session);
    EXPECT_EQ(session.load(shared), "notes");
    trainNorms(session, 2, rank.number(), 1);
    EXPECT_EQ(expectParametersOf(one, session), size_t(model.layers) / 2);
    auto [code, what] = errorOf([&] { session.save(folder / "missing" / "file.safetensors"); });
    EXPECT_EQ(code, rank.number() ? ErrorCode::RankFailed : ErrorCode::IoFailed) << what;
    trainNorms(session, 1, rank.number(), 1);
  }),
            nothing(2));
  auto bytesOf = [](const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytesOf(shared) == bytesOf(alone));
}

TEST(RankModes, AnyNumberOfRanksGoesOnFromACheckpointOfGatheredParameters) {
  TemporaryFolder folder;
  const std::string parts = (folder.path / "all").string() + "/";
  const std::pair<std::string, std::string> places[] = {{folder / "first.safetensors", folder / "next.safetensors"},
                                                        {parts, parts}};
  for (const auto &[path, saved] : places) {
    trainedAlone(2, 2).save(path);
    for (int ranks : {1, 2, 3, 2, 1}) {
      SCOPED_TRACE(path + " of " + std::to_string(ranks));
      Session alone = makeAlone();
      alone.load(path);
      trainNorms(alone, 2, 0, ranks);
      EXPECT_EQ(onRanks(
                    ranks, "sim:pinned=16MiB,threads=1,dram=16MiB",
                    [&](Rank &rank) {
                      SessionOptions options = optionsOf({"", ""});
                      options.collectives = rank.together;
                      options.sharding = Sharding::Parameters;
                      Session session(rank.device, {{"deep", binary()}}, std::move(options));
                      session.load(path);
                      trainNorms(session, 2, rank.number(), 1);
                      session.save(saved);
                    },
                    {.seed = 3}, {.bucketBytes = 20000, .addsInOrder = true}),
                nothing(ranks));
      Session again = makeAlone();
      again.load(saved);
      EXPECT_EQ(expectParametersOf(alone, again), size_t(model.layers));
      if (saved != path)
        std::filesystem::rename(saved, path);
    }
  }
}

TEST_P(RankModes, EvaluationsGatherTogether) {
  auto lossesOf = [](Session &session, Rank &rank) {
    trainNorms(session, 2, rank.number(), 1);
    std::vector<double> losses;
    for (uint32_t batch = 0; batch < 3; ++batch) {
      Tensor x = randomTensor(rank.device, {model.rows, model.width}, 40 + 3 * uint32_t(rank.number()) + batch);
      losses.push_back(session.evaluate({{"x", x}}).at("loss").item());
    }
    return losses;
  };
  static const std::vector<std::vector<double>> expected = [&] {
    std::vector<std::vector<double>> losses(2);
    RankModesRun plain({"", "cpu:threads=1"});
    plain.onRanks([&](Rank &rank) {
      Session session = plain.make(rank);
      losses[size_t(rank.number())] = lossesOf(session, rank);
    });
    return losses;
  }();
  RankModesRun run = gathering(GetParam());
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    EXPECT_EQ(lossesOf(session, rank), expected[size_t(rank.number())]);
    // A rank that evaluates alone is told so by name.
    auto [code, what] = errorOf([&] {
      if (rank.number() == 0)
        session.evaluate({{"x", randomTensor(rank.device, {model.rows, model.width}, 1)}});
      else
        trainNorms(session, 1, 1, 1);
    });
    EXPECT_EQ(code, ErrorCode::RankFailed);
    EXPECT_NE(what.find("\"a batch is evaluated\""), std::string::npos) << what;
  }),
            nothing(2));
}

// What fails on one rank before blocks are gathered, or is no number, fails on all, and the next step may be taken.
TEST_P(RankModes, ARankThatCannotTakeAStepGathersForTheOthers) {
  RankModesRun run = gathering(GetParam(), /*batches=*/2);
  Session one = trainedAlone(0, 4);
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    auto batch = [&](bool isBad) {
      Tensor x = Tensor::onHost(rank.device, {model.rows, model.width}, ElementType::f32);
      std::fill_n(x.data<float>(), x.elementCount(), isBad ? std::numeric_limits<float>::quiet_NaN() : 0.5f);
      return TensorMap{{"x", x}};
    };
    for (int bad : {0, 1}) { // of rank 1's batches
      std::vector<TensorMap> step{batch(rank.number() == 1 && bad == 0), batch(rank.number() == 1 && bad == 1)};
      auto [code, what] = errorOf([&] { session.step(step, 1e-2); });
      EXPECT_EQ(code, rank.number() ? ErrorCode::NanLoss : ErrorCode::RankFailed) << what;
    }
    std::vector<TensorMap> unequal(rank.number() ? 1 : 2, batch(false));
    auto [code, what] = errorOf([&] { session.step(unequal, 1e-2); });
    EXPECT_EQ(code, ErrorCode::RankFailed);
    EXPECT_NE(what.find("rank 0 has 2 batches, and rank 1 1"), std::string::npos) << what;
    std::vector<TensorMap> wrong(2, batch(false));
    if (rank.number() == 0)
      wrong[0].begin()->second = Tensor::onHost(rank.device, {3, 5}, ElementType::f32);
    std::tie(code, what) = errorOf([&] { session.step(wrong, 1e-2); });
    EXPECT_EQ(code == ErrorCode::RankFailed, rank.number() == 1) << what;
    EXPECT_EQ(expectParametersOf(one, session), size_t(model.layers) / 2);
    trainNorms(session, 2, 2 * rank.number(), 2);
    EXPECT_EQ(session.stepCount(), 2);
  }),
            nothing(2));
}

// Ranks with other budgets and services gather in one order all the same: what each decides of its memory is not asked.
TEST(RankModes, RanksOfDifferentBudgetsGatherInOneOrder) {
  Session one = trainedAlone(8, 2);
  const std::string ringOnly = R"({"telemetry_enabled": false, "prefetch_window_blocks": 2, "max_inflight_transfers": 1,
    "nan_inf_check": false)";
  auto beside = [&](std::string services) { return ringOnly + ", " + services.substr(1); };
  const std::string ways[] = {ringOnly + "}", beside(marks), beside(plan)};
  for (const std::string &first : ways)
    for (const std::string &second : ways) {
      SCOPED_TRACE(first + " and " + second);
      std::vector<std::string> devices(2, "sim:streams,pinned=16MiB,threads=1,adversarial=4,dram=");
      for (size_t rank = 0; rank < 2; ++rank) {
        const std::string &services = rank ? second : first;
        RankModesRun least = gathering({"", "sim:streams,pinned=16MiB,threads=1,adversarial=4", services.c_str()});
        devices[rank] += services == ways[0] ? "16MiB" : least.device.substr(least.device.find("dram=") + 5);
      }
      EXPECT_EQ(onRanks(
                    2, devices[0],
                    [&](Rank &rank) {
                      const std::string &services = rank.number() ? second : first;
                      rank.device = Device::open(devices[size_t(rank.number())]);
                      rank.together = makeCollectives(rank.device, rank.transport, {.bucketBytes = 20000});
                      SessionOptions options = optionsOf({"", "", services.c_str()});
                      options.collectives = rank.together;
                      options.sharding = Sharding::Parameters;
                      Session session(rank.device, {{"deep", binary()}}, std::move(options));
                      setValues(session);
                      trainNorms(session, 8, rank.number(), 1);
                      expectParametersOf(one, session);
                    },
                    {.seed = 2}),
                nothing(2));
    }
}

// A rank that is gone at any of its calls ends the others, whose parameters are those of a whole step.
TEST(RankModes, ARankThatIsGoneWhileAllGatherEndsTheOthers) {
  std::vector<Session> after;
  for (int count = 0; count < 4; ++count)
    after.push_back(trainedAlone(count, 2));
  std::mutex mutex;
  size_t whole = 0;
  for (const char *device : {"cpu:threads=1,dram=16MiB", "sim:streams,pinned=16MiB,threads=1,dram=16MiB"})
    for (bool vanishes : {false, true})
      for (uint64_t call = 0; call < 120; call += vanishes ? 17 : 3) {
        int gone = int(call / 3 % 2);
        EXPECT_EQ(onRanks(
                      2, device,
                      [&](Rank &rank) {
                        SessionOptions options = optionsOf({"", ""});
                        options.collectives = rank.together;
                        options.sharding = Sharding::Parameters;
                        Session session(rank.device, {{"deep", binary()}}, std::move(options));
                        setValues(session);
                        auto [code, what] = errorOf([&] { trainNorms(session, 3, rank.number(), 1); });
                        bool isWell = code == ErrorCode(-1); // the fault comes later
                        EXPECT_TRUE(code == ErrorCode::RankFailed || isWell) << what;
                        std::lock_guard lock(mutex);
                        EXPECT_EQ(expectParametersOf(after[size_t(session.stepCount())], session),
                                  size_t(model.layers) / 2);
                        whole += !isWell;
                      },
                      {.timeoutSeconds = 0.5, .fault = InProcessOptions::Fault{gone, call, vanishes}}),
                  nothing(2))
            << device << " " << call;
      }
  EXPECT_GT(whole, 40u);
}

TEST(RankModes, WhatCannotBeGatheredIsRefused) {
  auto thrown = [&](const std::function<void(SessionOptions &, int)> &change, const Binary &file) {
    return onRanks(2, "sim:pinned=16MiB,threads=1,dram=16MiB", [&](Rank &rank) {
      SessionOptions options = optionsOf({"", ""});
      options.collectives = rank.together;
      options.sharding = Sharding::Parameters;
      change(options, rank.number());
      Session session(rank.device, {{"deep", file}}, std::move(options));
      setValues(session);
      trainNorms(session, 1, rank.number(), 1);
    });
  };
  auto expectAll = [](const std::vector<std::string> &texts, std::string_view words) {
    for (const std::string &text : texts)
      EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  auto config = [](const std::string &section) {
    return Config::parse(R"({"memory": {"stagehand": {"telemetry_enabled": false, )" + section + "}}}", "test");
  };
  auto thrownWith = [&](const char *section) {
    return thrown([&](SessionOptions &options, int) { options.config = config(section); }, binary());
  };
  expectAll(thrownWith(R"("stagehand_enabled": false)"), "stagehand_enabled: is false");
  expectAll(thrownWith(R"("policy": "planned")"), "memory.stagehand.policy: \"planned\"");
  expectAll(thrown([&](SessionOptions &options, int rank) {
              options.config = config(R"("prefetch_window_blocks": )" + std::to_string(1 + rank));
            }, binary()),
            "how parameters are gathered");
  std::string text = model.text();
  for (size_t at = 0; (at = text.find("segue.block = \"h.", at)) != text.npos;)
    text.replace(at, text.find('"', at + 17) + 1 - at, "segue.note = \"none\"");
  CompiledModule module(text, {.name = "deep", .training = true, .optimizer = "adamw"});
  ASSERT_TRUE(module.binary) << module.diagnostics;
  expectAll(thrown([](SessionOptions &, int) {}, *module.binary), "no trained parameter comes with one block");
}

// Values that one rank alone was given would be those of another model, which nobody would see.
TEST(RankModes, ValuesOfGatheredParametersComeToAllRanks) {
  TemporaryFolder folder;
  std::string path = folder / "zero.safetensors";
  trainedAlone(0, 2).save(path);
  std::vector<std::string> thrown = onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    SessionOptions options = optionsOf({"", ""});
    options.collectives = rank.together;
    options.sharding = Sharding::Parameters;
    Session session(rank.device, {{"deep", binary()}}, std::move(options));
    setValues(session);
    if (rank.number() == 1)
      session.load(path);
    trainNorms(session, 1, rank.number(), 1);
  });
  for (const std::string &text : thrown)
    EXPECT_NE(text.find("how often parameters were set or loaded differs"), std::string::npos) << text;
}

// A rank that has half an update says so before anybody gathers of it.
TEST(RankModes, AnUpdateThatIsTornIsNotGathered) {
  std::vector<Session> after;
  for (int count = 0; count < 4; ++count)
    after.push_back(trainedAlone(count, 2));
  std::mutex mutex;
  size_t torn = 0;
  for (int copy = 1; copy < 36; copy += 2)
    EXPECT_EQ(onRanks(2, "sim:pinned=16MiB,threads=1,dram=16MiB",
                      [&](Rank &rank) {
                        if (rank.number() == 1) {
                          rank.device = Device::open("sim:pinned=16MiB,threads=1,dram=16MiB,fail-d2h=" +
                                                     std::to_string(copy) + "+");
                          rank.together = makeCollectives(rank.device, rank.transport);
                        }
                        SessionOptions options = optionsOf({"", ""});
                        options.collectives = rank.together;
                        options.sharding = Sharding::Parameters;
                        Session session(rank.device, {{"deep", binary()}}, std::move(options));
                        setValues(session);
                        auto [code, what] = errorOf([&] { trainNorms(session, 3, rank.number(), 1); });
                        std::lock_guard lock(mutex);
                        torn += code == ErrorCode::StateTorn;
                        auto [end, why] =
                            errorOf([&] { expectParametersOf(after[size_t(session.stepCount())], session); });
                        EXPECT_TRUE(end == ErrorCode(-1) || rank.number() == 1) << why;
                        EXPECT_TRUE(code == ErrorCode(-1) || rank.number() == 1 || code == ErrorCode::RankFailed)
                            << copy << ": " << what;
                      },
                      {.timeoutSeconds = 0.5}), // of who is not told, as nobody comes to tell
              nothing(2))
        << copy;
  EXPECT_GT(torn, 0u);
}

// Of none to all blocks ahead, as many loads at once as a config says.
TEST(RankModes, RingsOfAnyLengthGatherTheSame) {
  Session one = trainedAlone(6, 2);
  for (int window : {0, 2, 3, 8})
    for (int inflight : {1, 4})
      for (const char *device :
           {"cpu:threads=1,dram=16MiB", "sim:streams,pinned=16MiB,threads=1,dram=16MiB,adversarial=3"}) {
        SCOPED_TRACE(std::to_string(window) + ", " + std::to_string(inflight) + ", " + device);
        std::string ring = R"({"telemetry_enabled": false, "nan_inf_check": false, "prefetch_window_blocks": )" +
                           std::to_string(window) + R"(, "max_inflight_transfers": )" + std::to_string(inflight) + "}";
        EXPECT_EQ(onRanks(
                      2, device,
                      [&](Rank &rank) {
                        SessionOptions options = optionsOf({"", "", ring.c_str()});
                        options.collectives = rank.together;
                        options.sharding = Sharding::Parameters;
                        Session session(rank.device, {{"deep", binary()}}, std::move(options));
                        setValues(session);
                        trainNorms(session, 6, rank.number(), 1);
                        expectParametersOf(one, session);
                      },
                      {.seed = uint64_t(window)}),
                  nothing(2));
      }
}

// Two to four ranks with services, memories and orders of copies of their own, and rings as a config says: one order of
// messages, and the bits of one rank.
TEST(RankModes, RandomRunsThatGather) {
  std::mt19937 random(7);
  auto pick = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  std::map<std::pair<int, int>, std::vector<float>> expected;
  for (int run = 0; run < 40; ++run) {
    int ranks = pick(2, 4), batches = pick(1, 2), window = pick(0, 4), inflight = pick(1, 3);
    std::vector<float> &bits = expected[{ranks, batches}];
    if (bits.empty()) {
      onRanks(ranks, "cpu:threads=1",
              [&](Rank &rank) {
                SessionOptions options = optionsOf({"", ""});
                options.collectives = rank.together;
                Session session(rank.device, {{"deep", binary()}}, std::move(options));
                setValues(session);
                std::vector<float> own = trainNorms(session, 3, batches * rank.number(), batches);
                if (rank.number() == 0)
                  bits = own;
              });
    }
    std::string ring = R"({"telemetry_enabled": false, "nan_inf_check": false, "prefetch_window_blocks": )" +
                       std::to_string(window) + R"(, "max_inflight_transfers": )" + std::to_string(inflight);
    std::vector<std::string> devices, services;
    std::string told = std::to_string(batches) + " batches, window " + std::to_string(window) + ", " +
                       std::to_string(inflight) + " at once";
    for (int rank = 0; rank < ranks; ++rank) {
      const char *beside[] = {"}", marks, plan};
      int which = pick(0, 2);
      services.push_back(ring + (which ? ", " + std::string(beside[which]).substr(1) : "}"));
      devices.push_back("sim:streams,pinned=16MiB,threads=1,dram=" + std::to_string(pick(1, 8)) +
                        "MiB,adversarial=" + std::to_string(pick(1, 1000)));
      told += "\n" + services.back() + " on " + devices.back();
    }
    SCOPED_TRACE(told);
    EXPECT_EQ(onRanks(
                  ranks, devices[0],
                  [&](Rank &rank) {
                    auto number = size_t(rank.number());
                    rank.device = Device::open(devices[number]);
                    rank.together = makeCollectives(rank.device, rank.transport, {.bucketBytes = 20000});
                    SessionOptions options = optionsOf({"", "", services[number].c_str()});
                    options.collectives = rank.together;
                    options.sharding = Sharding::Parameters;
                    Session session(rank.device, {{"deep", binary()}}, std::move(options));
                    setValues(session);
                    EXPECT_TRUE(trainNorms(session, 3, batches * rank.number(), batches) == bits);
                  },
                  {.seed = uint64_t(run)}),
              nothing(ranks));
  }
}
