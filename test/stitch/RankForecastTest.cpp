//===- RankForecastTest.cpp - a forecast is what ranks do -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two and four ranks in this process train six models; what they send and hold at most is
// compared with what was forecast.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "DeepModel.h"
#include "PipelineModel.h"
#include "ErrorOf.h"
#include "RandomTensors.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Reports/RankForecast.h"
#include "segue/runtime/Reports/RunReport.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/resource.h>

using namespace segue;
using namespace segue::test;

static constexpr uint64_t bucketBytes = 3000;
static constexpr int steps = 3;

namespace {
struct Model {
  const char *name;
  std::vector<const char *> files;
  size_t microBatches = 1;
};

/// Counts what ranks give each other, by way of another transport.
class CountingTransport final : public Transport {
public:
  explicit CountingTransport(std::shared_ptr<Transport> next) : next_(std::move(next)) {}

  uint64_t messages = 0, sentBytes = 0, meetings = 0;

  int rank() const override { return next_->rank(); }
  int ranks() const override { return next_->ranks(); }
  void allReduce(float *data, int64_t count) override {
    add(RingTraffic::sum(uint64_t(count) * sizeof(float), ranks()));
    next_->allReduce(data, count);
  }
  void reduce(float *data, int64_t count, int root) override {
    add(RingTraffic::reduction(uint64_t(count) * sizeof(float), ranks()));
    next_->reduce(data, count, root);
  }
  void reduceScatter(const float *whole, float *part, int64_t count) override {
    add(RingTraffic::scatteredSum(uint64_t(count) * sizeof(float) * uint64_t(ranks()), ranks()));
    next_->reduceScatter(whole, part, count);
  }
  /// Words of ranks are gathered; no session gathers tensors.
  void allGather(const void *part, void *whole, uint64_t bytes) override {
    ++meetings;
    next_->allGather(part, whole, bytes);
  }
  void broadcast(void *data, uint64_t bytes, int root) override {
    add(RingTraffic::broadcast(bytes, ranks()), /*hasTensors=*/bytes > 1); // one byte says whether they come
    next_->broadcast(data, bytes, root);
  }
  void send(const void *data, uint64_t bytes, int to) override {
    add(RingTraffic::toOne(bytes), /*hasTensors=*/bytes > 1);
    next_->send(data, bytes, to);
  }
  void receive(void *data, uint64_t bytes, int from) override { next_->receive(data, bytes, from); }
  void abandon(std::string_view why) noexcept override { next_->abandon(why); }

private:
  void add(const RingTraffic &traffic, bool hasTensors = true) {
    messages += hasTensors;
    sentBytes += traffic.sentBytes;
  }

  std::shared_ptr<Transport> next_;
};

/// A rank has sent this in its last step, and held so much at most.
struct Measured {
  uint64_t messages = 0, sentBytes = 0, meetings = 0, peakBytes = 0, messageBytes = 0, hostBytes = 0;
  double loss = 0;
};

struct RankForecasts : testing::TestWithParam<const char *> {};
} // namespace

static const Model models[] = {{"mlp", {"deep"}},
                               {"gpt", {"gpt.mlir"}},
                               {"gpt with accumulation", {"gpt.mlir"}, 3},
                               {"llama", {"llama.mlir"}},
                               {"lora", {"lora.mlir"}},
                               {"stitched", {"front.mlir", "back.mlir"}}};

static const Binary &binaryOf(const std::string &file) {
  static std::map<std::string, Binary> compiled;
  if (auto found = compiled.find(file); found != compiled.end())
    return found->second;
  if (file == "deep")
    return compiled.emplace(file, DeepModel{.layers = 4, .rows = 32, .width = 64}.compiled()).first->second;
  std::ifstream stream(std::string(SEGUE_STITCH_INPUTS) + "/" + file);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  CompileOptions options;
  options.name = file;
  options.training = true;
  options.optimizer = "adamw";
  options.v4 = false;
  CompiledModule module(text, options);
  if (!module.binary)
    throw std::runtime_error(module.diagnostics);
  return compiled.emplace(file, *module.binary).first->second;
}

