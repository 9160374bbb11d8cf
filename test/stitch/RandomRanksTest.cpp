//===- RandomRanksTest.cpp - ranks by chance ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Short runs of two to four ranks whose strategy, devices, services, batches, messages,
// optimizer and delays are drawn, each rank's device and services by itself: every one has
// the bits of one rank that has the batches of all. In some, a rank cannot take a step, or
// its transport fails: they end as docs/guides/ranks.md says.
//
// A failure names its seed: SEGUE_RANK_RUN=17 runs that one alone, SEGUE_RANK_RUNS=5000
// more of them.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "DeepModel.h"
#include "ErrorOf.h"
#include "LeastOfRanks.h"
#include "RandomTensors.h"
#include "segue/runtime/Session/Session.h"
#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <tuple>

using namespace segue;
using namespace segue::test;

static constexpr uint64_t usualRuns = 200;
static constexpr int steps = 4;

static const char *const optimizers[] = {"sgd:momentum=0.9", "adamw:state-bits=8", "adafactor", "muon:ns-steps=1"};
/// Sections memory.stagehand; the first is that of a session without services.
static const char *const services[] = {
    "",
    R"({"activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
        "pinned_pool_classes_mb": [1], "slabs_per_class": 2, "vram_high_watermark_mb": 0.001,
        "vram_low_watermark_mb": 0},
        "state_stagehand": {"mode": "on", "telemetry_enabled": false}})",
    R"({"activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})",
    R"({"telemetry_enabled": false, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5})"};

static int64_t rowsOf(int layers) { return 16 * layers; }

static const Binary &binaryOf(int layers, const std::string &optimizer) {
  static std::map<std::pair<int, std::string>, Binary> compiled;
  auto found = compiled.find({layers, optimizer});
  if (found == compiled.end()) {
    DeepModel model{.layers = layers, .rows = rowsOf(layers), .width = 32, .isRandom = true, .optimizer = optimizer};
    found = compiled.emplace(std::pair(layers, optimizer), model.compiled()).first;
  }
  return found->second;
}

/// Ranks that gather parameters have no mix of devices, nor all parameters: RankGathering.RandomRunsThatGather draws theirs.
static constexpr Sharding drawnShardings[] = {Sharding::None, Sharding::States, Sharding::Gradients};

namespace {
/// A Task is what all ranks of a run have alike, and what its bits depend on.
struct Task {
  int layers = 2;
  std::string optimizer;
  int ranks = 2, batches = 1;
  double maxGradNorm = 0;
  auto operator<=>(const Task &) const = default;
};

/// What one rank has for itself.
struct Place {
  std::string device;
  size_t services = 0;
};

/// What a session has after each step: loss, norm and parameters.
using Course = std::vector<std::vector<float>>;

struct RandomRun {
  Task task;
  Sharding sharding = Sharding::None;
  std::vector<Place> places;
  CollectiveOptions messages;
  InProcessOptions delays;
  bool oneByOne = false;
  /// The rank that gets no batch in a step, and that step.
  std::optional<std::pair<int, int>> hungry;

  std::string text() const {
    std::string text = std::to_string(task.layers) + " layers, " + task.optimizer + ", clip " +
                       std::to_string(task.maxGradNorm) + ", " + std::to_string(task.batches) + " batches" +
                       (oneByOne ? " one by one, " : ", ") + std::string(name(sharding)) + ", messages of " +
                       std::to_string(messages.bucketBytes) + " bytes, " + std::to_string(messages.bucketsUnderWay) +
                       " under way" + (messages.addsInOrder ? ", added in order" : "");
    if (hungry)
      text += ", no batch for rank " + std::to_string(hungry->first) + " in step " + std::to_string(hungry->second);
    if (delays.fault)
      text += ", rank " + std::to_string(delays.fault->rank) + (delays.fault->vanishes ? " vanishes" : " fails") +
              " at call " + std::to_string(delays.fault->call);
    for (const Place &place : places)
      text += "\n  " + place.device + " with services " + std::to_string(place.services);
    return text;
  }
};
} // namespace

