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

#include "RankModes.h"

using namespace segue;
using namespace segue::test;
using namespace segue::test::ranked;

namespace {
struct RankModes : testing::TestWithParam<Way> {};
} // namespace
INSTANTIATE_TEST_SUITE_P(SampleOf3, RankModes, testing::ValuesIn(rankWays), [](const auto &info) { return info.param.name; });

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

// What a plan and messages keep in page-locked memory is known before the first step, and granted: with that, and not a
// byte less, steps are taken. On a device that has no more, what leaves goes elsewhere, and messages have their room.
TEST(RankModes, APlanLeavesPageLockedMemoryToMessages) {
  for (Sharding sharding : ofWholeModels) {
    SCOPED_TRACE(name(sharding));
    RankModesRun run(*std::ranges::find(rankWays, std::string_view("Plan"), &Way::name), 1, 0, sharding);
    /// The reason why a rank does not train, and what was page-locked at most, for rank 0.
    struct Found {
      std::string refused;
      uint64_t granted = 0, peak = 0, messages = 0, unlocked = 0;
    };
    auto course = [&](std::optional<double> cap, uint64_t pinned) {
      Found found;
      std::string amount = "pinned=" + std::to_string(pinned);
      std::string device = std::regex_replace(run.device, std::regex("pinned=16MiB"), amount);
      EXPECT_EQ(onRanks(
                    2, device,
                    [&](Rank &rank) {
                      SessionOptions options = optionsOf({"", ""});
                      double dram = double(rank.device->memory().budget(Space::DeviceDram)) / 1048576;
                      Json conductor = {{"enabled", true},
                                        {"telemetry_enabled", false},
                                        {"vram_hard_cap_mb", dram},
                                        {"vram_soft_cap_mb", dram}};
                      Json stagehand = {{"conductor_config", conductor}};
                      stagehand.update(Json::parse(plan));
                      if (cap)
                        stagehand["conductor_config"]["pinned_cap_mb"] = *cap;
                      options.config = Config::parse(Json{{"memory", {{"stagehand", stagehand}}}}.dump(), "test");
                      options.collectives = rank.together;
                      options.sharding = sharding;
                      Session session(rank.device, {{"deep", binary()}}, std::move(options));
                      setValues(session);
                      auto [code, what] = errorOf([&] { trainNorms(session, 1, rank.number(), 1); });
                      if (code == ErrorCode(-1)) { // what came before the first step is no step's
                        rank.device->memory().resetPeak();
                        trainNorms(session, 2, rank.number(), 1);
                      }
                      if (rank.number())
                        return;
                      found.refused = code == ErrorCode(-1) ? "" : what;
                      double granted = session.services()->conductorRecord()["pinned_granted_mb"];
                      found.granted = uint64_t(std::llround(granted * 1048576));
                      found.peak = rank.device->memory().peakBytes(Space::HostPinned);
                      found.messages = rank.together->figures().peakBytes;
                      for (const MemoryHolder &holder : rank.device->memory().holders(Space::Host))
                        if (holder.owner.value == messageOwner)
                          found.unlocked = std::max(found.unlocked, holder.liveBytes + holder.bytesAtPeak);
                    },
                    {}, {.bucketBytes = 20000}),
                nothing(2));
      return found;
    };
    Found free = course(std::nullopt, 16 << 20);
    EXPECT_EQ(free.refused, "");
    EXPECT_GT(free.messages, 0u);
    EXPECT_GE(free.granted, free.peak);
    double exact = double(free.granted) / 1048576;
    EXPECT_EQ(course(exact, 16 << 20).refused, "");
    std::string refused = course(double(free.granted - 1) / 1048576, 16 << 20).refused;
    std::smatch named;
    std::regex sentence("at least the ([0-9.]+) MiB that a plan and messages to ranks (and other services )?keep");
    ASSERT_TRUE(std::regex_search(refused, named, sentence)) << refused;
    EXPECT_EQ(course(std::stod(named[1]), 16 << 20).refused, "");
    for (uint64_t pinned : {free.granted, free.granted / 2}) {
      Found little = course(std::nullopt, pinned);
      EXPECT_EQ(little.refused, "");
      EXPECT_EQ(little.unlocked, 0u) << pinned;
    }
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
    // States, gradients and parameters are halved, and a ring of two blocks is beside them.
    EXPECT_LT(peaks(Sharding::Parameters), peaks(Sharding::None) / 2 + 2 * gradient);
  }
}

