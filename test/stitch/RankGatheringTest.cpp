//===- RankGatheringTest.cpp - parameters that one rank has each ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Parameters of blocks that live on the rank that updates them, and come to the others in
// Weight Stagehand's ring: to the bits of one rank with the batches of all.
//
//===----------------------------------------------------------------------===//

#include "RankModes.h"

using namespace segue;
using namespace segue::test;
using namespace segue::test::ranked;

namespace {
struct RankGathering : testing::TestWithParam<Way> {};
} // namespace
INSTANTIATE_TEST_SUITE_P(SampleOf3, RankGathering, testing::ValuesIn(rankWays), [](const auto &info) { return info.param.name; });

// Each rank has the parameters that it updates, and gathers the others with their block.
TEST_P(RankGathering, GatheredParametersAreThoseOfOneRank) {
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
    // All gradients, whatever services do, and all blocks but the two that forward has left in the ring.
    EXPECT_EQ(sent[0], std::vector<uint64_t>(steps, uint64_t(2 * model.layers - 2)));
    EXPECT_EQ(owned, std::vector(2, parameters.size() / 2));
    EXPECT_EQ(counts, std::vector(2, states.size() / 2));
  }
}

static RankModesRun gathering(const Way &way, size_t batches = 1, double spare = 0) {
  return RankModesRun(way, batches, spare, Sharding::Parameters);
}

/// Returns a session of a rank whose services are of this section.
static Session gatheringSession(const Rank &rank, const std::string &services) {
  SessionOptions options = optionsOf({"", "", services.c_str()});
  options.collectives = rank.together;
  options.sharding = Sharding::Parameters;
  Session session(rank.device, {{"deep", binary()}}, std::move(options));
  setValues(session);
  return session;
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

TEST_P(RankGathering, SumsOfSeveralBatchesGatherForEach) {
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
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    rank.device->memory().resetPeak();
    EXPECT_TRUE(trainNorms(session, 6, 2 * rank.number(), 2) == expected);
    EXPECT_LE(rank.device->memory().peakBytes(Space::DeviceDram), rank.device->memory().budget(Space::DeviceDram));
  }),
            nothing(2));
}

// Between steps a rank has its own parameters and a ring of two blocks, wherever homes are.
TEST_P(RankGathering, ARankHasTheParametersThatItUpdatesAndARing) {
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

namespace {
/// Fails at the end of a block, once.
struct FailsInBlock final : ForwardEvents {
  /// The ends of blocks that are left until then.
  int left = INT_MAX;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::BlockEnd &) {
    if (left-- == 0)
      throw Error(ErrorCode::InvalidArgument, "a test wants no more of this step");
  }
  void on(const auto &) {}
};
} // namespace

/// The model with one matrix in its first and last layer: no single block has it.
static const Binary &tiedBinary() {
  static const Binary file = [] {
    std::string text = model.text(), last = std::to_string(model.layers - 1);
    auto replace = [&](const std::string &from, const std::string &to) {
      size_t at = text.find(from);
      EXPECT_NE(at, text.npos) << from;
      text.replace(at, from.size(), to);
    };
    replace(",\n  %w" + last + ": tensor<64x64xf32> {segue.name = \"w" + last +
                "\", segue.role = #segue.role<parameter>}",
            "");
    replace("%h" + last + ", %w" + last + " batch", "%h" + last + ", %w0 batch");
    CompiledModule module(text, {.name = "deep", .training = true, .optimizer = "adamw", .v4 = false});
    if (!module.binary)
      throw std::runtime_error(module.diagnostics);
    return *module.binary;
  }();
  return file;
}