static std::vector<SessionModule> modulesOf(const Model &model) {
  std::vector<SessionModule> modules;
  for (const char *file : model.files)
    modules.push_back({file, binaryOf(file)});
  return modules;
}

static Measured measure(const Rank &rank, const Model &model, Sharding strategy) {
  auto counting = std::make_shared<CountingTransport>(rank.transport);
  SessionOptions options;
  std::shared_ptr<Collectives> together = makeCollectives(rank.device, counting, {.bucketBytes = bucketBytes});
  options.collectives = together;
  options.sharding = strategy;
  Session session(rank.device, modulesOf(model), std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(rank.device, info.desc.shape, uint32_t(info.key.back())));
  TensorMap batch = batchWithoutValues(rank.device, session.modules(), {});
  for (auto &[name, tensor] : batch)
    std::memset(tensor.bytes(), tensor.element() == ElementType::f32 ? 0x3c : 0, tensor.desc().spanBytes());
  std::vector<TensorMap> batches(model.microBatches, batch);
  DeviceMemory &memory = rank.device->memory();
  uint64_t firstPeak = 0;
  Measured before;
  StepResult last;
  for (int step = 0; step < steps; ++step) {
    before = {.messages = counting->messages, .sentBytes = counting->sentBytes, .meetings = counting->meetings};
    last = session.step(batches, 1e-3);
    rank.device->drain();
    if (step == 0) { // before that, values that were set, and looked at for what ranks agree on, came by way of the host
      firstPeak = memory.peakBytes(Space::DeviceDram);
      memory.resetPeak();
    }
  }
  Measured found{.messages = counting->messages - before.messages,
                 .sentBytes = counting->sentBytes - before.sentBytes,
                 .meetings = counting->meetings - before.meetings,
                 .peakBytes = std::max(firstPeak, memory.peakBytes(Space::DeviceDram)),
                 .loss = last.loss};
  found.messageBytes = together->figures().peakBytes;
  for (Space space : {Space::HostPinned, Space::Host})
    found.hostBytes += memory.peakBytes(space);
  return found;
}

INSTANTIATE_TEST_SUITE_P(Devices, RankForecasts,
                         testing::Values("cpu:threads=1", "sim:dram=16MiB,pinned=16MiB,threads=1,link=8GB/s"));

// Messages, bytes and meetings of a step are those that were forecast, and so is the memory of messages, however long they
// take; other memory is within what was, and not far below.
TEST_P(RankForecasts, AreWhatRanksDo) {
  bool isUnified = Device::open(GetParam())->hasUnifiedMemory();
  for (const Model &model : models)
    for (int ranks : {2, 4}) {
      RankForecast forecast(GetParam(), modulesOf(model), {},
                            {.ranks = ranks,
                             .microBatches = model.microBatches,
                             .bucketBytes = bucketBytes});
      double loss = 0; // of ddp, and so of all
      for (Sharding strategy : {Sharding::None, Sharding::States, Sharding::Gradients, Sharding::Parameters}) {
        SCOPED_TRACE(std::string(model.name) + ", " + std::to_string(ranks) + " ranks, " + std::string(name(strategy)));
        const RankStep &planned = forecast.play(strategy);
        EXPECT_TRUE(planned.fits()) << planned.why;
        std::vector<Measured> found(static_cast<size_t>(ranks));
        auto train = [&](Rank &rank) { found[size_t(rank.number())] = measure(rank, model, strategy); };
        EXPECT_EQ(onRanks(ranks, GetParam(), train), nothing(ranks));
        for (const Measured &rank : found) {
          bool isForecast = strategy < Sharding::Gradients || &rank == &found[size_t(planned.rank)];
          EXPECT_EQ(rank.messages, planned.messages);
          EXPECT_EQ(rank.sentBytes, planned.sentBytes);
          EXPECT_EQ(rank.meetings, planned.meetings);
          // Gradients of other ranks come in another order, and so a rank may hold a little more of them at once.
          EXPECT_LE(rank.peakBytes, planned.bytes * (isForecast ? 1.0 : 1.1));
          EXPECT_GE(rank.peakBytes, planned.bytes / 2);
          if (strategy == Sharding::Parameters) {
            EXPECT_LE(rank.messageBytes, planned.messageBytes);
          } else {
            EXPECT_EQ(rank.messageBytes, planned.messageBytes);
          }
          EXPECT_EQ(rank.loss, strategy == Sharding::None ? rank.loss : loss);
          loss = rank.loss;
          if (!isUnified) {
            EXPECT_LE(rank.hostBytes, planned.hostBytes * (isForecast ? 1.0 : 1.1));
          }
        }
        EXPECT_GT(planned.messages, 1u);
      }
    }
}

