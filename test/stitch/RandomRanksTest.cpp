//===- RandomRanksTest.cpp - ranks by chance ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Short runs of two to five ranks whose strategy, devices, services, batches, messages,
// optimizer and delays are drawn, each rank's device and services by itself: every one has
// the bits of one rank that has the batches of all. In some, other ranks go on from a
// checkpoint by another strategy. In some, a rank cannot take a step, or its transport
// fails: they end as docs/guides/ranks.md says.
//
// A failure names its seed: SEGUE_RANK_RUN=17 runs that one alone, SEGUE_RANK_RUNS=5000
// so many, from that one or from 0.
//
//===----------------------------------------------------------------------===//

#include "Collectives/OnRanks.h"
#include "DeepModel.h"
#include "ErrorOf.h"
#include "LeastOfRanks.h"
#include "PipelineModel.h"
#include "RandomTensors.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/Session.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <tuple>

using namespace segue;
using namespace segue::test;

static constexpr uint64_t usualRuns = 200;
static constexpr int steps = 4;
static constexpr int64_t width = 32;

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
/// The service in which a plan alone decides, the only one beside which updates may be made in forward.
static constexpr size_t planService = 2;

namespace {
/// How the batches of a step are added up: those of each group first.
struct Batches {
  int groups = 2, each = 1;
  auto operator<=>(const Batches &) const = default;
  /// True if this is the order in which one rank adds them all.
  bool areInOrder() const { return groups == 1 || each == 1; }
};

/// A Task is what all ranks of a run have alike, and what its bits depend on.
struct Task {
  /// Modules compiled apart, or one with all layers.
  bool isCut = false;
  int layers = 2;
  std::string optimizer;
  double maxGradNorm = 0;
  bool isScaled = false;
  /// The step that is tried with NaN before, which the scaled loss has all skip; 0: none.
  int skipped = 0;
  Batches batches;
  /// The step after which other ranks go on, with such batches; 0: none do.
  int handover = 0;
  Batches then;

  auto operator<=>(const Task &) const = default;
  const Batches &batchesIn(int step) const { return handover && step > handover ? then : batches; }
};

/// What one rank has for itself.
struct Place {
  /// FOLDER stands for one of its own.
  std::string device;
  size_t services = 0;
};

/// A Trouble makes a rank fail in a step, so that no rank takes it, and all may take it again.
struct Trouble {
  /// A batch of no module's shape; one batch more than others have; a batch of NaN; an error in the midst of a block.
  enum class Kind { Shape, Count, Nan, InBlock };
  Kind kind;
  int rank = 0, step = 1;
  /// The batch that is NaN, or the blocks that end before.
  int at = 0;
};

/// Ranks take some of the steps of a run.
struct Group {
  Sharding sharding = Sharding::None;
  int ranks = 2;
  Batches batches;
  /// Takes the steps behind `first` up to `last`.
  int first = 0, last = steps;
  std::vector<size_t> stages;
  /// Keys of the ring that all have; empty: what each rank's services say.
  std::string ring;
  bool isInForward = false, oneByOne = false, seedsDiffer = false;
  std::vector<Place> places;
  CollectiveOptions messages;
  InProcessOptions delays;
  std::optional<Trouble> trouble;
  /// The steps after which all evaluate a batch, and have all parameters; 0: none.
  int evaluated = 0, gathered = 0;

  bool isPipeline() const { return sharding == Sharding::Modules && ranks > 1; }
  bool gathers() const { return sharding == Sharding::Parameters && ranks > 1; }
  /// The first batch of a rank.
  int firstOf(int rank) const { return isPipeline() ? 0 : rank * batches.each; }
  std::string text() const;
};

/// A record of a step: its results, and the parameters after it.
struct Outcome {
  float loss = 0, norm = 0;
  double evaluated = 0;
  std::vector<std::vector<float>> parameters;
};
using Course = std::vector<Outcome>;

struct RandomRun {
  Task task;
  std::vector<Group> groups;
  /// The name of the checkpoint.
  std::string saved;

