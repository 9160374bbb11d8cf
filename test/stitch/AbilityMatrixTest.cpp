//===- AbilityMatrixTest.cpp - every mode has every ability ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The table of docs/specs/README.md, cell by cell: each test turns one mode on, trains
// where the ability must show, and reads it off from what the run has left behind.
// Losses and parameters are those of a run without services, to the bit.
//
//===----------------------------------------------------------------------===//

#include "DeepModel.h"
#include "ErrorOf.h"
#include "StreamedModel.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Plan/PlannedResidency.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/StepTwin.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

using namespace segue;
using namespace std::chrono_literals;
using segue::test::DeepModel;

static constexpr DeepModel model{.layers = 6, .rows = 256, .width = 64};
static constexpr int steps = 4;
static constexpr uint64_t weightBytes = 64 * 64 * 4, savedBytes = 256 * 64 * 4;

namespace {
/// How tensors leave: activations by watermarks or by a plan, weights through a ring.
enum class Mode { Watermarks, Plan, Ring, WatermarksAndRing, PlanAndRing };

constexpr auto allModes = {Mode::Watermarks, Mode::Plan, Mode::Ring, Mode::WatermarksAndRing, Mode::PlanAndRing};

struct Cell {
  Mode mode;
  const char *device; // begins a spec
};

bool spills(Mode mode) { return mode == Mode::Watermarks || mode == Mode::WatermarksAndRing; }
bool plans(Mode mode) { return mode == Mode::Plan || mode == Mode::PlanAndRing; }
bool streams(Mode mode) { return mode != Mode::Watermarks && mode != Mode::Plan; }

std::string cellName(const testing::TestParamInfo<Cell> &info) {
  static constexpr const char *modes[] = {"Watermarks", "Plan", "Ring", "WatermarksAndRing", "PlanAndRing"};
  std::string device = info.param.device;
  return std::string(modes[size_t(info.param.mode)]) + (device == "sim:" ? "" : "OnStreams");
}

const Binary &binary() {
  static const Binary file = model.compiled();
  return file;
}

/// Copies to the host begin late in each step: what leaves is needed before it has left,
/// unless the host is so slow that even they come in time.
struct LateCopies final : ForwardEvents {
  DeviceRef device; // null: they do not
  std::chrono::milliseconds delay{100};
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    forward(begin);
    if (device && begin.phase == Phase::Forward)
      device->enqueueCall(
          Queue::DeviceToHost, {}, [delay = delay] { std::this_thread::sleep_for(delay); }, "late");
  }
  void on(const auto &other) { forward(other); }
};

struct Trained {
  std::vector<float> bits;
  uint64_t peak = 0, certified = 0;
  /// Bytes of optimizer states on the device after the last step.
  uint64_t states = 0;
  int64_t slots = 0;
  /// The records of all steps, added up.
  std::map<std::string, int64_t> activations, weights;
};

class AbilityMatrix : public testing::TestWithParam<Cell> {
protected:
  Mode mode() const { return GetParam().mode; }

  /// Everything leaves that may, by the rules of the mode; `activation` says more.
  Json sections(const Json &activation = Json::object()) const {
    Json stagehand = Json::object();
    if (spills(mode()))
      stagehand["activation_stagehand"] = {{"enabled", true},
                                           {"telemetry_enabled", false},
                                           {"min_spill_bytes", 0},
                                           {"pinned_pool_classes_mb", {1}},
                                           {"slabs_per_class", int(model.layers)},
                                           {"vram_high_watermark_mb", 0.001},
                                           {"vram_low_watermark_mb", 0}};
    if (plans(mode()))
      stagehand["activation_stagehand"] = {{"enabled", true}, {"mode", "planned"}, {"telemetry_enabled", false}};
    if (spills(mode()) || plans(mode()))
      stagehand["activation_stagehand"].update(activation);
    if (streams(mode()))
      stagehand.update(
          {{"telemetry_enabled", false}, {"prefetch_window_blocks", 1}, {"vram_high_watermark_mb", ringHighMiB}});
    return stagehand;
  }

  /// Over a link so slow that computing again is faster.
  Json sectionsThatRecompute() {
    link = "link=100MB/s";
    Json stagehand = sections();
    if (spills(mode()))
      stagehand["activation_stagehand"]["recompute_threshold_bytes"] = savedBytes + 1;
    return stagehand;
  }

  DeviceRef open(uint64_t dramBytes) const {
    return Device::open(GetParam().device + std::string("dram=") + std::to_string(dramBytes) +
                        ",pinned=64MiB,latency=10us,threads=1," + link);
  }