// The same of a pipeline, whose ranks do something else each, also where stages share parameters. Its time is that of
// the schedule.
TEST_P(RankForecasts, OfAPipelineAreWhatRanksDo) {
  PipelineModel model;
  std::vector<SessionModule> modules = model.modules();
  SessionOptions options;
  options.wires = model.wires();
  using Ties = std::vector<std::vector<ParameterRef>>;
  for (const auto &[ranks, ties] : {std::pair(2, Ties()),
                                    {3, {}},
                                    {3, {{{"embed", "embed"}, {"layer1", "v"}, {"head", "head"}}}},
                                    {2, {{{"layer2", "v"}, {"head", "head"}}, {{"layer0", "w"}, {"layer1", "w"}}}}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(ties.size()) + " ties");
    options.tied = ties;
    RankForecast forecast(GetParam(), modules, options,
                          {.ranks = ranks, .microBatches = 2, .bucketBytes = bucketBytes});
    const RankStep &planned = forecast.play(Sharding::Modules);
    EXPECT_TRUE(planned.fits()) << planned.why;
    std::vector<Measured> found(static_cast<size_t>(ranks));
    EXPECT_EQ(onRanks(ranks, GetParam(), [&, ranks = ranks](Rank &rank) {
      auto counting = std::make_shared<CountingTransport>(rank.transport);
      SessionOptions own = options;
      std::shared_ptr<Collectives> together = makeCollectives(rank.device, counting, {.bucketBytes = bucketBytes});
      own.collectives = together;
      own.sharding = Sharding::Modules;
      Session session(rank.device, modules, std::move(own));
      model.setValues(session);
      std::vector<TensorMap> batches;
      for (int batch = 0; batch < 2 * ranks; ++batch)
        batches.push_back(model.batch(rank.device, 1, batch));
      Measured &measured = found[size_t(rank.number())], before;
      for (int step = 0; step < steps; ++step) {
        before = {.messages = counting->messages, .sentBytes = counting->sentBytes, .meetings = counting->meetings};
        session.step(batches, 1e-3);
        rank.device->drain();
        if (!step)
          rank.device->memory().resetPeak();
      }
      measured.messages = counting->messages - before.messages;
      measured.sentBytes = counting->sentBytes - before.sentBytes;
      measured.meetings = counting->meetings - before.meetings;
      measured.peakBytes = rank.device->memory().peakBytes(Space::DeviceDram);
      measured.messageBytes = together->figures().peakBytes;
    }),
              nothing(ranks));
    const Measured &most = found[size_t(planned.rank)];
    EXPECT_EQ(most.messages, planned.messages);
    EXPECT_EQ(most.sentBytes, planned.sentBytes);
    EXPECT_EQ(most.meetings, planned.meetings);
    EXPECT_EQ(most.messageBytes, planned.messageBytes);
    for (const Measured &rank : found) {
      EXPECT_LE(rank.peakBytes, planned.bytes);
    }
    EXPECT_GE(most.peakBytes, planned.bytes / 2);
  }
  RankForecast none(GetParam(), {modules[0]}, {}, {.ranks = 20000}); // no thread for each
  EXPECT_NE(none.play(Sharding::Modules).why.find("each rank runs one at least"), std::string::npos);
}