// A parameter of several blocks lives on one rank, too, with the bits of one rank: it comes for each forward, is there until
// backward has read it, and then is gone. Evaluations and checkpoints know of it.
TEST_P(RankGathering, AMatrixOfSeveralBlocksLivesOnOneRank) {
  constexpr int count = 8;
  auto evaluated = [](Session &session) {
    return session.evaluate({{"x", randomTensor(session.device(), {model.rows, model.width}, 77)}}).at("loss").item();
  };
  TemporaryFolder folder;
  std::string shared = folder / "shared.safetensors", alone = folder / "alone.safetensors";
  Session one(Device::open("cpu:threads=1"), {{"deep", tiedBinary()}}, optionsOf({"", ""}));
  setValues(one);
  std::vector<float> expected = trainNorms(one, count, 0, 2);
  double loss = evaluated(one);
  one.save(alone);
  RankModesRun run(GetParam(), 1, /*spare=*/0, Sharding::Parameters, tiedBinary());
  std::vector<size_t> owned(2);
  std::vector<uint64_t> atRest(2);
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    DeviceMemory &memory = rank.device->memory();
    Session session = run.make(rank);
    memory.resetPeak();
    EXPECT_TRUE(trainNorms(session, count, rank.number(), 1) == expected);
    EXPECT_LE(memory.peakBytes(Space::DeviceDram), memory.budget(Space::DeviceDram));
    double own = evaluated(session);
    EXPECT_EQ(own == loss, rank.number() == 0) << "each has random numbers of its own";
    session.save(shared);
    owned[size_t(rank.number())] = session.parameters().size() - session.parametersElsewhere().size();
    rank.device->drain();
    memory.resetPeak(); // that of now
    for (const SpaceInfo &info : rank.device->spaces())
      for (const MemoryHolder &holder : memory.holders(info.space))
        if (holder.owner.role == "parameter" && holder.owner.value != "(weights)")
          atRest[size_t(rank.number())] += holder.bytesAtPeak;
  }),
            nothing(2));
  EXPECT_EQ(bytesOf(shared), bytesOf(alone));
  EXPECT_EQ(owned[0] + owned[1], size_t(model.layers - 1));
  for (size_t rank : {0, 1})
    EXPECT_EQ(atRest[rank], owned[rank] * uint64_t(model.width * model.width) * sizeof(float)) << rank;
}

// A rank that fails before another batch has asked for it sends it all the same.
TEST_P(RankGathering, AStepThatFailsSendsWhatComesWithNoBlock) {
  RankModesRun run(GetParam(), 2, /*spare=*/0.3, Sharding::Parameters, tiedBinary());
  for (int block : {2, 2 * int(model.layers) + 1}) { // in the first and in the second batch
    std::vector<std::vector<float>> bits(2);
    EXPECT_EQ(run.onRanks([&](Rank &rank) {
      FailsInBlock fails;
      Session session = run.make(rank, &fails, [](const std::string &) {});
      trainNorms(session, 2, 2 * rank.number(), 2);
      if (rank.number() == 1)
        fails.left = block;
      auto [code, what] = errorOf([&] { trainNorms(session, 1, 2 * rank.number(), 2); });
      EXPECT_EQ(code, rank.number() ? ErrorCode::InvalidArgument : ErrorCode::RankFailed) << what;
      EXPECT_NE(what.find("a test wants no more of this step"), what.npos) << what;
      fails.left = INT_MAX;
      bits[size_t(rank.number())] = trainNorms(session, 1, 2 * rank.number(), 2);
    }),
              nothing(2));
    EXPECT_TRUE(bits[0] == bits[1]);
  }
}

// One file, the same that one rank writes, from which any number of ranks goes on, each with what is its own.
TEST_P(RankGathering, ACheckpointOfGatheredParametersIsThatOfOneRank) {
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
  EXPECT_TRUE(bytesOf(shared) == bytesOf(alone));
}