  Session make(const DeviceRef &device, const Json &stagehand) {
    SessionOptions options;
    options.events = late.device ? &late : nullptr;
    options.recordEvents = stagehand.empty() ? std::filesystem::path() : logs;
    options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
    if (!stagehand.empty())
      options.config = Config::parse(Json{{"memory", {{"stagehand", stagehand}}}}.dump(), "test");
    Session session(device, {{"deep", binary()}}, std::move(options));
    setParameters(session);
    return session;
  }

  static void setParameters(Session &session) {
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
  }
  static float stepOnce(Session &session, uint32_t step) {
    TensorMap batch{{"x", randomTensor(session.device(), {model.rows, model.width}, 100 + step)}};
    return float(session.step(batch, 1e-2).loss);
  }
  static void addParameters(Session &session, std::vector<float> &bits) {
    for (const ParameterInfo &info : session.parameters())
      for (float value : values(session.parameter(info.key)))
        bits.push_back(value);
  }

  /// With no sections: without services. `certifies`: before the first step.
  Trained train(uint64_t dramBytes, const Json &stagehand, bool certifies = false) {
    DeviceRef device = open(dramBytes);
    if (isLate && !stagehand.empty())
      late.device = device;
    Session session = make(device, stagehand);
    Trained run;
    if (certifies)
      run.certified = session.certify();
    device->memory().resetPeak();
    auto add = [](std::map<std::string, int64_t> &sums, const Json &record) {
      for (const auto &[key, value] : record.items())
        if (value.is_number_integer())
          sums[key] += value.get<int64_t>();
    };
    for (uint32_t step = 0; step < steps; ++step) {
      run.bits.push_back(stepOnce(session, step));
      if (!session.services())
        continue;
      add(run.activations, session.services()->activationRecord());
      add(run.weights, session.services()->weightRecord());
    }
    run.peak = device->memory().peakBytes(Space::DeviceDram);
    // What leaves behind the last block is gone once somebody hears that its copy has ended.
    device->drain();
    session.evaluate({{"x", randomTensor(device, {model.rows, model.width}, 1)}});
    for (const MemoryHolder &holder : device->memory().holders(Space::DeviceDram))
      run.states += holder.owner.role == "state" ? holder.liveBytes : 0;
    if (session.services() && session.services()->weights())
      run.slots = session.services()->weights()->slots();
    addParameters(session, run.bits);
    EXPECT_EQ(run.activations["activations_leaked"], 0);
    return run;
  }

  Trained free() { return train(64 << 20, Json::object()); }

  struct Moved {
    std::vector<float> bits;
    /// Saved tensors, and all that came over the link.
    uint64_t left = 0, rescued = 0, fetched = 0, fetchedBytes = 0;
  };

  /// Trains by the plan for the smallest budget, on a device so large that nobody takes
  /// the memory of what leaves: at planned addresses it has left before they are taken.
  Moved trainWithRoom() {
    DeviceRef device = open(64 << 20);
    StepTwin twin(virtualTwin(*device), {{"deep", binary()}}, {});
    ResidencyPlanner planner(twin.record());
    PlannedResidency planned(device, planner.profile(), planner.plan(planner.smallestBudget()));
    late.target = &planned;
    late.device = device;
    SessionOptions options;
    options.events = &late;
    options.residency = &planned.residency();
    Session session(device, {{"deep", binary()}}, std::move(options));
    Moved moved;
    setParameters(session);
    for (uint32_t step = 0; step < steps; ++step)
      moved.bits.push_back(stepOnce(session, step));
    addParameters(session, moved.bits);
    moved.left = planned.counts().left;
    moved.rescued = planned.counts().rescued;
    moved.fetched = planned.residency().counts().fetched;
    moved.fetchedBytes = planned.residency().counts().fetchedBytes;
    late.target = nullptr;
    return moved;
  }

  /// The smallest device that is not refused.
  uint64_t smallest(const Json &stagehand) {
    static constexpr uint64_t tooSmall = savedBytes;
    auto [code, what] = errorOf([&] {
      Session session = make(open(tooSmall), stagehand);
      session.certify();
    });
    EXPECT_EQ(code, ErrorCode::BudgetInfeasible) << what;
    uint64_t least = smallestNamed(what);
    EXPECT_GT(least, tooSmall) << what;
    return least;
  }

  TemporaryFolder folder;
  std::filesystem::path logs;
  std::string link = "link=8GB/s";
  LateCopies late;
  bool isLate = false;
  double ringHighMiB = 0.35;
};