// With equal stages, links that take no time, and M batches, a step takes as long as M + P - 1 batches on one rank of
// the P: each rank waits for the first batch to come to it, and for the last one's gradient (Y. Huang et al., GPipe,
// 2019).
TEST(RankForecastTimes, APipelineTakesTheTimeOfItsSchedule) {
  constexpr int ranks = 4, each = 3;
  PipelineModel model;
  std::vector<SessionModule> all = model.modules(), modules{all.front()};
  SessionOptions options;
  options.wires = model.wires();
  for (int i = 0; i < 8 * ranks; ++i) // so many that the modules at the ends hardly count
    modules.push_back({"layer" + std::to_string(i), all[1].binary});
  modules.push_back(all.back());
  auto play = [&](int count, size_t batches) {
    RankForecast forecast("sim:virtual,dram=1GiB,link=1000GB/s,flops=1TFLOP/s,membw=100GB/s,launch=1us,latency=0us", modules, options,
                          {.ranks = count, .wires = {.bytesPerSecond = 1e15, .latencySeconds = 0}, .microBatches = batches});
    const RankStep &step = forecast.play(count > 1 ? Sharding::Modules : Sharding::None);
    EXPECT_TRUE(step.fits()) << step.why;
    return step;
  };
  RankStep one = play(1, ranks * each), all4 = play(ranks, each);
  double ideal = one.seconds / ranks * (ranks * each + ranks - 1) / (ranks * each);
  EXPECT_GE(all4.seconds / ideal, 1);
  EXPECT_LE(all4.seconds / ideal, 1.2); // copies to messages and back, and stages that are not quite equal
}

// Gradients whose message is not complete when backward has ended, as one of them comes from outside of blocks, are
// told to services then.
TEST(RankServices, HearOfGradientsThatWaitForThoseOutsideOfBlocks) {
  const Model gpt{"gpt", {"gpt.mlir"}};
  const char *plan = R"({"memory": {"stagehand": {"activation_stagehand": {"enabled": true, "mode": "planned",
    "telemetry_enabled": false}}}})";
  std::vector<double> losses;
  for (Sharding strategy : {Sharding::None, Sharding::States, Sharding::Gradients, Sharding::Parameters}) {
    SCOPED_TRACE(name(strategy));
    EXPECT_EQ(onRanks(2, "sim:dram=16MiB,pinned=16MiB,threads=1,link=8GB/s", [&](Rank &rank) {
      Session session(rank.device, modulesOf(gpt),
                      {.collectives = rank.together, .sharding = strategy, .config = Config::parse(plan, "test")});
      for (const ParameterInfo &info : session.parameters())
        session.setParameter(info.key, randomTensor(rank.device, info.desc.shape, uint32_t(info.key.back())));
      TensorMap batch = batchWithoutValues(rank.device, session.modules(), {});
      for (auto &[name, tensor] : batch)
        std::memset(tensor.bytes(), 0, tensor.desc().spanBytes());
      std::vector<double> own;
      for (int step = 0; step < steps; ++step)
        own.push_back(session.step(std::span(&batch, 1), LearningRates(1e-3)).loss);
      if (rank.number() == 0 && strategy == Sharding::None)
        losses = own;
      if (strategy != Sharding::None) {
        EXPECT_EQ(own, losses);
      }
    }),
              nothing(2));
  }
  EXPECT_EQ(std::set(losses.begin(), losses.end()).size(), size_t(steps));
}