// A batch alone may not be the last, and so has no gradients yet that anybody could give up.
TEST(RankModes, SharedGradientsAreOfWholeSteps) {
  for (Sharding sharding : {Sharding::Gradients, Sharding::Parameters})
    EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
      Session session(rank.device, {{"deep", binary()}}, {.collectives = rank.together, .sharding = sharding});
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

/// Returns the norms of so many steps of a small model of 64 columns, with the batches from `first` on.
static std::vector<float> smallNorms(Session &session, int steps, int first, int batches) {
  std::vector<float> norms;
  for (int step = 0; step < steps; ++step) {
    std::vector<TensorMap> given;
    for (int batch = first; batch < first + batches; ++batch)
      given.push_back({{"x", randomTensor(session.device(), {16, 64}, uint32_t(10 * step + batch))}});
    norms.push_back(float(session.step(given, 1e-2).gradNorm));
  }
  return norms;
}

// The squares of one gradient are all there are.
TEST(RankModes, AGradientAloneHasAnOwner) {
  DeepModel small{.layers = 1, .rows = 16, .width = 64};
  Binary file = small.compiled();
  auto course = [&](Session &session, int first, int batches) {
    session.setParameter("w0", randomTensor(session.device(), {64, 64}, 1));
    return smallNorms(session, 3, first, batches);
  };
  Session alone(Device::open("cpu:threads=1"), {{"deep", file}}, {.maxGradNorm = 1e-3});
  std::vector<float> norms = course(alone, 0, 2);
  EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    Session session(rank.device, {{"deep", file}},
                    {.maxGradNorm = 1e-3, .collectives = rank.together, .sharding = Sharding::Gradients});
    EXPECT_EQ(course(session, rank.number(), 1), norms);
    EXPECT_TRUE(haveEqualValues(session.parameter("w0"), alone.parameter("w0")));
  }),
            nothing(2));
}

namespace {
/// Fails in the midst of a backward, once.
struct FailsInBackward final : ForwardEvents {
  /// The ends of blocks of backwards that are left until then.
  int left;
  explicit FailsInBackward(int left) : left(left) {}
  bool isBackward = false;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) { isBackward = begin.phase == Phase::Backward; }
  void on(const event::BlockEnd &) {
    if (isBackward && left-- == 0)
      throw Error(ErrorCode::InvalidArgument, "a test wants no more of this backward");
  }
  void on(const auto &) {}
};
} // namespace

// Gradients that wait for their message when backward fails go with the step: the others hear of it at their next meeting,
// and all take the step again.
TEST(RankModes, AStepThatFailsInBackwardIsTakenAgain) {
  const DeepModel deep{.layers = 16, .rows = 64, .width = 32, .isRandom = true};
  const Binary file = deep.compiled();
  auto course = [&](Session &session, int count, int first, int batches) {
    std::vector<float> bits;
    for (int i = 0; i < count; ++i) {
      std::vector<TensorMap> step;
      for (int batch = first; batch < first + batches; ++batch)
        step.push_back({{"x", randomTensor(session.device(), {64, 32}, uint32_t(10 * session.stepCount() + batch))}});
      StepResult result = session.step(step, 1e-4);
      bits.insert(bits.end(), {float(result.loss), float(result.gradNorm)});
    }
    return bits;
  };
  auto make = [&](const DeviceRef &device, const char *services, SessionOptions more) {
    SessionOptions options = optionsOf({"", "", services});
    options.collectives = more.collectives;
    options.sharding = more.sharding;
    options.events = more.events;
    options.warn = [](const std::string &text) { // the step that is taken again may leave the addresses of its plan
      EXPECT_NE(text.find(" departed from the addresses of its plan"), text.npos) << text;
    };
    Session session(device, {{"deep", file}}, std::move(options));
    for (const ParameterInfo &info : session.parameters()) {
      Tensor value = randomTensor(device, info.desc.shape, uint32_t(info.key.back()));
      for (float &each : std::span(value.data<float>(), value.elementCount()))
        each *= 0.2f;
      session.setParameter(info.key, value);
    }
    return session;
  };
  Session alone = make(Device::open("cpu:threads=1"), "", {});
  const std::vector<float> expected = course(alone, 3, 0, 2);
  for (auto [device, services] : {std::pair("cpu:threads=1", ""), {"sim:pinned=16MiB,threads=1,link=8GB/s,dram=4MiB", ""},
                                  {"sim:pinned=16MiB,threads=1,link=8GB/s,dram=500000", plan}})
    for (Sharding sharding : {Sharding::None, Sharding::Gradients, Sharding::Parameters})
      for (int blocks : {1, 9, 15}) { // of the second step: some messages have gone, and some gradients wait
        SCOPED_TRACE(std::string(device) + ", " + std::string(name(sharding)) + ", " + std::to_string(blocks));
        EXPECT_EQ(onRanks(
                      2, device,
                      [&](Rank &rank) {
                        FailsInBackward fails(INT_MAX);
                        Session session = make(rank.device, services,
                                               {.collectives = rank.together, .sharding = sharding, .events = &fails});
                        std::vector<float> bits = course(session, 1, rank.number(), 1);
                        if (rank.number() == 1)
                          fails.left = blocks;
                        auto [code, what] = errorOf([&] { course(session, 1, rank.number(), 1); });
                        EXPECT_EQ(code, rank.number() ? ErrorCode::InvalidArgument : ErrorCode::RankFailed) << what;
                        EXPECT_NE(what.find("a test wants no more of this backward"), what.npos) << what;
                        fails.left = INT_MAX;
                        std::ranges::copy(course(session, 2, rank.number(), 1), std::back_inserter(bits));
                        EXPECT_TRUE(bits == expected);
                      },
                      {.timeoutSeconds = 5}, {.bucketBytes = 10000}),
                  nothing(2));
      }
}