/// Each mode on `sim`, in its two manners.
auto cellsOf(std::initializer_list<Mode> modes) {
  std::vector<Cell> cells;
  for (Mode mode : modes)
    for (const char *device : {"sim:", "sim:streams,"})
      cells.push_back({mode, device});
  return testing::ValuesIn(cells);
}

struct Recomputing : AbilityMatrix {};
struct Logging : AbilityMatrix {};
struct Certifying : AbilityMatrix {};
struct MovingStates : AbilityMatrix {};
struct Rescuing : AbilityMatrix {};
} // namespace

// A ring alone drops nothing; what follows from its weights is computed again beside it.
INSTANTIATE_TEST_SUITE_P(Cells, Recomputing,
                         cellsOf({Mode::Watermarks, Mode::Plan, Mode::WatermarksAndRing, Mode::PlanAndRing}), cellName);
INSTANTIATE_TEST_SUITE_P(Cells, Logging, cellsOf(allModes), cellName);
INSTANTIATE_TEST_SUITE_P(Cells, Certifying, cellsOf(allModes), cellName);
INSTANTIATE_TEST_SUITE_P(Cells, MovingStates, cellsOf(allModes), cellName);
INSTANTIATE_TEST_SUITE_P(Cells, Rescuing, cellsOf({Mode::Watermarks, Mode::Plan, Mode::Ring}), cellName);

/// Saved tensors follow from weights of each block, w0 among them, which backward has no
/// other use for.
TEST_P(Recomputing, SavedTensorsAreMadeAgain) {
  if (plans(mode())) // beside a plan, the watermark says how many slots there are at first alone
    ringHighMiB = 4.5 * double(weightBytes) / bytesPerMiB;
  Json stagehand = sectionsThatRecompute();
  Trained expected = free();
  uint64_t least = smallest(stagehand);
  ASSERT_LT(least, expected.peak);
  // With the smallest, a plan has no room to make anything again.
  for (uint64_t part = plans(mode()) ? 1 : 0; part < 3; ++part) {
    uint64_t cap = least + (expected.peak - least) * part / 3;
    SCOPED_TRACE("cap " + std::to_string(cap));
    Trained run = train(cap, stagehand);
    EXPECT_EQ(run.bits, expected.bits);
    EXPECT_LE(run.peak, cap);
    EXPECT_GT(run.activations["activations_recomputed"], 0);
    if (streams(mode())) {
      EXPECT_GT(run.weights["blocks_lent"], 0) << "backward has no use for w0";
      EXPECT_GT(run.weights["loads"], model.layers) << "they come again";
      EXPECT_LT(run.slots, model.layers);
    }
  }
}

namespace {
/// The ring gives all slots up but one before backward. Where `isVandal`, a bit of each
/// tensor that comes back has changed.
struct NarrowRing final : EventSink {
  Session *session = nullptr;
  bool isVandal = false;
  int64_t slotsInForward = 0;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    WeightStreamer *ring = session ? session->services()->weights() : nullptr;
    if (!ring || begin.phase != Phase::Backward)
      return;
    slotsInForward = ring->slots();
    session->device()->drain(); // what is lost has left
    ring->makeRoom(UINT64_MAX);
    EXPECT_EQ(ring->slots(), 1);
  }
  void on(const event::Restore &restore) {
    if (isVandal && restore.saved.desc().layout.space == Space::HostPinned)
      restore.saved.data<uint8_t>()[77] ^= 1;
  }
};
} // namespace