// Values that a rank takes of rank 0, as frozen ones differed, which every rank has, are none that it alone was given.
TEST(RankServices, ValuesThatDifferedAreNoneThatOneRankWasGiven) {
  TemporaryFolder folder;
  std::string path = folder / "one.safetensors";
  EXPECT_EQ(onRanks(2, "cpu:threads=1", [&](Rank &rank) {
    Session session(rank.device, modulesOf({"lora", {"lora.mlir"}}),
                    {.collectives = rank.together, .sharding = Sharding::Parameters});
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(rank.device, info.desc.shape, uint32_t(rank.number())));
    TensorMap batch = batchWithoutValues(rank.device, session.modules(), {});
    for (auto &[name, tensor] : batch)
      std::memset(tensor.bytes(), 0, tensor.desc().spanBytes());
    session.step(batch, 1e-3);
    session.save(path);
    session.load(path);
    session.step(batch, 1e-3);
    EXPECT_EQ(session.stepCount(), 2);
  }),
            nothing(2));
}

/// Returns the spans of a track, in microseconds.
static std::vector<Json> spansOf(const Json &trace, std::string_view track) {
  std::vector<Json> spans;
  Json id;
  for (const Json &event : trace["traceEvents"])
    if (event["ph"] == "M" && event["args"]["name"] == track)
      id = event["tid"];
  for (const Json &event : trace["traceEvents"])
    if (event["ph"] == "X" && event["tid"] == id)
      spans.push_back(event);
  return spans;
}

static bool holds(const Json &span, double time) {
  return span["ts"].get<double>() <= time && time < span["ts"].get<double>() + span["dur"].get<double>();
}

/// Returns how much of the spans lies in others, piece by piece between all their ends.
static double timeWithin(const std::vector<Json> &spans, const std::vector<Json> &others) {
  std::vector<double> ends;
  for (const auto *each : {&spans, &others})
    for (const Json &span : *each)
      for (double at : {span["ts"].get<double>(), span["ts"].get<double>() + span["dur"].get<double>()})
        ends.push_back(at);
  std::ranges::sort(ends);
  double sum = 0;
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    auto isIn = [&](const Json &span) { return holds(span, (ends[i] + ends[i + 1]) / 2); };
    if (std::ranges::any_of(spans, isIn) && std::ranges::any_of(others, isIn))
      sum += ends[i + 1] - ends[i];
  }
  return sum;
}

namespace {
/// Has backward wait, at its third block, for what it has sent: so that a message is under way while it goes on, however
/// busy the machine is.
struct WaitsForMessages final : ForwardEvents {
  DeviceRef device;
  int blocks = 0;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    blocks = begin.phase == Phase::Backward ? 3 : 0;
    forward(begin);
  }
  void on(const event::BlockBegin &begin) {
    if (blocks && --blocks == 0)
      device->wait(Fence(Queue::Network, device->position(Queue::Network)));
    forward(begin);
  }
  void on(const auto &other) { forward(other); }
};

struct RankTraces : testing::TestWithParam<const char *> {};
} // namespace
INSTANTIATE_TEST_SUITE_P(Devices, RankTraces,
                         testing::Values("cpu:threads=1", "sim:dram=64MiB,pinned=16MiB,threads=1,link=8GB/s",
                                         "sim:streams,dram=64MiB,pinned=16MiB,threads=1"));