  std::string text() const {
    std::string text = std::to_string(task.layers) + (task.isCut ? " modules between, " : " layers, ") +
                       task.optimizer + ", clip " + std::to_string(task.maxGradNorm) + (task.isScaled ? ", scaled" : "") +
                       (task.skipped ? ", skips at step " + std::to_string(task.skipped) : "");
    for (const Group &group : groups)
      text += (group.first ? "\nand from " + saved + " after step " + std::to_string(group.first) : "") + "\n" +
              group.text();
    return text;
  }
};

/// Fails at the end of a block before the optimizer.
struct FailsInBlock final : ForwardEvents {
  /// The ends of blocks that are left until then; -1: it does not.
  int left = -1;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::Optimizer)
      left = -1;
  }
  void on(const event::BlockEnd &) {
    if (left >= 0 && left-- == 0)
      throw Error(ErrorCode::InvalidArgument, "a test wants no more of this step");
  }
  void on(const auto &) {}
};
} // namespace

std::string Group::text() const {
  static constexpr const char *troubles[] = {"a batch of no shape", "a batch more", "NaN", "an error"};
  std::string text = std::to_string(ranks) + " ranks, " + std::string(name(sharding)) + ", " +
                     std::to_string(batches.each) + " batches" + (oneByOne ? " one by one" : "") +
                     (isInForward ? ", updates in forward" : "") + (seedsDiffer ? ", seeds differ" : "");
  for (size_t count : stages)
    text += ", a stage of " + std::to_string(count);
  text += ", messages of " + std::to_string(messages.bucketBytes) + " bytes, " +
          std::to_string(messages.bucketsUnderWay) + " under way" + (messages.addsInOrder ? ", added in order" : "") +
          (delays.seed ? ", delays" : "") + (ring.empty() ? "" : ", " + ring);
  if (evaluated)
    text += ", evaluated after " + std::to_string(evaluated);
  if (gathered)
    text += ", gathered after " + std::to_string(gathered);
  if (trouble)
    text += ", " + std::string(troubles[int(trouble->kind)]) + " at " + std::to_string(trouble->at) + " for rank " +
            std::to_string(trouble->rank) + " in step " + std::to_string(trouble->step);
  if (delays.fault)
    text += ", rank " + std::to_string(delays.fault->rank) + (delays.fault->vanishes ? " vanishes" : " fails") +
            " at call " + std::to_string(delays.fault->call);
  for (const Place &place : places)
    text += "\n  " + place.device + " with services " + std::to_string(place.services);
  return text;
}

//===----------------------------------------------------------------------===//
// Sessions
//===----------------------------------------------------------------------===//

static DeepModel deepModel(const Task &task, const std::string &optimizer) {
  return {.layers = task.layers, .rows = 16 * task.layers, .width = width, .isRandom = true, .optimizer = optimizer};
}

static PipelineModel cutModel(const Task &task) { return {.rows = 32, .width = width, .layers = task.layers}; }

/// Returns the modules, compiled once: the first call is made by one thread alone.
static const std::vector<SessionModule> &modulesOf(const Task &task, bool isInForward = false) {
  static std::map<std::tuple<bool, int, std::string>, std::vector<SessionModule>> compiled;
  std::string optimizer = task.optimizer + (isInForward ? ",in-forward=true" : "");
  std::vector<SessionModule> &modules = compiled[{task.isCut, task.layers, optimizer}];
  if (modules.empty() && task.isCut) { // fewer layers are some of these
    static std::map<std::string, std::vector<SessionModule>> all;
    std::vector<SessionModule> &most = all[optimizer];
    if (most.empty())
      most = PipelineModel{.rows = 32, .width = width, .optimizer = optimizer}.modules();
    modules.assign(most.begin(), most.begin() + 1 + task.layers);
    modules.push_back(most.back());
  } else if (modules.empty())
    modules = {{"deep", deepModel(task, optimizer).compiled()}};
  return modules;
}

static TensorMap batchOf(const Task &task, const DeviceRef &device, int64_t step, int batch) {
  if (task.isCut)
    return cutModel(task).batch(device, step, batch);
  return {{"x", randomTensor(device, {16 * task.layers, width}, uint32_t(100 * step + batch))}};
}