// A tensor could be computed again when it was saved, with a weight in a slot of its own.
// When its copy is lost there is no such slot any more: that the copy is lost is the
// error, and not that there is no room to make up for it.
TEST(RecomputingBesideARing, ALostCopyThatCannotBeMadeAgainIsTheError) {
  Json activation = {{"enabled", true},
                     {"telemetry_enabled", false},
                     {"min_spill_bytes", 0},
                     {"pinned_pool_classes_mb", {1}},
                     {"slabs_per_class", int(model.layers)},
                     {"vram_high_watermark_mb", 0.001},
                     {"vram_low_watermark_mb", 0},
                     {"predictive_restore", false},
                     {"debug_checksums", true},
                     {"transfer_retries", 0}};
  Json config = {{"memory",
                  {{"stagehand",
                    {{"telemetry_enabled", false},
                     {"prefetch_window_blocks", 1},
                     {"vram_high_watermark_mb", 0.35},
                     {"activation_stagehand", activation}}}}}};
  // What a block saves, the next one needs first: the weight of another block makes it.
  std::string text = model.text();
  for (size_t at; (at = text.find("gelu tanh")) != std::string::npos;)
    text.replace(at, 9, "tanh");
  CompileOptions compile;
  compile.name = "deep";
  compile.training = true;
  compile.optimizer = "adamw";
  CompiledModule compiled(text, compile);
  ASSERT_TRUE(compiled.binary) << compiled.diagnostics;
  int64_t slots = 0;
  auto play = [&](const std::string &fault, bool isVandal) {
    DeviceRef device = Device::open("sim:dram=64MiB,pinned=64MiB,threads=1" + fault);
    NarrowRing narrow;
    SessionOptions options;
    options.events = &narrow;
    options.config = Config::parse(config.dump(), "test");
    Session session(device, {{"deep", *compiled.binary}}, std::move(options));
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    narrow.session = &session;
    narrow.isVandal = isVandal;
    auto result = errorOf([&] {
      session.step({{"x", randomTensor(device, {model.rows, model.width}, 1)}}, 1e-2);
      EXPECT_GT(session.services()->activationRecord()["activations_restored"], 0);
      EXPECT_EQ(session.services()->activationRecord()["activations_recomputed"], 0);
    });
    slots = std::max(slots, narrow.slotsInForward);
    return result;
  };
  EXPECT_EQ(play("", /*isVandal=*/false).first, ErrorCode(-1));
  EXPECT_GT(slots, 1) << "what is saved could be made again";
  auto [code, what] = play("", /*isVandal=*/true);
  EXPECT_EQ(code, ErrorCode::ChecksumMismatch) << what;
  EXPECT_NE(what.find("CRC-32 0x"), std::string::npos) << what;
  int failed = 0;
  for (int copy = 1; copy <= 24; ++copy) {
    std::tie(code, what) = play(",fail-h2d=" + std::to_string(copy) + "x2", /*isVandal=*/false);
    if (code == ErrorCode(-1))
      continue;
    EXPECT_EQ(code, ErrorCode::TransferFailed) << "copy " << copy << ": " << what;
    failed += what.find("activation \"") != std::string::npos;
  }
  EXPECT_GT(failed, 0);
}

TEST_P(Logging, RunsAreReplayedToTheSameAnswers) {
  Json stagehand = sectionsThatRecompute();
  Trained expected = free();
  uint64_t least = smallest(stagehand);
  logs = folder.path;
  Trained run = train(least + (expected.peak - least) / 3, stagehand);
  EXPECT_EQ(run.bits, expected.bits);
  struct Log {
    const char *file, *decision;
    bool isWanted;
  };
  for (const auto &[file, decision, isWanted] : {Log{"activation.json", "save", spills(mode())},
                                                 Log{"plan.json", "event", plans(mode())},
                                                 Log{"weight.json", "before_block", streams(mode())}}) {
    SCOPED_TRACE(file);
    std::filesystem::path path = logs / file;
    ASSERT_EQ(std::filesystem::exists(path), isWanted);
    if (!isWanted)
      continue;
    auto replay = [&] {
      std::string call = "timeout 60 " SEGUE_RUN " replay --check " + path.string() + " > " +
                         (logs / "said").string() + " 2>&1";
      return WEXITSTATUS(std::system(call.c_str()));
    };
    EXPECT_EQ(replay(), 0);
    std::ifstream text(path);
    Json log = Json::parse(text);
    text.close();
    auto &events = log["events"];
    auto changed = std::ranges::find_if(events, [&](const Json &event) {
      return event["op"] == decision && event.contains("expect") && !event["expect"].empty();
    });
    ASSERT_NE(changed, events.end()) << "nothing was decided";
    (*changed)["expect"] = {{"action", "another"}};
    std::ofstream(path) << log;
    EXPECT_EQ(replay(), 1) << "another answer is noticed";
  }
}

// The peak is stated before the first step, a device that has no more memory trains, and
// one that has a byte less than what is named as the smallest is refused.
TEST_P(Certifying, ThePeakIsStatedBeforeTheFirstStepAndKept) {
  Json stagehand = sections();
  Trained expected = free();
  uint64_t least = smallest(stagehand);
  for (uint64_t cap : {least, least + (expected.peak - std::min(least, expected.peak)) / 2, expected.peak + 500000}) {
    SCOPED_TRACE("cap " + std::to_string(cap));
    Trained run = train(cap, stagehand, /*certifies=*/true);
    EXPECT_EQ(run.bits, expected.bits);
    EXPECT_LE(run.certified, cap);
    EXPECT_LE(run.peak, run.certified);
    EXPECT_GT(run.peak, run.certified / 2) << "a peak that says nothing";
    Trained tight = train(run.certified, stagehand);
    EXPECT_EQ(tight.bits, expected.bits);
    EXPECT_LE(tight.peak, run.certified);
  }
  auto [code, what] = errorOf([&] { train(least - least / 20, stagehand); });
  EXPECT_EQ(code, ErrorCode::BudgetInfeasible) << what;
  EXPECT_GE(smallestNamed(what), least - least / 100) << what;
}

