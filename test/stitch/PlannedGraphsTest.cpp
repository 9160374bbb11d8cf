//===- PlannedGraphsTest.cpp - a budget is a promise, for any graph -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Random training graphs, compiled with their optimizer and planned for ten
// budgets each: what a played step holds is at most what the plan says, and that
// at most the budget; a smaller budget never uses more; one below the smallest
// is refused with the smallest. Some graphs also train, five steps on a device that
// has the budget and not a byte more: with the losses and the parameters of the run
// without services, to the bit, and each block at its planned address. The run without
// services has the memory that it was said to take, and no more. Each of them also trains
// in a mode that is drawn, nothing leaving, by watermarks, with its parameters through
// a ring, or planned beside a ring, under caps that are drawn: to the same bits, or it is
// refused before the first step with the smallest cap that does.
//
//   SEGUE_PLANS=1000 SegueRandomStitchTests --gtest_filter='PlannedGraphs*'
//   SEGUE_PLAN=17 ...                                     this one
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "ErrorOf.h"
#include "RandomModel.h"
#include "segue/runtime/Session/StepTwin.h"
#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

using namespace segue;
using namespace segue::test;
using namespace std::chrono_literals;
using Random = std::mt19937_64;

static constexpr int budgets = 10;
/// Every so many graphs, one trains.
static constexpr int64_t trainedEvery = 6;
/// Graphs that a long run has found, which train in every check.
static constexpr int64_t foundBefore[] = {61, 74, 122, 134, 397, 424, 462, 485};

/// Ends in the sum of the squares' means of whatever `model` computes.
static std::string trainingText(RandomModel model) {
  auto add = [&](std::vector<int64_t> shape, std::vector<size_t> operands, const auto &text) {
    model.values.push_back({ModelValue::Kind::Result, std::move(shape)});
    size_t result = model.values.size() - 1;
    model.ops.push_back({text("%" + valueName(result)), std::move(operands), result});
    return result;
  };
  std::optional<size_t> loss;
  for (size_t output : std::exchange(model.outputs, {})) {
    ModelValue value = model.values[output];
    std::string x = "%" + valueName(output), type = tensorType(value.shape, value.element);
    if (value.element != "f32") {
      output = add(value.shape, {output}, [&](const std::string &r) {
        return r + " = segue.cast " + x + " : " + type + " -> " + tensorType(value.shape, "f32");
      });
      x = "%" + valueName(output);
      type = tensorType(value.shape, "f32");
    }
    size_t part = add(value.shape, {output},
                      [&](const std::string &r) { return r + " = segue.mul " + x + ", " + x + " : " + type; });
    if (!value.shape.empty()) {
      std::string dims;
      for (size_t dim = 0; dim < value.shape.size(); ++dim)
        dims += (dim ? ", " : "") + std::to_string(dim);
      part = add({}, {part}, [&](const std::string &r) {
        return r + " = segue.reduce mean %" + valueName(part) + " dims [" + dims + "] : " + type + " -> tensor<f32>";
      });
    }
    loss = !loss ? part : add({}, {*loss, part}, [&](const std::string &r) {
      return r + " = segue.add %" + valueName(*loss) + ", %" + valueName(part) + " : tensor<f32>";
    });
  }
  model.outputs = {*loss};
  std::string text = ModelPiece(model, 0, model.ops.size()).text(model, {});
  std::string name = "segue.name = \"" + valueName(*loss) + "\"";
  return text.replace(text.find(name), name.size(), "segue.name = \"loss\"");
}

/// In three blocks, one after another.
static std::string inBlocks(const std::string &text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(line);
  std::string blocks;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string &line = lines[i];
    if (size_t colon = line.rfind(" : "); line.find(" = segue.") != line.npos && colon != line.npos)
      line.insert(colon, " {segue.block = \"b." + std::to_string(3 * i / lines.size()) + "\"}");
    blocks += line + "\n";
  }
  return blocks;
}