static Session makeSession(const Task &task, const Group &group, const DeviceRef &device, size_t service,
                           SessionOptions options) {
  options.maxGradNorm = task.maxGradNorm;
  if (task.isScaled)
    options.lossScaling = LossScaling{.scale = 1024};
  if (task.isCut)
    options.wires = cutModel(task).wires();
  options.seed += 11;
  options.sharding = group.sharding;
  options.stages = group.stages;
  if (!options.warn)
    options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
  Json section = *services[service] ? Json::parse(services[service]) : Json::object();
  if (!group.ring.empty())
    section.update(Json::parse(group.ring));
  if (!section.empty())
    options.config = Config::parse(Json{{"memory", {{"stagehand", section}}}}.dump(), "test");
  return Session(device, modulesOf(task, group.isInForward), std::move(options));
}

static void setValues(const Task &task, Session &session) {
  if (task.isCut)
    return cutModel(task).setValues(session);
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
}

/// Returns parameters, and nothing for those that another rank has.
static std::vector<std::vector<float>> parametersOf(Session &session) {
  std::vector<std::vector<float>> bits;
  std::vector<std::string> elsewhere = session.parametersElsewhere();
  for (const ParameterInfo &info : session.parameters())
    bits.push_back(std::ranges::count(elsewhere, info.key) ? std::vector<float>()
                                                           : values(session.parameter(info.key)));
  return bits;
}

/// Takes the next step with `count` batches from `first` on.
static StepResult takeStep(Session &session, const Task &task, int first, int count, bool oneByOne) {
  std::vector<TensorMap> batches;
  for (int batch = first; batch < first + count; ++batch)
    batches.push_back(batchOf(task, session.device(), session.stepCount(), batch));
  for (size_t i = 0; oneByOne && i < batches.size(); ++i)
    session.forwardBackward(batches[i]);
  return oneByOne ? session.optimize(1e-2) : session.step(batches, 1e-2);
}

/// Fills one batch of a step with NaN, where there is one.
static std::vector<TensorMap> batchesWithNan(Session &session, const Task &task, int first, int count, int bad) {
  std::vector<TensorMap> batches;
  for (int batch = first; batch < first + count; ++batch)
    batches.push_back(batchOf(task, session.device(), session.stepCount(), batch));
  if (bad >= 0)
    batches[size_t(bad % count)].at("x").data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  return batches;
}

static double evaluate(Session &session, const Task &task) {
  return session.evaluate(batchOf(task, session.device(), session.stepCount(), 77)).at("loss").item();
}

/// Returns the course of one rank with the batches of all. Where each rank adds up several by itself first, the order
/// of additions is theirs, and the course is that of ranks which do nothing else.
static const Course &expectedOf(const Task &task) {
  static std::map<Task, Course> known;
  auto [found, isNew] = known.try_emplace(task);
  if (!isNew)
    return found->second;
  modulesOf(task);
  auto train = [&](Session session, int rank, Course &course) {
    setValues(task, session);
    for (int step = 1; step <= steps; ++step) {
      auto [groups, each] = task.batchesIn(step);
      int first = rank < 0 ? 0 : rank * each, count = rank < 0 ? groups * each : each;
      if (task.skipped == step) {
        EXPECT_TRUE(session.step(batchesWithNan(session, task, first, count, rank > 0 ? -1 : 0), 1e-2).isSkipped);
      }
      StepResult result = takeStep(session, task, first, count, /*oneByOne=*/true);
      course.push_back({float(result.loss), float(result.gradNorm), evaluate(session, task), parametersOf(session)});
    }
  };
  const char *cpu = "cpu:threads=1";
  if (task.batches.areInOrder()) {
    train(makeSession(task, {}, Device::open(cpu), 0, {}), -1, found->second);
    return found->second;
  }
  std::vector<Course> courses(static_cast<size_t>(task.batches.groups));
  EXPECT_EQ(onRanks(task.batches.groups, cpu, [&](Rank &rank) {
    train(makeSession(task, {}, rank.device, 0, {.collectives = rank.together}), rank.number(),
          courses[size_t(rank.number())]);
  }),
            nothing(task.batches.groups));
  return found->second = courses[0];
}