// Functions that see gradients, and change some, hold no more than the step: a plan keeps its addresses (make() fails on
// warnings), and the bits are those of a run in memory.
TEST_P(Certifying, HooksKeepToIt) {
  auto bitsOf = [&](uint64_t dramBytes, const Json &stagehand) {
    DeviceRef device = open(dramBytes);
    Session session = make(device, stagehand);
    std::vector<GradientHook> hooks;
    for (const ParameterInfo &info : session.parameters())
      hooks.push_back({info.key, [](Tensor &gradient) { gradient.data<float>()[0] += 0.5f; }});
    std::vector<float> bits;
    for (uint32_t step = 0; step < 2 * steps; ++step) {
      TensorMap batch{{"x", randomTensor(device, {model.rows, model.width}, 100 + step)}};
      bits.push_back(float(session.step(std::span(&batch, 1), 1e-2, hooks).loss));
    }
    addParameters(session, bits);
    return bits;
  };
  EXPECT_EQ(bitsOf(smallest(sections()), sections()), bitsOf(64 << 20, Json::object()));
}

// Steps of another number of batches have a peak of their own.
TEST_P(Certifying, StepsOfSomeBatchesAreCertified) {
  DeviceRef device = open(64 << 20);
  Session session = make(device, sections());
  EXPECT_EQ(errorOf([&] { session.certify(0); }).first, ErrorCode::InvalidArgument);
  uint64_t one = session.certify(), three = session.certify(3);
  EXPECT_GE(three, one);
  EXPECT_EQ(session.certify(3), three);
  std::vector<TensorMap> batches(3);
  for (TensorMap &batch : batches)
    batch["x"] = randomTensor(device, {model.rows, model.width}, 7);
  device->memory().resetPeak();
  for (int step = 0; step < 3; ++step)
    session.step(batches, 1e-2);
  EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), three);
  session.forwardBackward(batches[0]);
  EXPECT_EQ(errorOf([&] { session.certify(); }).first, ErrorCode::StateTransition);
}

// Under the smallest cap the states of the optimizer are not on the device while nobody
// needs them.
TEST_P(MovingStates, GradientsAndStatesLeave) {
  static constexpr uint64_t stateBytes = 2 * model.layers * weightBytes; // AdamW
  Json stagehand = sections();
  Trained expected = free();
  ASSERT_GE(expected.states, stateBytes);
  uint64_t least = smallest(stagehand);
  Trained run = train(least, stagehand);
  EXPECT_EQ(run.bits, expected.bits);
  EXPECT_LE(run.peak, least);
  EXPECT_LT(run.states, stateBytes / 2);
}

// What leaves is needed before it has left: it stays, and does not come over the link.
TEST_P(Rescuing, WhatIsNeededWhileItLeavesStays) {
  Trained expected = free();
  isLate = true;
  // On a busy machine copies that were to be late may come in time: later, then.
  for (late.delay = 100ms;; late.delay *= 2) {
    ASSERT_LT(late.delay, 10s) << "nothing was rescued";
    SCOPED_TRACE("copies to the host wait for " + std::to_string(late.delay.count()) + " ms");
    if (mode() == Mode::Plan) {
      Moved moved = trainWithRoom();
      EXPECT_EQ(moved.bits, expected.bits);
      if (moved.rescued == moved.left) {
        EXPECT_GT(moved.rescued, 0u);
        EXPECT_EQ(moved.fetchedBytes, moved.fetched * weightBytes) << "a saved tensor came over the link";
        return;
      }
      continue;
    }
    Trained run = train(64 << 20, sections());
    EXPECT_EQ(run.bits, expected.bits);
    if (mode() == Mode::Ring) {
      EXPECT_EQ(run.weights["h2d_bytes"], run.weights["loads"] * int64_t(weightBytes));
      if (run.weights["blocks_rescued"] > 0)
        return;
      continue;
    }
    int64_t rescued = run.activations["activations_rescued"];
    EXPECT_EQ(run.activations["restore_bytes"],
              (run.activations["activations_spilled"] - rescued) * int64_t(savedBytes));
    if (rescued > 0)
      return;
  }
}