namespace {
enum class Mode { None, Watermarks, Ring, PlannedWithRing, Planned };

constexpr bool hasRing(Mode mode) { return mode == Mode::Ring || mode == Mode::PlannedWithRing; }

/// Sections of a config under a cap; none: nothing is asked.
/// Watermarks are of `watermarkBytes`, which stay where they are for what is named.
std::string configOf(Mode mode, uint64_t capBytes, uint64_t watermarkBytes) {
  if (mode == Mode::None)
    return "";
  std::ostringstream text;
  text.precision(17);
  double cap = double(capBytes) / 1048576;
  text << R"({"memory": {"stagehand": {"telemetry_enabled": false,
    "conductor_config": {"enabled": true, "telemetry_enabled": false, "vram_hard_cap_mb": )"
       << cap << R"(, "vram_soft_cap_mb": )" << cap << "}";
  // Any key of its own turns Weight Stagehand on, unless this one turns it off.
  text << R"(, "fail_on_dtype_promotion": false, "stagehand_enabled": )" << (hasRing(mode) ? "true" : "false");
  if (mode == Mode::Watermarks)
    text << R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
      "pinned_pool_classes_mb": [1, 4], "slabs_per_class": 4, "vram_low_watermark_mb": 0, "vram_high_watermark_mb": )"
         << double(watermarkBytes) / 1048576 << "}";
  if (mode == Mode::Planned || mode == Mode::PlannedWithRing)
    text << R"(, "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false})";
  text << "}}}";
  return text.str();
}

/// Copies to the host begin by so much later in each phase that what leaves may be needed
/// before it has left.
struct LateCopies final : EventSink {
  LateCopies(DeviceRef device, std::chrono::milliseconds delay) : device(std::move(device)), delay(delay) {}
  void receive(const Event &event) override {
    if (std::holds_alternative<event::PhaseBegin>(event))
      device->enqueueCall(
          Queue::DeviceToHost, {}, [delay = delay] { std::this_thread::sleep_for(delay); }, "late");
  }
  DeviceRef device;
  std::chrono::milliseconds delay;
};

class Graph {
public:
  explicit Graph(int64_t seed) : random(uint64_t(seed) * 7919 + 1), mode(Mode(seed / trainedEvery % 4)) {
    do {
      model = RandomModel::make(random, /*scale=*/16);
    } while (std::ranges::none_of(model.values, [](const ModelValue &value) {
      return value.kind == ModelValue::Kind::Parameter; // something has to be trained
    }));
    text = trainingText(model);
    if (hasRing(mode) || mode == Mode::Watermarks)
      text = inBlocks(text);
    CompileOptions options;
    options.name = "graph";
    options.training = true;
    options.optimizer = "adamw";
    options.v4 = false;
    options.threads = 1;
    CompiledModule compiled(text, options);
    if (!compiled.binary)
      throw std::runtime_error(compiled.diagnostics + "in\n" + text);
    binary = *compiled.binary;
    microBatches = 1 + size_t(seed % 2);
  }

  StepTwin twin(const std::string &device) const { return StepTwin(device, {{"graph", *binary}}, {}, microBatches); }

  struct Run {
    std::vector<float> bits;
    uint64_t peak = 0;
    AddressFigures addresses;
    /// Slots of the ring.
    int64_t slots = 0;
    /// Gradients and states that left in the last step, without a plan.
    int64_t statesLeft = 0;
    /// Saved tensors that were told to leave; that came back over the link; that stayed where they
    /// lay, since they were needed before they had left.
    int64_t spilled = 0, restored = 0, rescued = 0;
  };