static Session makeSession(const Task &task, const DeviceRef &device, size_t service, SessionOptions options) {
  options.maxGradNorm = task.maxGradNorm;
  options.seed = 11;
  if (!options.warn)
    options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
  if (*services[service])
    options.config = Config::parse(std::string(R"({"memory": {"stagehand": )") + services[service] + "}}", "test");
  return Session(device, {{"deep", binaryOf(task.layers, task.optimizer)}}, std::move(options));
}

static void setValues(Session &session) {
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
}

static std::vector<float> parametersOf(Session &session) {
  std::vector<float> bits;
  for (const ParameterInfo &info : session.parameters())
    std::ranges::copy(values(session.parameter(info.key)), std::back_inserter(bits));
  return bits;
}

/// Takes the next step with `count` batches from `first` on, and adds to the course what it has given.
static void takeStep(Session &session, const Task &task, int first, int count, bool oneByOne, Course &course) {
  std::vector<TensorMap> batches;
  for (int batch = first; batch < first + count; ++batch) {
    auto seed = uint32_t(100 * session.stepCount() + batch);
    batches.push_back({{"x", randomTensor(session.device(), {rowsOf(task.layers), 32}, seed)}});
  }
  for (size_t i = 0; oneByOne && i < batches.size(); ++i)
    session.forwardBackward(batches[i]);
  StepResult result = oneByOne ? session.optimize(1e-2) : session.step(batches, 1e-2);
  course.push_back({float(result.loss), float(result.gradNorm)});
}

/// Returns the course of one rank with the batches of all. Where each rank adds up several by itself first, the order
/// of additions is theirs, and the course is that of ranks which do nothing else.
static const Course &expectedOf(const Task &task) {
  static std::map<Task, Course> known;
  auto [found, isNew] = known.try_emplace(task);
  if (!isNew)
    return found->second;
  auto train = [&](Session session, int first, int count, Course &course) {
    setValues(session);
    for (int step = 0; step < steps; ++step) {
      takeStep(session, task, first, count, /*oneByOne=*/true, course);
      std::ranges::copy(parametersOf(session), std::back_inserter(course.back()));
    }
  };
  const char *cpu = "cpu:threads=1";
  if (task.batches == 1) {
    train(makeSession(task, Device::open(cpu), 0, {}), 0, task.ranks, found->second);
    return found->second;
  }
  std::vector<Course> courses(static_cast<size_t>(task.ranks));
  EXPECT_EQ(onRanks(task.ranks, cpu, [&](Rank &rank) {
    train(makeSession(task, rank.device, 0, {.collectives = rank.together}), rank.number() * task.batches, task.batches,
          courses[size_t(rank.number())]);
  }),
            nothing(task.ranks));
  return found->second = courses[0];
}

/// Returns the smallest memory in which every rank of such a run is planned on such a device.
static uint64_t leastDram(const std::string &device, size_t service, const Task &task, Sharding sharding) {
  static std::map<std::tuple<std::string, size_t, Task, Sharding>, uint64_t> known;
  auto [found, isNew] = known.try_emplace({device, service, task, sharding});
  if (!isNew)
    return found->second;
  return found->second = leastOfRanks(task.ranks, device, [&](Rank &rank) {
    Session session = makeSession(task, rank.device, service, {.collectives = rank.together, .sharding = sharding});
    setValues(session);
    session.certify(size_t(task.batches));
  });
}