/// Returns the device, which has a folder of its own if it has a disk.
static std::string withFolder(std::string device, std::optional<TemporaryFolder> &folder) {
  static constexpr std::string_view name = "FOLDER";
  if (size_t at = device.find(name); at != device.npos)
    device.replace(at, name.size(), folder.emplace().path.string());
  return device;
}

/// Returns the smallest memory in which each rank of such a group is planned on such a device.
static const std::vector<uint64_t> &leastDram(const std::string &device, size_t service, const Task &task,
                                              const Group &group) {
  using Key = std::tuple<std::string, size_t, bool, int, std::string, double, bool, Sharding, int, int,
                         std::vector<size_t>, std::string, bool>;
  static std::map<Key, std::vector<uint64_t>> known;
  auto [found, isNew] = known.try_emplace({device, service, task.isCut, task.layers, task.optimizer, task.maxGradNorm,
                                           task.isScaled, group.sharding, group.ranks, group.batches.each, group.stages,
                                           group.ring, group.isInForward});
  if (!isNew)
    return found->second;
  modulesOf(task, group.isInForward);
  std::optional<TemporaryFolder> folder;
  return found->second = leastOfEachRank(group.ranks, withFolder(device, folder), [&](Rank &rank) {
    Session session = makeSession(task, group, rank.device, service, {.collectives = rank.together});
    setValues(task, session);
    session.certify(size_t(group.batches.each));
  });
}

//===----------------------------------------------------------------------===//
// The draw
//===----------------------------------------------------------------------===//

namespace {
/// The chance of a run.
struct Chance {
  std::mt19937_64 random;
  size_t below(size_t count) { return size_t(random() % count); }
  int from(int least, int most) { return least + int(below(size_t(most - least + 1))); }
  bool percent(int share) { return from(0, 99) < share; }
};
} // namespace

static const std::string sims[] = {"sim:pinned=4MiB,threads=1", "sim:pinned=4MiB,threads=1,link=8GB/s",
                                   "sim:streams,pinned=4MiB,threads=1", "sim:pinned=4MiB,threads=1,adversarial=",
                                   "sim:streams,pinned=4MiB,threads=1,adversarial=",
                                   "sim:pinned=0,threads=1,adversarial="};
static const char *const aboveADisk = "cpu:threads=1,disk=FOLDER?capacity=64MiB";

static std::string drawSim(Chance &chance, size_t count) {
  std::string device = sims[chance.below(count)];
  return device + (device.back() == '=' ? std::to_string(chance.from(1, 1000)) : "");
}

static std::vector<size_t> drawStages(Chance &chance, int modules, int ranks) {
  std::vector<size_t> stages(size_t(ranks), 1);
  for (int left = modules - ranks; left > 0; --left)
    ++stages[chance.below(stages.size())];
  return stages;
}

static Place drawPlace(Chance &chance, const Task &task, const Group &group, int rank, bool areInline, bool isTight) {
  int kind = chance.from(0, 9);
  size_t service = chance.below(std::size(services));
  if (kind < 5 || (group.isInForward && service != planService))
    service = 0;
  bool isInline = group.gathers() ? areInline : kind == 0; // of ranks that gather all are, or none
  if (isInline)
    return {"cpu:threads=1"};
  bool isAboveADisk = kind % 5 == 0 && service;
  std::string like = isAboveADisk ? aboveADisk : sims[0];
  std::string device = isAboveADisk ? like : drawSim(chance, std::size(sims) - (service ? 1 : 0));
  uint64_t dram = 16 << 20;
  // A step whose batches are given one by one has no plan before its end.
  if (isTight && service && !group.oneByOne) {
    uint64_t least = leastDram(like, service, task, group)[size_t(rank)];
    dram = least + (chance.percent(50) ? least / 2 : 0);
  }
  return {device + ",dram=" + std::to_string(dram), service};
}