  /// Five steps under a cap, on a device of just as much.
  Run train(const std::string &rest, uint64_t cap, Mode mode, uint64_t watermark = 0,
            std::chrono::milliseconds delay = 0ms) const {
    DeviceRef device = Device::open("sim:dram=" + std::to_string(cap) + rest);
    SessionOptions options;
    LateCopies late(device, delay);
    options.events = delay > 0ms ? &late : nullptr;
    options.warn = [](const std::string &) {};
    if (std::string config = configOf(mode, cap, watermark); !config.empty())
      options.config = Config::parse(config, "test");
    Session session(device, {{"graph", *binary}}, std::move(options));
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    device->memory().resetPeak();
    Run run;
    for (uint32_t step = 0; step < 5; ++step) {
      std::vector<TensorMap> batches(microBatches);
      for (TensorMap &batch : batches)
        for (const Value &input : session.modules()[0].inputs())
          batch[input.name] = inputFor(device, input, 100 * step + uint32_t(&batch - batches.data()));
      run.bits.push_back(float(session.step(batches, 1e-2).loss));
      if (const MemoryServices *services = session.services(); services && mode == Mode::Planned) {
        nlohmann::ordered_json record = services->activationRecord();
        run.spilled += record["activations_spilled"].get<int64_t>();
        run.restored += record["activations_restored"].get<int64_t>();
        run.rescued += record["activations_rescued"].get<int64_t>();
      }
    }
    run.peak = device->memory().peakBytes(Space::DeviceDram);
    if (const MemoryServices *services = session.services(); services && services->weights())
      run.slots = services->weights()->slots();
    if (const MemoryServices *services = session.services(); services && !services->stateRecord().is_null())
      run.statesLeft = services->stateRecord()["left"];
    run.addresses = device->memory().addressFigures();
    for (const ParameterInfo &info : session.parameters())
      for (float value : values(session.parameter(info.key)))
        run.bits.push_back(value);
    return run;
  }

  Random random;
  RandomModel model;
  std::string text;
  std::optional<Binary> binary;
  size_t microBatches = 1;
  Mode mode;

private:
  Tensor inputFor(const DeviceRef &device, const Value &input, uint32_t seed) const {
    if (input.desc().element == ElementType::f32)
      return randomTensor(device, input.desc().shape, seed);
    int64_t bound = 1;
    for (size_t i = 0; i < model.values.size(); ++i)
      if (valueName(i) == input.name)
        bound = model.values[i].bound;
    Tensor tensor = Tensor::onHost(device, input.desc().shape, ElementType::i64);
    for (uint64_t i = 0; i < tensor.elementCount(); ++i)
      tensor.data<int64_t>()[i] = int64_t((seed + 31 * i) % uint64_t(bound));
    return tensor;
  }
};
} // namespace

static bool sameBits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

static void checkRefused(const ResidencyPlanner &planner) {
  uint64_t least = planner.smallestBudget();
  try {
    planner.plan(least - 1);
    ADD_FAILURE() << "a plan for less than the least";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::BudgetInfeasible);
    EXPECT_NE(std::string(error.what()).find("the smallest budget is " + std::to_string(least) + " bytes"),
              std::string::npos)
        << error.what();
  }
}

static uint64_t budgetOf(const ResidencyPlanner &planner, int i) {
  uint64_t least = planner.smallestBudget(), most = planner.unconstrained().peakBytes;
  return least + (most - least) * uint64_t(i) / (budgets - 1);
}

namespace {
/// Counts over the plans that were played.
struct Planned {
  /// Tensors that could leave; tensors that were computed again.
  size_t canLeave = 0;
  uint64_t remade = 0;
};
} // namespace