// The sum of a gradient can be seen, and changed, where it is.
TEST(RankModes, HooksSeeTheGradientsOfTheirRank) {
  for (Sharding sharding : ofWholeModels) {
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
    EXPECT_EQ(seen, sharding >= Sharding::Gradients ? 1 : 2);
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
      return smallNorms(session, 4, first, batches);
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

/// Fails in the first block of an optimizer.
namespace {
struct FailsInOptimizer final : ForwardEvents {
  bool isOn = false;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::BlockBegin &begin) {
    if (isOn && begin.program.name() == "optimizer")
      throw Error(ErrorCode::TransferFailed, "a test wants no update");
  }
  void on(const auto &) {}
};
} // namespace

// When all have agreed to update, no rank can take that back: one whose update fails ends the others, which would wait for
// its parameters, or go on with others than it has, though its program goes on.
TEST(RankModes, ARankWhoseUpdateFailsEndsTheOthers) {
  for (Sharding sharding : ofWholeModels)
    for (int bad : {0, 1}) {
      SCOPED_TRACE(std::string(name(sharding)) + ", rank " + std::to_string(bad));
      std::atomic<bool> hasEnded = false;
      std::vector<std::string> thrown = onRanks(2, "cpu:threads=1", [&](Rank &rank) {
        FailsInOptimizer fails;
        SessionOptions options = optionsOf({"", ""});
        options.events = &fails;
        options.collectives = rank.together;
        options.sharding = sharding;
        Session session(rank.device, {{"deep", binary()}}, std::move(options));
        setValues(session);
        trainNorms(session, 2, rank.number(), 1);
        fails.isOn = rank.number() == bad;
        auto [code, what] = errorOf([&] { trainNorms(session, 4, rank.number(), 1); });
        EXPECT_EQ(code, rank.number() == bad ? ErrorCode::StateTorn : ErrorCode::RankFailed) << what;
        EXPECT_NE(what.find("a test wants no update"), what.npos) << what;
        EXPECT_NE(what.find("load the last checkpoint"), what.npos) << what;
        if (rank.number() != bad) {
          EXPECT_NE(what.find("rank " + std::to_string(bad)), what.npos) << what;
          hasEnded = true;
        }
        for (int i = 0; i < 2000 && !hasEnded; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_TRUE(hasEnded) << "the other one waits until this one's program ends";
      });
      EXPECT_EQ(thrown, nothing(2));
    }
}

/// Fails in the third block of a forward.
namespace {
struct FailsInForward final : ForwardEvents {
  int blocksLeft = -1;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::BlockBegin &begin) {
    if (blocksLeft > 0 && begin.program.name().starts_with("forward") && !--blocksLeft)
      throw Error(ErrorCode::TransferFailed, "a test wants no more blocks");
  }
  void on(const auto &) {}
};
} // namespace

// Where forward makes the updates of the step before, one that fails midway leaves parameters between two steps: the
// others hear that, and not that they are those of a step.
TEST(RankModes, AForwardThatFailsAmidUpdatesEndsTheOthers) {
  DeepModel inForward = model;
  inForward.optimizer = "adamw:in-forward=true";
  Binary file = inForward.compiled();
  for (int bad : {0, 1}) {
    SCOPED_TRACE(bad);
    EXPECT_EQ(onRanks(2, "cpu:threads=1",
                      [&](Rank &rank) {
                        FailsInForward fails;
                        SessionOptions options = optionsOf({"", ""});
                        options.events = &fails;
                        options.collectives = rank.together;
                        Session session(rank.device, {{"deep", file}}, std::move(options));
                        setValues(session);
                        trainNorms(session, 2, rank.number(), 1);
                        if (rank.number() == bad)
                          fails.blocksLeft = 3;
                        auto [code, what] = errorOf([&] { trainNorms(session, 1, rank.number(), 1); });
                        EXPECT_EQ(code, rank.number() == bad ? ErrorCode::StateTorn : ErrorCode::RankFailed) << what;
                        EXPECT_NE(what.find("step 2 was torn: forward, which updates parameters"), what.npos) << what;
                        EXPECT_NE(what.find("load the last checkpoint"), what.npos) << what;
                        EXPECT_EQ(what.find("are those of step"), what.npos) << what;
                      }),
              nothing(2));
  }
}