/// Draws a group of so many ranks, that takes steps of such batches.
static Group drawGroup(Chance &chance, const Task &task, Group group) {
  int layers = task.layers, modules = task.isCut ? layers + 2 : 1;
  if (group.isPipeline() && chance.percent(50))
    group.stages = drawStages(chance, modules, group.ranks);
  if (group.gathers() && chance.percent(60))
    group.ring = R"({"telemetry_enabled": false, "nan_inf_check": false, "prefetch_window_blocks": )" +
                 std::to_string(chance.from(0, 4)) + R"(, "max_inflight_transfers": )" +
                 std::to_string(chance.from(1, 3)) + "}";
  bool isWhole = group.sharding >= Sharding::Gradients && group.ranks > 1; // as its steps are
  group.oneByOne = !isWhole && chance.percent(30);
  bool mayBeInForward = group.sharding == Sharding::None && !task.isCut && task.optimizer == optimizers[0];
  group.isInForward = mayBeInForward && chance.percent(30);
  group.seedsDiffer = chance.percent(30);
  const uint64_t buckets[] = {40, 5000, 10000, 1 << 20};
  group.messages.bucketBytes = buckets[chance.below(4)];
  group.messages.bucketsUnderWay = chance.below(5);
  group.messages.addsInOrder = chance.percent(30);
  if (chance.percent(80))
    group.delays.seed = chance.below(1 << 20);
  bool areInline = chance.percent(20), areTight = chance.percent(30); // which takes long to find out
  for (int rank = 0; rank < group.ranks; ++rank)
    group.places.push_back(drawPlace(chance, task, group, rank, areInline, areTight && chance.percent(60)));
  if (chance.percent(30))
    group.evaluated = chance.from(group.first + 1, group.last);
  if (chance.percent(30))
    group.gathered = chance.from(group.first + 1, group.last);
  int rank = chance.from(0, group.ranks - 1), step = chance.from(group.first + 1, group.last);
  if (task.skipped > group.first && task.skipped <= group.last) {
    group.trouble = {Trouble::Kind::Nan, rank, task.skipped, chance.from(0, group.batches.each - 1)};
  } else if (chance.percent(30) && group.ranks > 1) {
    auto kind = Trouble::Kind(chance.from(0, 3));
    // A rank that fails while others gather knows what they wait for from the step before.
    bool isFirst = group.gathers() && step == group.first + 1;
    if (kind == Trouble::Kind::InBlock && (group.isInForward || isFirst))
      kind = Trouble::Kind::Shape;
    if (kind == Trouble::Kind::Count && !group.gathers() && !group.isPipeline())
      kind = Trouble::Kind::Shape;
    if (kind == Trouble::Kind::Nan && task.isScaled)
      kind = Trouble::Kind::Shape;
    group.trouble = {kind, rank, step,
                     kind == Trouble::Kind::InBlock ? chance.from(0, 2 * layers * group.batches.each - 1)
                     : isFirst                      ? 0
                                                    : chance.from(0, group.batches.each - 1)};
  } else if (chance.percent(20) && group.ranks > 1) {
    group.delays.fault = {rank, uint64_t(chance.from(8, isWhole ? 200 : 48)), chance.percent(20)};
  }
  if (group.delays.fault && group.delays.fault->vanishes)
    group.delays.timeoutSeconds = 1;
  return group;
}

/// Draws so many ranks with such a strategy, and their batches.
static Group drawRanks(Chance &chance, Sharding sharding, int modules) {
  Group group;
  group.sharding = sharding;
  group.ranks = chance.from(2, sharding == Sharding::Modules ? std::min(5, modules) : 5);
  group.batches = {group.ranks, chance.percent(50) ? 1 : chance.from(2, group.ranks > 3 ? 3 : 5)};
  if (sharding == Sharding::Modules)
    group.batches = {1, chance.from(1, 5)};
  return group;
}