static void plan(const Graph &graph, int64_t seed, Planned &all) {
  // Over the slower link most of what can be is computed again.
  const char *link = seed % 2 ? "20MB/s,latency=200us" : "1GB/s,latency=1us";
  StepTwin twin = graph.twin(std::string("sim:virtual,dram=64MiB,pinned=64MiB,link=") + link);
  ResidencyPlanner planner(twin.record());
  checkRefused(planner);
  uint64_t planned = 0, played = 0;
  for (int i = 0; i < budgets; ++i) {
    uint64_t budget = budgetOf(planner, i);
    const ResidencyPlan &plan = planner.plan(budget);
    StepTwin::Played step = twin.play(planner.profile(), plan);
    EXPECT_LE(step.peakBytes, plan.peakBytes) << "budget " << budget;
    EXPECT_LE(plan.peakBytes, budget);
    EXPECT_GE(plan.peakBytes, planned) << "budget " << budget << ": a smaller one used more";
    EXPECT_GE(step.peakBytes, played) << "budget " << budget << ": a smaller one used more";
    auto isMoved = [&](const Departure &departure) {
      return planner.profile().gaps[departure.gap].resident == noIndex && !departure.isRemade;
    };
    EXPECT_EQ(int64_t(step.left), std::ranges::count_if(plan.away, isMoved));
    EXPECT_EQ(int64_t(step.remade), std::ranges::count_if(plan.away, &Departure::isRemade));
    all.remade += step.remade;
    planned = plan.peakBytes;
    played = step.peakBytes;
  }
  all.canLeave += planner.profile().gaps.size();
}

namespace {
/// Figures of the runs in modes that were drawn.
struct Drawn {
  int runs = 0, refused = 0;
  int64_t slots = 0, statesLeft = 0;
};
} // namespace

static void trainDrawn(const Graph &graph, const std::string &rest, uint64_t least, uint64_t most,
                       const Graph::Run &free, Drawn &drawn) {
  // A trial leaves a part in 256 of a budget for what lies between blocks: of less than
  // this it would be less than what the alignment of one block may take.
  if (most < 256 * 64)
    return;
  Random random(graph.random);
  for (int i = 0; i < 2; ++i) {
    uint64_t cap = least / 2 + random() % (most - least / 2), watermark = cap / 2;
    SCOPED_TRACE("mode " + std::to_string(int(graph.mode)) + ", cap " + std::to_string(cap));
    std::optional<Graph::Run> run;
    // A session that is refused when it is made knows of one batch; the step may have more.
    for (size_t refusals = 0; !run; ++refusals)
      try {
        run = graph.train(rest, cap, graph.mode, watermark);
        drawn.refused += refusals > 0;
      } catch (const Error &error) {
        ASSERT_EQ(error.code(), ErrorCode::BudgetInfeasible) << error.what();
        ASSERT_LT(refusals, graph.microBatches) << error.what();
        uint64_t named = smallestNamed(error.what());
        ASSERT_GT(named, cap) << error.what();
        cap = named;
      }
    EXPECT_TRUE(sameBits(run->bits, free.bits)) << "loss " << run->bits[0] << ", not " << free.bits[0];
    EXPECT_LE(run->peak, cap);
    drawn.slots += run->slots;
    drawn.statesLeft += run->statesLeft;
    ++drawn.runs;
  }
}

static void train(const Graph &graph, int64_t seed, Drawn &drawn) {
  std::string rest = ",pinned=64MiB,link=8GB/s,latency=1us,threads=1";
  if (seed % (2 * trainedEvery) == 0)
    rest += ",adversarial=" + std::to_string(1 + seed);
  if (seed % (4 * trainedEvery) < 2 * trainedEvery)
    rest += ",streams";
  std::string roomy = "sim:dram=64MiB" + rest;
  StepTwin twin = graph.twin(virtualTwin(*Device::open(roomy)));
  ResidencyPlanner planner(twin.record());
  uint64_t least = certify(twin, planner, 0).bytes;
  uint64_t most = certified(twin, planner, planner.unconstrained(), 0).bytes;
  ASSERT_LE(least, most) << "the smallest budget is more than nothing that leaves takes";
  uint64_t enough = bytesWithoutServices(virtualTwin(*Device::open(roomy)), {{"graph", *graph.binary}}, {},
                                         graph.microBatches);
  Graph::Run free = graph.train(rest, enough, Mode::None);
  bool isThorough = std::getenv("SEGUE_PLANS");
  for (int i = 0; i < budgets; i += isThorough ? 1 : budgets / 2 - 1) {
    uint64_t cap = least + (most - least) * uint64_t(i) / (budgets - 1);
    SCOPED_TRACE("cap " + std::to_string(cap));
    Graph::Run run = graph.train(rest, cap, Mode::Planned);
    EXPECT_TRUE(sameBits(run.bits, free.bits)) << "loss " << run.bits[0] << ", not " << free.bits[0];
    EXPECT_LE(run.peak, cap);
    EXPECT_EQ(run.addresses.displaced, 0u) << run.addresses.lastDisplaced;
  }
  trainDrawn(graph, rest, least, enough, free, drawn);
}