static RandomRun drawRun(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto draw = [&](size_t count) { return size_t(random() % count); };
  auto isDrawn = [&](int percent) { return int(random() % 100) < percent; };
  RandomRun run;
  run.task = {.layers = int(2 + draw(2)),
              .optimizer = optimizers[draw(std::size(optimizers))],
              .ranks = int(2 + draw(3)),
              .batches = int(1 + draw(2)),
              .maxGradNorm = isDrawn(50) ? 1e-3 : 0};
  run.sharding = drawnShardings[draw(std::size(drawnShardings))];
  run.oneByOne = isDrawn(30) && run.sharding != Sharding::Gradients; // whose steps are whole
  const uint64_t buckets[] = {40, 5000, 10000, 1 << 20};
  run.messages = {.bucketBytes = buckets[draw(4)], .bucketsUnderWay = draw(5), .addsInOrder = isDrawn(30)};
  if (isDrawn(80))
    run.delays.seed = seed;
  for (int rank = 0; rank < run.task.ranks; ++rank) {
    const std::string adversarial = ",adversarial=" + std::to_string(1 + draw(1000));
    const std::string sims[] = {"sim:pinned=4MiB,threads=1", "sim:pinned=4MiB,threads=1,link=8GB/s",
                                "sim:streams,pinned=4MiB,threads=1", "sim:pinned=4MiB,threads=1" + adversarial,
                                "sim:streams,pinned=4MiB,threads=1" + adversarial,
                                "sim:pinned=0,threads=1" + adversarial};
    size_t kind = draw(10), service = draw(std::size(services));
    if (kind < 2) {
      run.places.push_back({"cpu:threads=1"});
    } else if (kind < 7 || !service) {
      run.places.push_back({sims[draw(std::size(sims))] + ",dram=16MiB"});
    } else if (run.oneByOne) { // of such steps no plan is made before their end
      run.places.push_back({sims[draw(std::size(sims) - 1)] + ",dram=16MiB", service});
    } else {
      std::string device = sims[draw(std::size(sims) - 1)];
      uint64_t least = leastDram(sims[0], service, run.task, run.sharding);
      run.places.push_back({device + ",dram=" + std::to_string(least + (isDrawn(50) ? least / 2 : 0)), service});
    }
  }
  if (isDrawn(15))
    run.hungry = {int(draw(size_t(run.task.ranks))), int(1 + draw(steps))};
  else if (isDrawn(15))
    run.delays.fault = {int(draw(size_t(run.task.ranks))), 8 + draw(40), isDrawn(20)};
  if (run.delays.fault && run.delays.fault->vanishes)
    run.delays.timeoutSeconds = 1;
  return run;
}

/// Trains by `run` on one rank, and checks what each step has given.
static void trainAsDrawn(const RandomRun &run, int rank, std::shared_ptr<Transport> transport, const Course &expected) {
  const Task &task = run.task;
  const Place &place = run.places[size_t(rank)];
  DeviceRef device = Device::open(place.device);
  SessionOptions options{.collectives = makeCollectives(device, std::move(transport), run.messages),
                         .sharding = run.sharding};
  if (run.hungry || run.oneByOne || run.delays.fault) // such steps are not those that were planned
    options.warn = [](const std::string &) {};
  Session session = makeSession(task, device, place.services, std::move(options));
  setValues(session);
  Course course;
  auto isAsExpected = [&](size_t step) {
    std::vector<float> bits = step ? std::vector(expected[step - 1].begin() + 2, expected[step - 1].end())
                                   : std::vector<float>();
    return step == 0 || parametersOf(session) == bits;
  };
  for (int step = 1; step <= steps; ++step) {
    if (run.hungry && run.hungry->second == step) {
      bool isHungry = run.hungry->first == rank;
      auto [code, what] = errorOf([&] {
        if (isHungry)
          session.step(std::vector<TensorMap>{{{"x", randomTensor(device, {3, 5}, 1)}}}, 1e-2);
        else
          takeStep(session, task, rank * task.batches, task.batches, run.oneByOne, course);
      });
      std::string hungry = "rank " + std::to_string(run.hungry->first);
      EXPECT_EQ(code == ErrorCode::RankFailed, !isHungry) << what;
      EXPECT_NE(what.find(isHungry ? "x" : hungry + " cannot take step " + std::to_string(step)), what.npos) << what;
      EXPECT_TRUE(isAsExpected(size_t(step - 1))) << what;
    }
    try {
      takeStep(session, task, rank * task.batches, task.batches, run.oneByOne, course);
    } catch (const Error &error) {
      if (!run.delays.fault)
        throw;
      // Those of the step before or of this one, or none: a rank may hear of the fault when it has sent its updates.
      auto [code, what] = errorOf([&] { parametersOf(session); });
      if (code != ErrorCode::StateTorn) {
        EXPECT_EQ(code, ErrorCode(-1)) << what;
        EXPECT_TRUE(isAsExpected(size_t(step - 1)) || isAsExpected(size_t(step))) << error.what();
      }
      throw;
    }
    EXPECT_EQ(course.back()[0], expected[size_t(step - 1)][0]) << "step " << step;
    EXPECT_EQ(course.back()[1], expected[size_t(step - 1)][1]) << "step " << step;
  }
  EXPECT_TRUE(isAsExpected(steps)); // a thousand numbers would be told
  EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), device->memory().budget(Space::DeviceDram));
}