static RandomRun drawRun(uint64_t seed) {
  Chance chance{std::mt19937_64(seed)};
  RandomRun run;
  Task &task = run.task;
  auto sharding = shardings[chance.below(std::size(shardings))];
  task.isCut = sharding == Sharding::Modules || chance.percent(30);
  task.layers = task.isCut ? chance.from(1, 3) : chance.from(2, 3);
  task.optimizer = optimizers[chance.below(std::size(optimizers) - task.isCut)]; // the last takes long to compile
  task.maxGradNorm = chance.percent(50) ? 1e-3 : 0;
  task.isScaled = chance.percent(20);
  Group group = drawRanks(chance, sharding, task.layers + 2);
  task.batches = group.batches;
  if (task.isScaled && chance.percent(50))
    task.skipped = chance.from(1, steps);
  std::optional<Group> next;
  if (chance.percent(25)) {
    task.handover = group.last = chance.from(1, steps - 1);
    // Sums of several batches of each rank are those of as many ranks.
    bool isInOrder = task.batches.areInOrder();
    sharding = shardings[chance.below(std::size(shardings) - (task.isCut && isInOrder ? 0 : 1))];
    next = drawRanks(chance, sharding, task.layers + 2);
    if (!isInOrder)
      next->ranks = group.ranks, next->batches = group.batches;
    else if (sharding != Sharding::Modules)
      next->batches.each = 1;
    if (isInOrder && chance.percent(15)) // one rank, which needs no other
      next->ranks = 1, next->batches = {1, chance.from(1, 5)};
    next->first = task.handover;
    task.then = next->batches;
    run.saved = chance.percent(50) ? "all.safetensors" : "parts/";
  }
  run.groups.push_back(drawGroup(chance, task, group));
  if (next)
    run.groups.push_back(drawGroup(chance, task, *next));
  return run;
}

//===----------------------------------------------------------------------===//
// The play
//===----------------------------------------------------------------------===//

namespace {
/// A rank of a group, that takes its steps.
class RandomRank {
public:
  RandomRank(const RandomRun &run, const Group &group, int rank, const std::string &saved, const Course &expected,
             std::atomic<int> &failures)
      : task_(run.task), group_(group), rank_(rank), saved_(saved), expected_(expected), failures_(failures) {}

  /// Trains, and checks what each step has given.
  void train(std::shared_ptr<Transport> transport) {
    const Place &place = group_.places[size_t(rank_)];
    DeviceRef device = Device::open(withFolder(place.device, folder_));
    SessionOptions options{.seed = group_.seedsDiffer ? rank_ : 0,
                           .collectives = makeCollectives(device, std::move(transport), group_.messages),
                           .events = &fails_};
    if (group_.trouble || group_.oneByOne || group_.delays.fault) // such steps are not those that were planned
      options.warn = [](const std::string &) {};
    Session session = makeSession(task_, group_, device, place.services, std::move(options));
    if (group_.first) {
      session.load(saved_);
      EXPECT_EQ(session.stepCount(), group_.first);
      expectAsAfter({group_.first}, session, "loaded");
    } else {
      setValues(task_, session);
    }
    int step = group_.first + 1;
    try {
      for (; step <= group_.last; ++step)
        train(session, step);
      // A file of what all have is written by one, as by its trainer.
      bool isOfAll = group_.sharding == Sharding::None && !saved_.ends_with('/');
      if (group_.last < steps && (rank_ == 0 || !isOfAll))
        session.save(saved_);
    } catch (const Error &error) {
      if (!group_.delays.fault)
        throw;
      // Those of the step before or of this one, or none: a rank may hear of the fault when it has sent its updates.
      auto [code, what] = errorOf([&] { parametersOf(session); });
      if (code != ErrorCode::StateTorn) {
        EXPECT_EQ(code, ErrorCode(-1)) << what;
        expectAsAfter({step - 1, step}, session, error.what());
      }
      throw;
    }
    expectAsAfter({group_.last}, session, "at the end");
    EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), device->memory().budget(Space::DeviceDram));
  }