// A trace has the messages on a track of their own, beside the blocks of backward, with the bytes that a forecast says;
// the trace and the page of the run say how much is hidden, as one adds up by hand. The page has a table of ranks.
TEST_P(RankTraces, ShowMessagesBesideBackward) {
  static const Binary deep = DeepModel{.layers = 6, .rows = 512, .width = 128}.compiled();
  const std::vector<SessionModule> modules = {{"deep", deep}};
  constexpr uint64_t bucket = 128 * 128 * 4;
  RankForecast forecast(GetParam(), modules, {}, {.bucketBytes = bucket});
  const RankStep &planned = forecast.play(Sharding::States);
  TemporaryFolder folder;
  auto train = [&](Rank &rank) {
    RunReport report(rank.device, nullptr);
    WaitsForMessages waits;
    waits.device = rank.device;
    waits.target = &report;
    Session session(rank.device, modules,
                    {.collectives = rank.together, .sharding = Sharding::States, .events = &waits});
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(rank.device, info.desc.shape, 1));
    TensorMap batch{{"x", randomTensor(rank.device, {512, 128}, uint32_t(rank.number()))}};
    for (int step = 0; step < steps; ++step)
      report.addStep(session.step({batch}, 1e-3), 1);
    rank.device->drain();
    RunRecords records = report.records();
    std::string path = folder / ("trace" + std::to_string(rank.number()) + ".json");
    std::ofstream(path) << records.trace.dump();
    std::ifstream file(path);
    Json trace = Json::parse(file);
    std::vector<Json> messages, blocks = spansOf(trace, "block"), backward;
    std::map<std::string, uint64_t> counts, meetings;
    const std::string met(meetingLabel);
    for (const Json &span : spansOf(trace, "phase"))
      if (span["name"] == "backward")
        backward.push_back(span);
    uint64_t bytes = 0;
    for (const Json &span : spansOf(trace, "network")) {
      ++counts[span["name"]];
      if (span["name"] == met) {
        ++meetings[span["args"]["about"]];
        continue;
      }
      messages.push_back(span);
      if (span["name"] == "a sum over ranks" || counts[met] > 3) // values of rank 0 come before the first step
        bytes += span["args"]["bytes"].get<uint64_t>();
    }
    EXPECT_EQ(counts["a sum over ranks"], uint64_t(steps * 6));
    EXPECT_EQ(counts["a broadcast"], uint64_t(steps * 6));
    EXPECT_EQ(bytes, steps * planned.sentBytes);
    EXPECT_EQ(meetings["step 2, gradients"], 1u);
    EXPECT_EQ(meetings["what is trained"], 1u);
    EXPECT_GT(timeWithin(messages, backward), 0);
    const Json &network = trace["otherData"]["network"];
    EXPECT_EQ(network["messages"], messages.size());
    EXPECT_EQ(network["meetings"], counts[met]);
    EXPECT_NEAR(network["hidden_seconds"].get<double>() * 1e6, timeWithin(messages, blocks), 1e-3);
    EXPECT_GE(network["seconds"].get<double>(), network["hidden_seconds"].get<double>());
    std::vector<Json> lines;
    std::string own = rankFigures(*rank.device, *rank.together, 1).dump();
    for (const std::string &line : rank.together->exchange("figures", own))
      lines.push_back(Json::parse(line));
    report.setRanks(std::move(lines));
    Json ranks = reportData(report.records())["ranks"];
    ASSERT_EQ(ranks.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(ranks[i]["rank"], i);
      EXPECT_EQ(ranks[i]["messages"], messages.size());
      EXPECT_EQ(ranks[i]["meetings"], counts[met]);
      EXPECT_GT(ranks[i]["meeting_seconds"], 0);
      EXPECT_GE(ranks[i]["host_bytes"], ranks[i]["message_bytes"]);
      EXPECT_EQ(ranks[i]["message_bytes"], planned.messageBytes);
    }
    EXPECT_EQ(ranks[size_t(rank.number())]["device_bytes"], rank.device->memory().peakBytes(Space::DeviceDram));
    Json page = reportData(records)["timelines"][1]["network"];
    EXPECT_EQ(page["sent_bytes"], planned.sentBytes);
    EXPECT_EQ(page["meetings"], 3);
    EXPECT_GT(page["seconds"], 0);
  };
  EXPECT_EQ(onRanks(2, GetParam(), train, {.seed = 4}, {.bucketBytes = bucket}), nothing(2));
}