/// Trains by `run`, checks each rank, and returns what each has thrown at its end.
static std::vector<std::string> train(const RandomRun &run) {
  const Course &expected = expectedOf(run.task);
  std::vector<std::shared_ptr<Transport>> ends = inProcessRanks(run.task.ranks, run.delays);
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ends.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        trainAsDrawn(run, int(rank), std::move(ends[rank]), expected);
      } catch (const std::exception &error) {
        thrown[rank] = error.what();
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  return thrown;
}

// What a step that another rank could not take had brought to the device, is in nobody's way in the least memory.
TEST(RandomRanks, AfterAStepOfNobodyTheLeastMemoryIsEnough) {
  for (size_t service = 1; service < std::size(services); ++service)
    for (int batches : {1, 2})
      for (int step : {2, 3})
        for (Sharding sharding : drawnShardings) {
          RandomRun run{.task = {.layers = 3, .optimizer = optimizers[0], .batches = batches}, .sharding = sharding};
          std::string device = "sim:pinned=4MiB,threads=1";
          uint64_t least = leastDram(device, service, run.task, sharding);
          run.places = {{device + ",link=8GB/s,dram=" + std::to_string(least), service}, {"cpu:threads=1"}};
          run.hungry = {1, step};
          EXPECT_EQ(train(run), nothing(2)) << run.text();
        }
}

TEST(RandomRanks, EachHasTheBitsOfOneRankWithAllBatches) {
  auto number = [](const char *name, uint64_t absent) {
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : absent;
  };
  uint64_t only = number("SEGUE_RANK_RUN", UINT64_MAX);
  uint64_t begin = only == UINT64_MAX ? 0 : only;
  uint64_t end = only == UINT64_MAX ? number("SEGUE_RANK_RUNS", usualRuns) : only + 1;
  uint64_t failed = 0, hungry = 0;
  for (uint64_t seed = begin; seed < end; ++seed) {
    RandomRun run = drawRun(seed);
    std::vector<std::string> thrown = train(run);
    bool isOver = thrown != nothing(run.task.ranks);
    hungry += run.hungry.has_value();
    failed += isOver;
    if (!run.delays.fault) {
      EXPECT_EQ(thrown, nothing(run.task.ranks));
    }
    for (size_t rank = 0; rank < thrown.size() && isOver && run.delays.fault; ++rank) {
      // Who has come to the end has all parameters: the fault came behind that, or to what others were to get.
      bool isNamed = thrown[rank].starts_with("RANK_FAILED") || thrown[rank].starts_with("STATE_TORN");
      EXPECT_TRUE(thrown[rank].empty() || isNamed) << thrown[rank];
    }
    ASSERT_FALSE(HasFailure()) << "SEGUE_RANK_RUN=" << seed << ": " << run.text();
  }
  if (only == UINT64_MAX) {
    EXPECT_GT(hungry, end / 20);
    EXPECT_GT(failed, end / 20);
  }
}