TEST(RankGathering, AnyNumberOfRanksGoesOnFromACheckpointOfGatheredParameters) {
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

TEST_P(RankGathering, EvaluationsGatherTogether) {
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

// All parameters come to all ranks, which call together; one that does something else, or has none, is told by name.
TEST_P(RankGathering, ParametersComeToWhoeverAsksWithAll) {
  Session one = trainedAlone(2, 2);
  std::map<std::string, std::vector<float>> expected;
  one.gatherParameters([&](const ParameterInfo &info, const Tensor &value) { expected[info.key] = values(value); });
  ASSERT_EQ(expected.size(), size_t(model.layers));
  EXPECT_EQ(expected.at("w3"), values(one.parameter("w3")));
  RankModesRun run = gathering(GetParam());
  EXPECT_EQ(run.onRanks([&](Rank &rank) {
    Session session = run.make(rank);
    trainNorms(session, 2, rank.number(), 1);
    std::map<std::string, std::vector<float>> found;
    std::vector<Tensor> kept;
    session.gatherParameters([&](const ParameterInfo &info, const Tensor &value) {
      found[info.key] = values(value);
      kept.push_back(value);
    });
    EXPECT_TRUE(found == expected);
    EXPECT_EQ(session.parametersElsewhere().size(), size_t(model.layers) / 2);
    for (const std::string &key : session.parametersElsewhere()) // what was kept is nobody else's
      EXPECT_EQ(errorOf([&] { session.parameter(key); }).first, ErrorCode::InvalidArgument);
    trainNorms(session, 1, rank.number(), 1);
    for (size_t slot = 0; slot < kept.size(); ++slot)
      if (const std::string &key = session.parameters()[slot].key;
          std::ranges::count(session.parametersElsewhere(), key)) {
        EXPECT_TRUE(values(kept[slot]) == expected.at(key));
      }
    auto [code, what] = errorOf([&] {
      session.gatherParameters([&](const ParameterInfo &info, const Tensor &) {
        if (rank.number() == 1 && info.key == "w2")
          throw Error(ErrorCode::InvalidArgument, "a test wants no more of them");
      });
    });
    EXPECT_EQ(code, rank.number() ? ErrorCode::InvalidArgument : ErrorCode::RankFailed) << what;
    EXPECT_NE(what.find("a test wants no more of them"), what.npos) << what;
  }),
            nothing(2));
}

TEST(RankGathering, ParametersOfARankThatHasNoneAreNotWaitedFor) {
  EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    SessionOptions options = optionsOf({"", ""});
    options.collectives = rank.together;
    options.sharding = Sharding::Parameters;
    Session session(rank.device, {{"deep", binary()}}, std::move(options));
    if (rank.number() == 1)
      setValues(session);
    auto [code, what] = errorOf([&] { session.gatherParameters([](const ParameterInfo &, const Tensor &) {}); });
    EXPECT_EQ(code, rank.number() ? ErrorCode::RankFailed : ErrorCode::MissingWeight) << what;
    if (rank.number() == 0)
      setValues(session);
    size_t count = 0;
    session.gatherParameters([&](const ParameterInfo &, const Tensor &) { ++count; });
    EXPECT_EQ(count, size_t(model.layers));
  }),
            nothing(2));
}

// What fails on one rank before blocks are gathered, or is no number, fails on all, and the next step may be taken.
TEST_P(RankGathering, ARankThatCannotTakeAStepGathersForTheOthers) {
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
TEST(RankGathering, RanksOfDifferentBudgetsGatherInOneOrder) {
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
                      Session session = gatheringSession(rank, services);
                      trainNorms(session, 8, rank.number(), 1);
                      expectParametersOf(one, session);
                    },
                    {.seed = 2}),
                nothing(2));
    }
}

// A rank that fails in the midst of a step gathers the rest for the others, in the order of a step before, and all take
// it again; in the first step, whose order is not known, it ends the group. No parameter has changed in either.
TEST_P(RankGathering, AStepThatFailsWhileBlocksAreGatheredIsTakenAgain) {
  std::vector<Session> after;
  for (int count = 0; count < 4; ++count)
    after.push_back(trainedAlone(count, 2));
  for (int batches : {1, 2}) {
    RankModesRun run = gathering(GetParam(), size_t(batches), /*spare=*/0.3);
    int ends = 2 * model.layers * batches;
    for (int failing : {0, 2})
      for (int block = 0; block < ends; block += failing ? 3 : 7) {
        SCOPED_TRACE(std::to_string(batches) + " batches, step " + std::to_string(failing) + ", block " +
                     std::to_string(block));
        std::vector<std::vector<float>> bits(2);
        EXPECT_EQ(run.onRanks([&](Rank &rank) {
          FailsInBlock fails;
          Session session = run.make(rank, &fails, [&](const std::string &text) {
            // The step that is taken again may leave the addresses of its plan.
            EXPECT_TRUE(!failing || text.find(" departed from the addresses of its plan") != text.npos) << text;
          });
          trainNorms(session, failing, batches * rank.number(), batches);
          if (rank.number() == 1)
            fails.left = block;
          auto [code, what] = errorOf([&] { trainNorms(session, 1, batches * rank.number(), batches); });
          EXPECT_EQ(code, rank.number() ? ErrorCode::InvalidArgument : ErrorCode::RankFailed) << what;
          EXPECT_NE(what.find("a test wants no more of this step"), what.npos) << what;
          fails.left = INT_MAX;
          EXPECT_EQ(session.stepCount(), failing);
          if (batches == 1) {
            expectParametersOf(after[size_t(failing)], session);
          }
          if (!failing)
            return;
          bits[size_t(rank.number())] = trainNorms(session, 1, batches * rank.number(), batches);
          if (batches == 1) {
            expectParametersOf(after[size_t(failing + 1)], session);
          }
        }),
                  nothing(2));
        EXPECT_TRUE(bits[0] == bits[1]);
      }
  }
}