/// A model whose backward takes long beside its messages.
static RankStep played(RankRun run, const char *device = "sim:virtual,dram=1GiB,link=100GB/s,latency=0us") {
  static const Binary deep = DeepModel{.layers = 8, .rows = 4096, .width = 256}.compiled();
  RankForecast forecast(device, {{"deep", deep}}, {}, run);
  return forecast.play(Sharding::None);
}

// Time is seen and not reckoned: messages that are short beside backward are hidden but for the last, and cost next to
// nothing; those of slow wires are what a step takes.
TEST(RankForecastTimes, OverlapIsSeen) {
  RankRun fast{.ranks = 8, .wires = {.bytesPerSecond = 100e9, .latencySeconds = 1e-6}, .bucketBytes = 256 << 10};
  RankRun slow = fast, alone = fast;
  slow.wires.bytesPerSecond = 100e6;
  alone.ranks = 1;
  const char *device = "sim:virtual,dram=1GiB,link=100GB/s,latency=0us,flops=1TFLOP/s";
  RankStep one = played(alone, device), quick = played(fast, device), held = played(slow, device);
  EXPECT_EQ(one.messages, 0u);
  EXPECT_EQ(one.networkSeconds, 0);
  EXPECT_EQ(quick.messages, 8u);
  EXPECT_GT(quick.hiddenSeconds, 0.8 * quick.networkSeconds);
  EXPECT_LT(quick.seconds, one.seconds + quick.networkSeconds - quick.hiddenSeconds + quick.meetingSeconds + 100e-6);
  EXPECT_LT(held.hiddenSeconds, 0.5 * held.networkSeconds);
  EXPECT_GT(held.seconds, held.networkSeconds + 0.3 * one.seconds); // forward has none to send
  EXPECT_EQ(held.sentBytes, quick.sentBytes);
  EXPECT_EQ(quick.sentBytes, uint64_t(8 * 256 * 256 * 4 * 2) * 7 / 8);
  // Figures of the wires, by hand.
  EXPECT_NEAR(held.networkSeconds, double(held.sentBytes) / 100e6 + 8 * 14 * 1e-6, 1e-9);
}

TEST(RankForecastTimes, RefusesWithNumbers) {
  RankStep planned = played({.ranks = 2, .budgetBytes = 48 << 20});
  EXPECT_TRUE(planned.fits() && planned.isPlanned) << planned.why;
  EXPECT_LE(planned.bytes, uint64_t(48 << 20));
  RankStep refused = played({.ranks = 2, .budgetBytes = 1 << 20});
  EXPECT_FALSE(refused.fits());
  EXPECT_NE(refused.why.find("the smallest budget is"), std::string::npos) << refused.why;
}