TEST(PlannedGraphs, EveryBudgetIsKept) {
  const char *only = std::getenv("SEGUE_PLAN"), *number = std::getenv("SEGUE_PLANS");
  int64_t begin = only ? std::atoll(only) : 0, end = only ? begin + 1 : number ? std::atoll(number) : 60;
  Planned planned;
  size_t trained = 0;
  Drawn drawn;
  auto check = [&](int64_t seed, bool trains) {
    SCOPED_TRACE("SEGUE_PLAN=" + std::to_string(seed));
    try {
      Graph graph(seed);
      plan(graph, seed, planned);
      if (trains) {
        train(graph, seed, drawn);
        ++trained;
      }
      if (testing::Test::HasFailure())
        std::fprintf(stderr, "%s\n", graph.text.c_str());
    } catch (const std::exception &error) {
      ADD_FAILURE() << error.what();
    }
  };
  for (int64_t seed = begin; seed < end && !testing::Test::HasFailure(); ++seed)
    check(seed, only || number || seed % trainedEvery == 0);
  for (int64_t seed : foundBefore)
    if (!only && !number)
      check(seed, /*trains=*/true);
  std::printf("%lld graphs, %d budgets each, %zu tensors that can leave, %llu computed again; %zu graphs trained; "
              "%d runs in other modes, %d of them refused first, %lld slots in rings, %lld gradients and states left\n",
              (long long)(end - begin), budgets, planned.canLeave, (unsigned long long)planned.remade, trained,
              drawn.runs, drawn.refused, (long long)drawn.slots, (long long)drawn.statesLeft);
  if (!only) {
    EXPECT_GT(drawn.refused, 0);
    EXPECT_GT(drawn.slots, 0);
    EXPECT_GT(drawn.statesLeft, 0);
    EXPECT_GT(planned.canLeave, size_t(end - begin)) << "graphs in which nothing leaves show nothing";
    EXPECT_GT(planned.remade, uint64_t(end - begin) / 3) << "little was computed again";
  }
}

// A plan may leave the address of a tensor alone until that is needed again, where others
// that leave at the same time make the room. If its copy has not ended by then, it stays
// where it lies, and does not come over the link.
TEST(PlannedGraphs, WhatIsNeededWhileItLeavesStays) {
  for (int64_t seed : {79}) // which has such a plan for the least memory
    for (const char *manner : {"", ",streams"}) {
      SCOPED_TRACE("SEGUE_PLAN=" + std::to_string(seed) + manner);
      Graph graph(seed);
      std::string rest = std::string(",pinned=64MiB,link=8GB/s,latency=1us,threads=1") + manner;
      StepTwin twin = graph.twin(virtualTwin(*Device::open("sim:dram=64MiB" + rest)));
      ResidencyPlanner planner(twin.record());
      uint64_t least = certify(twin, planner, 0).bytes;
      Graph::Run free = graph.train(rest, 64 << 20, Mode::None);
      int64_t rescued = 0;
      // On a busy machine copies that were to be late may come in time: later, then.
      for (auto delay = 25ms; delay < 1s && !rescued; delay *= 2) {
        Graph::Run run = graph.train(rest, least, Mode::Planned, /*watermark=*/0, delay);
        EXPECT_TRUE(sameBits(run.bits, free.bits));
        EXPECT_LE(run.peak, least);
        EXPECT_EQ(run.addresses.displaced, 0u) << run.addresses.lastDisplaced;
        EXPECT_EQ(run.spilled, run.restored + run.rescued);
        rescued = run.rescued;
      }
      EXPECT_GT(rescued, 0);
    }
}