private:
  void train(Session &session, int step) {
    const Outcome &expected = expected_[size_t(step - 1)];
    std::optional<StepResult> taken;
    if (group_.trouble && group_.trouble->step == step)
      taken = tryStep(session, *group_.trouble);
    if (!taken) {
      expectAsAfter({step - 1}, session, "no rank has taken this step");
      EXPECT_EQ(session.stepCount(), step - 1);
    }
    StepResult result = taken ? *taken : takeStep(session, task_, first(), count(), group_.oneByOne);
    EXPECT_EQ(float(result.loss), expected.loss) << "step " << step;
    EXPECT_EQ(float(result.gradNorm), expected.norm) << "step " << step;
    if (group_.evaluated == step) {
      double loss = evaluate(session, task_);
      EXPECT_TRUE(loss == expected.evaluated || (rank_ && !group_.isPipeline())) // whose random numbers are others
          << "evaluated after step " << step << ": " << loss << ", and not " << expected.evaluated;
    }
    if (group_.gathered == step) {
      std::vector<std::vector<float>> found;
      session.gatherParameters([&](const ParameterInfo &, const Tensor &value) { found.push_back(values(value)); });
      EXPECT_TRUE(found == expected.parameters) << "gathered after step " << step;
    }
  }

  /// Takes a step that no rank finishes, or that all skip. Returns what it gives where it ends before the trouble.
  std::optional<StepResult> tryStep(Session &session, const Trouble &trouble) {
    bool isOwn = trouble.rank == rank_;
    StepResult result;
    auto [code, what] = errorOf([&] {
      switch (trouble.kind) {
      case Trouble::Kind::Shape: {
        std::vector<TensorMap> batches = batchesWithNan(session, task_, first(), count(), -1);
        if (isOwn)
          batches[size_t(trouble.at)].at("x") = randomTensor(session.device(), {3, 5}, 1);
        result = session.step(batches, 1e-2);
        break;
      }
      case Trouble::Kind::Count:
        result = session.step(batchesWithNan(session, task_, first(), count() + isOwn, -1), 1e-2);
        break;
      case Trouble::Kind::Nan: {
        bool isBad = isOwn || group_.isPipeline(); // whose batches are those of all
        result = session.step(batchesWithNan(session, task_, first(), count(), isBad ? trouble.at : -1), 1e-2);
        break;
      }
      case Trouble::Kind::InBlock:
        fails_.left = isOwn ? trouble.at : -1;
        result = takeStep(session, task_, first(), count(), group_.oneByOne);
      }
    });
    bool isFailed = code != ErrorCode(-1);
    failures_ += isFailed;
    if (trouble.kind == Trouble::Kind::Nan && task_.isScaled) {
      EXPECT_TRUE(!isFailed && result.isSkipped) << what;
      return std::nullopt;
    }
    fails_.left = -1;
    if (!isFailed && trouble.kind == Trouble::Kind::InBlock)
      return result;
    std::string step = std::to_string(trouble.step);
    auto isSaid = [&](const std::string &words) { return what.find(words) != what.npos; };
    EXPECT_TRUE(isFailed) << "all have taken step " << step;
    bool differs =
        trouble.kind == Trouble::Kind::Count || (trouble.kind == Trouble::Kind::Shape && group_.isPipeline());
    if (differs) { // which every rank finds
      EXPECT_EQ(code, ErrorCode::RankFailed) << what;
      EXPECT_TRUE(isSaid("step " + step + ": rank 0 has ")) << what;
    } else if (group_.isPipeline() && trouble.kind == Trouble::Kind::Nan) {
      EXPECT_TRUE(isSaid("the loss is nan")) << what;
    } else {
      EXPECT_EQ(code == ErrorCode::RankFailed, !isOwn) << what;
      EXPECT_TRUE(isOwn || isSaid("rank " + std::to_string(trouble.rank) + " cannot take step " + step)) << what;
    }
    return std::nullopt;
  }

  /// Fails where parameters that this rank has are of none of these steps.
  void expectAsAfter(std::initializer_list<int> taken, Session &session, const std::string &why) {
    std::vector<std::vector<float>> own = parametersOf(session);
    bool isAny = std::ranges::any_of(taken, [&](int step) {
      for (size_t slot = 0; slot < own.size() && step > 0; ++slot)
        if (!own[slot].empty() && own[slot] != expected_[size_t(step - 1)].parameters[slot])
          return false;
      return true;
    });
    EXPECT_TRUE(isAny) << "parameters of rank " << rank_ << " are not those of step " << *taken.begin() << ": " << why;
  }

  int first() const { return group_.firstOf(rank_); }
  int count() const { return group_.batches.each; }

  const Task &task_;
  const Group &group_;
  const int rank_;
  const std::string &saved_;
  const Course &expected_;
  std::atomic<int> &failures_;
  FailsInBlock fails_;
  std::optional<TemporaryFolder> folder_;
};
} // namespace