/// A layer of 876 million parameters on its input `name`, and the loss of what the last one gives.
static std::string hugeLayer(const std::string &name) {
  return R"(
func.func @forward(%x: tensor<2048x8192xf32> {segue.name = ")" + name + R"(", segue.role = #segue.role<input>},
    %up: tensor<53500x8192xf32> {segue.name = "up", segue.role = #segue.role<parameter>},
    %down: tensor<8192x53500xf32> {segue.name = "down", segue.role = #segue.role<parameter>})
    -> (tensor<2048x8192xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %u = segue.dot_general %x, %up batch [] x [] contract [1] x [1] {segue.block = "h"}
      : tensor<2048x8192xf32>, tensor<53500x8192xf32> -> tensor<2048x53500xf32>
  %g = segue.gelu tanh %u {segue.block = "h"} : tensor<2048x53500xf32>
  %d = segue.dot_general %g, %down batch [] x [] contract [1] x [1] {segue.block = "h"}
      : tensor<2048x53500xf32>, tensor<8192x53500xf32> -> tensor<2048x8192xf32>
  %y = segue.add %x, %d {segue.block = "h"} : tensor<2048x8192xf32>
  return %y : tensor<2048x8192xf32>
})";
}
static const char *const hugeHead = R"(
func.func @forward(%y: tensor<2048x8192xf32> {segue.name = "y", segue.role = #segue.role<input>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %s = segue.mul %y, %y : tensor<2048x8192xf32>
  %loss = segue.reduce mean %s dims [0, 1] : tensor<2048x8192xf32> -> tensor<f32>
  return %loss : tensor<f32>
})";

// One layer, compiled by itself and given eighty times, is a model of 70 billion parameters: its steps are played by a
// plan, as 80 GiB do not hold it, within seconds and without memory of its size.
TEST(RankForecastTimes, SeventyBillionParametersOn64Cards) {
  CompileOptions options;
  options.training = true;
  options.optimizer = "adamw";
  options.v4 = false;
  CompiledModule first(hugeLayer("batch"), options), layer(hugeLayer("x"), options), head(hugeHead, options);
  ASSERT_TRUE(first.binary && layer.binary && head.binary) << layer.diagnostics << head.diagnostics;
  std::vector<SessionModule> modules(80, {"", *layer.binary});
  modules[0].binary = *first.binary; // nobody but the batch gives it its input
  modules.push_back({"", *head.binary});
  RankForecast forecast("sim:virtual,dram=80GiB,pinned=2TiB,link=50GB/s,flops=400TFLOP/s,membw=3000GB/s", modules, {},
                        {.ranks = 64});
  uint64_t parameterBytes = 80 * 2 * uint64_t(53500) * 8192 * 4;
  const RankStep &step = forecast.play(Sharding::None);
  EXPECT_TRUE(step.fits() && step.isPlanned) << step.why;
  EXPECT_LE(step.bytes, uint64_t(80) << 30);
  EXPECT_EQ(step.sentBytes, 2 * parameterBytes / 64 * 63);
  EXPECT_EQ(forecast.fastest(), &step);
  // With a part of the parameters on each card, a block comes in forward and in backward but for the two that forward
  // has left in the ring, as a message of the card that has one half of it and one of that with the other.
  const RankStep &gathered = forecast.play(Sharding::Parameters);
  EXPECT_TRUE(gathered.fits()) << gathered.why;
  EXPECT_LE(gathered.bytes, uint64_t(80) << 30);
  EXPECT_LT(gathered.hostBytes, step.hostBytes / 2);
  uint64_t gatherings = 2 * 80 - 2;
  EXPECT_EQ(gathered.messages, step.messages + 2 * gatherings);
  // A byte says whether they come; and each gradient is given on once, to who adds it up.
  EXPECT_EQ(gathered.sentBytes, parameterBytes + gatherings * parameterBytes / 80 + 2 * gatherings);
  // A stage of a pipeline fits as it is. The first one has the most batches under way, and sends each to the next.
  const RankStep &pipelined = forecast.play(Sharding::Modules);
  EXPECT_TRUE(pipelined.fits() && !pipelined.isPlanned) << pipelined.why;
  EXPECT_EQ(pipelined.rank, 0);
  EXPECT_EQ(pipelined.sentBytes, 64 * (uint64_t(2048) * 8192 * 4 + 1));
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 2 << 20) << "KiB";
}

TEST(RankForecastTimes, TextsAreChecked) {
  EXPECT_EQ(parseInterconnect("12.5GB/s,latency=2us").bytesPerSecond, 12.5e9);
  EXPECT_EQ(parseInterconnect("12.5GB/s,latency=2us").latencySeconds, 2e-6);
  EXPECT_EQ(parseInterconnect("1GB/s").latencySeconds, Interconnect().latencySeconds);
  for (const char *text : {"", "50", "0GB/s", "50GB/s,late=3us", "50GB/s,latency=3"})
    EXPECT_NE(errorOf([&] { parseInterconnect(text); }).second.find("written as 50GB/s,latency=5us"),
              std::string::npos)
        << text;
  EXPECT_NE(errorOf([] { parseSharding("ddpp"); }).second.find("there is no strategy \"ddpp\" of several ranks; there are ddp"),
            std::string::npos);
}