// A rank that is gone at any of its calls ends the others, whose parameters are those of a whole step.
TEST(RankGathering, ARankThatIsGoneWhileAllGatherEndsTheOthers) {
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

TEST(RankGathering, WhatCannotBeGatheredIsRefused) {
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
TEST(RankGathering, ValuesOfGatheredParametersComeToAllRanks) {
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
TEST(RankGathering, AnUpdateThatIsTornIsNotGathered) {
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

// A ring may bring no block ahead, or all, and as many loads at once as a config says; also where a rank stops behind the
// first backward, as its loss is none, and others go on to their meeting.
TEST(RankGathering, RingsOfAnyLengthGatherTheSame) {
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
                        Session session = gatheringSession(rank, ring);
                        Tensor x = Tensor::onHost(rank.device, {model.rows, model.width}, ElementType::f32);
                        std::fill_n(x.data<float>(), x.elementCount(),
                                    rank.number() ? std::numeric_limits<float>::quiet_NaN() : 0.5f);
                        auto [code, what] = errorOf([&] { session.step({{"x", x}}, 1e-2); });
                        EXPECT_EQ(code, rank.number() ? ErrorCode::NanLoss : ErrorCode::RankFailed) << what;
                        trainNorms(session, 6, rank.number(), 1);
                        expectParametersOf(one, session);
                      },
                      {.seed = uint64_t(window)}),
                  nothing(2));
      }
}

// Two to four ranks with services, memories and orders of copies of their own, and rings as a config says: one order of
// messages, and the bits of one rank.
TEST(RankGathering, RandomRunsThatGather) {
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
                    Session session = gatheringSession(rank, services[number]);
                    EXPECT_TRUE(trainNorms(session, 3, batches * rank.number(), batches) == bits);
                  },
                  {.seed = uint64_t(run)}),
              nothing(ranks));
  }
}

// A parameter whose update has failed in its queue comes to nobody: the others hear whose it is and what to do.
TEST(RankGathering, AnUpdateThatFailsLateEndsTheOthers) {
  for (const char *device : {"cpu:threads=1", "sim:streams,pinned=16MiB,threads=1,dram=16MiB,adversarial=3"})
    for (int bad : {0, 1}) {
      SCOPED_TRACE(std::string(device) + ", rank " + std::to_string(bad));
      EXPECT_EQ(onRanks(2, device,
                        [&](Rank &rank) {
                          Session session = gatheringSession(rank, "");
                          trainNorms(session, 2, rank.number(), 1);
                          Tensor own;
                          for (const ParameterInfo &info : session.parameters())
                            if (std::ranges::count(session.parametersElsewhere(), info.key) == 0)
                              own = session.parameter(info.key);
                          if (rank.number() == bad) // as work that is queued says it
                            own.storage()->outcome()->fail(Error(ErrorCode::TransferFailed, "a test wants no update"));
                          auto [code, what] = errorOf([&] { trainNorms(session, 1, rank.number(), 1); });
                          EXPECT_EQ(code, rank.number() == bad ? ErrorCode::StateTorn : ErrorCode::RankFailed) << what;
                          EXPECT_NE(what.find("step 2 was torn: its optimizer failed midway"), what.npos) << what;
                          EXPECT_NE(what.find("load the last checkpoint"), what.npos) << what;
                          EXPECT_EQ(what.find("are those of step"), what.npos) << what;
                          EXPECT_TRUE(rank.number() == bad || what.find("rank " + std::to_string(bad)) != what.npos) << what;
                        },
                        {.timeoutSeconds = 10}),
                nothing(2));
    }
}