/// Trains by `run`, checks each rank, and returns what each has thrown at its end.
static std::vector<std::string> train(const RandomRun &run, const Group &group, const std::string &saved) {
  const Course &expected = expectedOf(run.task);
  std::vector<std::shared_ptr<Transport>> ends = inProcessRanks(group.ranks, group.delays);
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (size_t rank = 0; rank < ends.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        RandomRank(run, group, int(rank), saved, expected, failures).train(std::move(ends[rank]));
      } catch (const std::exception &error) {
        thrown[rank] = error.what();
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_TRUE(failures == 0 || failures == group.ranks) << failures << " ranks could not take a step";
  return thrown;
}

/// Returns true if there is a whole checkpoint.
static bool hasCheckpoint(const std::string &path) {
  return std::filesystem::is_regular_file(path.ends_with('/') ? path + "model.safetensors.index.json" : path);
}

// What a step that another rank could not take had brought to the device, is in nobody's way in the least memory.
TEST(RandomRanks, AfterAStepOfNobodyTheLeastMemoryIsEnough) {
  for (size_t service = 1; service < std::size(services); ++service)
    for (int batches : {1, 2})
      for (int step : {2, 3})
        for (Sharding sharding : {Sharding::None, Sharding::States, Sharding::Gradients}) {
          RandomRun run{.task = {.layers = 3, .optimizer = optimizers[0], .batches = {2, batches}}};
          Group group{.sharding = sharding, .batches = run.task.batches};
          std::string device = "sim:pinned=4MiB,threads=1";
          uint64_t least = std::ranges::max(leastDram(device, service, run.task, group));
          group.places = {{device + ",link=8GB/s,dram=" + std::to_string(least), service}, {"cpu:threads=1"}};
          group.trouble = {Trouble::Kind::Shape, 1, step};
          run.groups = {group};
          EXPECT_EQ(train(run, group, ""), nothing(2)) << run.text();
        }
}

TEST(RandomRanks, EachHasTheBitsOfOneRankWithAllBatches) {
  auto number = [](const char *name, uint64_t absent) {
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : absent;
  };
  bool isAll = !std::getenv("SEGUE_RANK_RUN");
  uint64_t begin = number("SEGUE_RANK_RUN", 0), end = begin + number("SEGUE_RANK_RUNS", isAll ? usualRuns : 1);
  uint64_t failed = 0, tried = 0, handed = 0;
  for (uint64_t seed = begin; seed < end; ++seed) {
    RandomRun run = drawRun(seed);
    TemporaryFolder folder;
    std::string saved = (folder.path / run.saved).string() + (run.saved.ends_with('/') ? "/" : "");
    for (const Group &group : run.groups) {
      if (group.first && !hasCheckpoint(saved)) // a rank has failed before it was written
        break;
      std::vector<std::string> thrown = train(run, group, saved);
      bool isOver = thrown != nothing(group.ranks);
      tried += group.trouble.has_value();
      failed += isOver;
      handed += group.first > 0;
      if (!group.delays.fault) {
        EXPECT_EQ(thrown, nothing(group.ranks));
      }
      for (size_t rank = 0; rank < thrown.size() && isOver && group.delays.fault; ++rank) {
        // Who has come to the end has all parameters: the fault came behind that, or to what others were to get.
        bool isNamed = thrown[rank].starts_with("RANK_FAILED") || thrown[rank].starts_with("STATE_TORN");
        EXPECT_TRUE(thrown[rank].empty() || isNamed) << thrown[rank];
      }
      ASSERT_FALSE(HasFailure()) << "SEGUE_RANK_RUN=" << seed << ": " << run.text();
    }
  }
  if (isAll && end >= usualRuns) { // of a few runs none may be of a kind
    EXPECT_GT(tried, end / 20);
    EXPECT_GT(failed, end / 20);
    EXPECT_GT(handed, end / 20);
  }
}
